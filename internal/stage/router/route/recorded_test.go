package route

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// What ZMailer 3.0.1 made of the files that its SMTP server left in router/ is what
// we make of them, but for the layout of headers and for what an r line's privilege
// is.
func TestRecordedMessagesRouteAsZMailerRoutedThem(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../mail/envelope/testdata/zmailer/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("recorded files: got %d, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			text := assert.Get(os.ReadFile(name))(t)
			want := recorded(t, filepath.Base(name))
			r := newRig(t)
			r.table("localnames", "zm.example.org\n")
			r.table("users", "root\n")
			r.config.Hostname = "mta.zm.example.org"
			m := r.one(string(text))
			assert.Same(t, recipientLines(m.spec), recipientLines(want.spec), "recipients")
			assert.Equal(t, m.spec.Ident, want.spec.Ident, "l")
			assert.Equal(t, m.spec.ErrorTo[0], strings.Trim(want.spec.ErrorTo[0], "<>"), "e")
			assert.Equal(t, withoutDates(m.header()), withoutDates(want.header()), "header")
		})
	}
}

// recorded reads a specification that ZMailer's router wrote.
func recorded(t *testing.T, name string) routed {
	t.Helper()
	files, err := filepath.Glob("../../../workspec/testdata/samples/" + name + "*/transport-before")
	if err != nil || len(files) != 1 {
		t.Fatalf("specification of %s: got %q, %v", name, files, err)
	}
	file := assert.Get(os.ReadFile(files[0]))(t)
	spec := assert.Get(workspec.Parse(file))(t)
	return routed{spec: spec, file: file}
}

// recipientLines returns the recipients without order and privilege.
func recipientLines(s *workspec.Spec) map[string]string {
	lines := map[string]string{}
	for _, g := range s.Groups {
		for _, r := range g.Recipients {
			lines[r.Channel+" "+r.Host+" "+r.Address] = "N " + r.Notary + "\nR " + r.Ret + "\nn " + r.EnvID
		}
	}
	return lines
}

// withoutDates returns a header as words, without the Received field's spool ID and date,
// which differ.
func withoutDates(header string) string {
	var out []string
	for _, f := range envelope.Fields([]byte(header)) {
		v := f.Value()
		if f.Name == "Received" {
			v, _, _ = strings.Cut(v, "id S")
		}
		out = append(out, f.Name+": "+strings.Join(strings.Fields(v), " "))
	}
	return strings.Join(out, "\n")
}
