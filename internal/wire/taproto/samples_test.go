package taproto

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

// transcript reads a conversation that was recorded from a running ZMailer.
func transcript(t testing.TB, name string) []Step {
	t.Helper()
	f, err := os.Open(name)
	assert.Must(t, err)
	defer f.Close()
	steps, err := ReadTranscript(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return steps
}

func transcripts(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatalf("transcripts: %v, %v", names, err)
	}
	return names
}

// M32
func TestRecordedConversationsPrintBackByteForByte(t *testing.T) {
	for _, name := range transcripts(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			for _, s := range transcript(t, name) {
				got := ""
				switch s.Kind {
				case AgentOpened:
					continue
				case AgentSaid:
					for _, line := range s.Lines() {
						l := ParseLine([]byte(line))
						if l.Kind == LineComment {
							t.Errorf("%q was read as a comment", line)
						}
						got += string(AppendLine(nil, &l))
					}
				case SchedulerSaid:
					for _, line := range s.Lines() {
						c, err := ParseCommand([]byte(line))
						assert.NoError(t, err)
						got += string(AppendCommand(nil, c))
					}
				}
				assert.Equal(t, got, s.Said)
			}
		})
	}
}
