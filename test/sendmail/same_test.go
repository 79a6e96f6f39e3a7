package sendmail

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Loc1, Loc2, Loc3: of the same arguments and the same input ours makes the message that
// Postfix's sendmail makes. All of it goes through -t where the header's end matters, because
// Postfix's sendmail looks for it only then.
func TestLoc123SameMessageAsPostfix(t *testing.T) {
	theirs, own := postfix(t), ours(t)
	const text = "Subject: x\nTo: t@x.example\n\nhi\n"
	for name, tt := range map[string]struct {
		args []string
		in   string
	}{
		"text without header":      {[]string{"-t", "a@b"}, "disk full\nreally\n"},
		"text after a header":      {[]string{"-t", "a@b"}, "Subject: x\ndisk full\nCc: no@x\n"},
		"header alone":             {[]string{"-t", "a@b"}, "Subject: x\n"},
		"blank first":              {[]string{"-t", "a@b"}, " To: x@y\n\nhi\n"},
		"name that is not ASCII":   {[]string{"-t", "a@b"}, "Subject: x\nX\xff: y\nTo: no@x\n\nhi\n"},
		"mbox lines":               {[]string{"a@b"}, "From x Mon\n>From y\n>>From z\nSubject: x\n\nFrom b\n"},
		"mbox line in a header":    {[]string{"-t", "a@b"}, "Subject: x\nFrom y\nTo: no@x\n"},
		"CRLF":                     {[]string{"-t"}, "To: x@y\r\nSubject: z\r\n\r\nbody\r\n\r\nmore\r\n"},
		"dot":                      {[]string{"a@b"}, "Subject: x\n\nhi\n.\nnot this\n"},
		"dot with -i":              {[]string{"-i", "a@b"}, "Subject: x\n\nhi\n.\nthis\n"},
		"dot with -oi":             {[]string{"-oi", "a@b"}, "Subject: x\n\nhi\n.\nthis\n"},
		"dot in the header":        {[]string{"-t", "a@b"}, "Subject: x\n.\nTo: no@x\n"},
		"header recipients":        {[]string{"-t"}, "To: A <a@b>, c@d (C)\nCc: g: x@y, z@w;\nBcc: s@t,\n\tu@v\n\nhi\n"},
		"header and arguments":     {[]string{"-t", "z@y"}, text},
		"resent":                   {[]string{"-t"}, "Resent-To: r@x\nResent-Cc: s@x\nTo: t@x\n\nx\n"},
		"blanks instead of commas": {[]string{"-t"}, "To: a b@c, d@e\n\nhi\n"},
		"two in an argument":       {[]string{"a@b c@d"}, text},
		"comma list":               {[]string{"a@b,c@d", "e@f; g@h"}, text},
		"blanks around dots":       {[]string{"joe . smith @ x . example"}, text},
		"quoted word":              {[]string{`"a".b@c`}, text},
		"comments":                 {[]string{"joe@x (Joe (the first))", "(c)ann@x"}, text},
		"comment without end":      {[]string{"joe@x (Joe"}, text},
		"names":                    {[]string{"Joe <joe@x>", `"Bloggs, Ann" <ann@x>`, "<bob@x>"}, text},
		"two brackets":             {[]string{"<a@b> <c@d>"}, text},
		"group":                    {[]string{"friends: a@b, c@d;"}, text},
		"local names":              {[]string{"root", "joe,ann"}, text},
		"percent and bang":         {[]string{"a%b@c", "bang!user"}, text},
		"literal":                  {[]string{"a@[192.0.2.1]"}, text},
		"sender":                   {[]string{"-f", "me@x", "a@b"}, text},
		"sender, attached":         {[]string{"-fme@x", "a@b"}, text},
		"sender, old name":         {[]string{"-r", "me@x", "a@b"}, text},
		"sender with a name":       {[]string{"-f", "Me <me@x>", "a@b"}, text},
		"null sender":              {[]string{"-f", "<>", "a@b"}, text},
		"empty sender":             {[]string{"-f", "", "a@b"}, text},
		"two senders":              {[]string{"-f", "me@x,you@y", "a@b"}, text},
		"bad report options":       {[]string{"-N", "foo", "-R", "foo", "a@b"}, text},
		"as cron calls":            {[]string{"-FCronDaemon", "-i", "-B8BITMIME", "-oem", "a@b"}, text},
		"end of options":           {[]string{"-i", "--", "a@b"}, text},
		"no newline at the end":    {[]string{"a@b"}, "Subject: x\n\nno newline"},
		"long lines":               {[]string{"a@b"}, "Subject: x\n\n" + strings.Repeat("x", 100000) + "\nlast\n"},
		"ignored options":          {[]string{"-Am", "-U", "-m", "-h", "5", "-L", "label", "-om", "-o7", "-o8", "-x", "-O", "a=b", "a@b"}, text},
	} {
		t.Run(name, func(t *testing.T) {
			var got [2][]message
			for i, m := range []*mta{theirs, own} {
				cmd := exec.Command(m.path, tt.args...)
				cmd.Stdin = strings.NewReader(tt.in)
				run(t, cmd)
				got[i] = m.take(t)
				// Postfix ends the last line when it stores the message.
				for j := range got[i] {
					got[i][j].body = strings.TrimSuffix(got[i][j].body, "\n")
				}
			}
			if d := cmp.Diff(got[0], got[1], cmp.AllowUnexported(message{})); d != "" {
				t.Errorf("Postfix's -, ours +\n%s", d)
			}
		})
	}
}
