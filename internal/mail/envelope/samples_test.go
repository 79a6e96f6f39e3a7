package envelope

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

// Files that a ZMailer SMTP server left in router/ (testdata/zmailer) parse, and
// their envelope prints back byte for byte.
func TestRecordedFilesPrintBackByteForByte(t *testing.T) {
	files, err := filepath.Glob("testdata/zmailer/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("recorded files: got %d, %v, want at least 5", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			file := assert.Get(os.ReadFile(name))(t)
			m := assert.Get(Read(bytes.NewReader(file)))(t)
			if len(m.Unknown) > 0 {
				t.Errorf("unknown keywords: got %q, want none", m.Unknown)
			}
			got := assert.Get(Append(nil, &m.Envelope))(t)
			assert.Same(t, got, file[:m.HeaderOffset], "envelope")
			if got, want := file[m.HeaderOffset:m.BodyOffset], string(m.Header)+"\n"; string(got) != want {
				t.Errorf("header: got\n%s\nwant\n%s", got, want)
			}
			assert.Equal(t, string(file[m.BodyOffset:m.BodyOffset+8]), "Body of ", "body")
		})
	}
}
