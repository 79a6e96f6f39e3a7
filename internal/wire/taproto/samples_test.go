package taproto

import (
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/wire/taproto/taprototest"
)

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
			for _, s := range taprototest.Transcript(t, name) {
				got := ""
				if s.Agent {
					for _, line := range s.Lines() {
						l := ParseLine([]byte(line))
						if l.Kind == LineComment {
							t.Errorf("%q was read as a comment", line)
						}
						got += string(AppendLine(nil, &l))
					}
				} else {
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
