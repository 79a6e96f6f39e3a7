package router

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/workspec"
)

func TestRecipientThatIsNoAddressIsReported(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	m := o.one("env-end\nTo: a b c, bond\n\n")
	if got, want := strings.Join(m.recipients(), ", "), "error badaddress a b c, local bond@mx.example.org bond@mx.example.org"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What ZMailer 3.0.1 made of the files that its SMTP server left in router/ is what
// we make of them, but for the layout of headers and for what an r line's privilege
// is.
func TestRecordedMessagesRouteAsZMailerRoutedThem(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../mail/envelope/testdata/zmailer/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("recorded files: got %d, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			want := recorded(t, filepath.Base(name))
			o := newOffice(t, map[string]string{"localnames": "zm.example.org\n", "users": "root\n"}, func(c *Config) { c.Hostname = "mta.zm.example.org" })
			m := o.one(string(text))
			if diff := cmp.Diff(recipientLines(m.spec), recipientLines(want.spec)); diff != "" {
				t.Errorf("recipients (-got +want):\n%s", diff)
			}
			if got, want := m.spec.Ident, want.spec.Ident; got != want {
				t.Errorf("l: got %s, want %s", got, want)
			}
			if got, want := m.spec.ErrorTo[0], strings.Trim(want.spec.ErrorTo[0], "<>"); got != want {
				t.Errorf("e: got %s, want %s", got, want)
			}
			if got, want := withoutDates(m.header()), withoutDates(want.header()); got != want {
				t.Errorf("header: got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// recorded reads a specification that ZMailer's router wrote.
func recorded(t *testing.T, name string) routed {
	t.Helper()
	files, err := filepath.Glob("../../workspec/testdata/samples/" + name + "*/transport-before")
	if err != nil || len(files) != 1 {
		t.Fatalf("specification of %s: got %q, %v", name, files, err)
	}
	file, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	spec, err := workspec.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	return routed{name: name, spec: spec, file: file}
}

// recipientLines are the recipients without order and privilege.
func recipientLines(s *workspec.Spec) map[string]string {
	lines := map[string]string{}
	for _, g := range s.Groups {
		for _, r := range g.Recipients {
			lines[r.Channel+" "+r.Host+" "+r.Address] = "N " + r.Notary + "\nR " + r.Ret + "\nn " + r.EnvID
		}
	}
	return lines
}

// withoutDates is a header as words, without the Received field's spool ID and date,
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
