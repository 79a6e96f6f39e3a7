package contentrules

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// messages are those that the judge and we look at. Op10.
var messages = map[string]string{
	"one part":           "Subject: hi\n there\nX-Ok: 1\nX-No: 2\n\nline 1\nspam here\n\nend\n",
	"no body":            "Subject: hi\nX-No: 2\n",
	"no line end":        "Subject: hi\n\nspam",
	"an attachment":      "Subject: s\nContent-Type: multipart/mixed; boundary=\"ab\"\n\npre\n--ab\nContent-Type: application/x; name=foo.exe\n\nMZ\n--ab\n\nspam\n--ab--\nepi\n",
	"folded boundary":    "Content-Type: multipart/mixed;\n\tboundary=ab\n\n--ab\nX-No: part\n\nspam\n--ab--\n",
	"an attached mail":   "Content-Type: multipart/mixed; boundary=ab\n\n--ab\nContent-Type: message/rfc822\n\nSubject: inner\nX-No: 3\n\nspam\n--ab--\n",
	"mail in mail":       "Content-Type: message/rfc822\n\nContent-Type: message/rfc822\nSubject: one\n\nSubject: two\n\nspam\n",
	"multipart in multi": "Content-Type: multipart/mixed; boundary=ab\n\n--ab\nContent-Type: multipart/alternative; boundary=cd\n\n--cd\nX-No: inner\n\nspam\n--cd--\n--ab\nX-No: outer\n\nend\n--ab--\n",
	"end of the outer":   "Content-Type: multipart/mixed; boundary=ab\n\n--ab\nContent-Type: multipart/alternative; boundary=cd\n\n--cd\n\nspam\n--ab--\n--cd\nX-No: not a part\n\n",
	"a type in capitals": "CONTENT-TYPE: MULTIPART/MIXED; BOUNDARY=Ab\n\n--ab\nX-No: other case\n\n--Ab\nX-No: part\n\nspam\n",
	"no boundary":        "Content-Type: multipart/mixed\n\n--\nX-No: body\n\nspam\n",
	"a comment":          "Content-Type: multipart/mixed (spam); boundary=ab\n\n--ab\nX-No: part\n\n",
	"a body in a header": "Content-Type: multipart/mixed; boundary=ab\n\n--ab\nX-No: part\nno field\nX-No: body\n\nspam\n",
	"a digest":           "Content-Type: multipart/digest; boundary=ab\n\n--ab\n\nSubject: inner\n\nspam\n--ab--\n",
	"a partial":          "Content-Type: message/partial\n\nSubject: inner\n\nspam\n",
}

var tables = map[string]string{
	"conditions": "/^subject: (.*)$/ WARN subject $1\n/name=\"?.*\\.exe/ WARN exe\nif /^x-/\n!/^x-ok/ WARN x-bad\nendif\n/(spam)/\n  WARN spam ${1}\n/./ WARN other\n",
	"flags":      "/SUBJECT/i WARN no\n!/subject/ DUNNO\n/^(\\w+): *(.)/ WARN $(2)$(1)\n",
}

// Postmap -h, -b and -m look at a message as header_checks(5) does.
func TestOp10TablesFitAsPostfixHasIt(t *testing.T) {
	postmap, err := exec.LookPath("/usr/sbin/postmap")
	if err != nil {
		t.Skip("no postmap; install postfix")
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		assert.Must(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	write("main.cf", "compatibility_level = 3.6\nmyhostname = a.example\n")
	for table, text := range tables {
		path := write("table", text)
		ours := map[bool]*Rules{
			true:  readAll(t, map[string]string{HeaderFile: text}),
			false: readAll(t, map[string]string{BodyFile: text}),
		}
		for name, message := range messages {
			for inHeaders, flags := range map[bool]string{true: "-hmq", false: "-bmq"} {
				cmd := exec.Command(postmap, "-c", dir, flags, "-", "regexp:"+path)
				cmd.Stdin = strings.NewReader(message)
				out, _ := cmd.Output() // it fails when nothing is found
				var want []string
				for _, s := range strings.Split("\n"+string(out), "\tWARN ")[1:] {
					// A key may have many lines, and is printed behind the text of the one before.
					s, _, _ = strings.Cut(s, "\n")
					want = append(want, s)
				}
				s := ours[inHeaders].Scan(External, 0)
				for i := range len(message) { // in pieces
					_, _ = s.Write([]byte(message[i : i+1]))
				}
				var got []string
				for _, n := range s.End().Notes {
					text, _, _ := strings.Cut(n.Text, "  ") // folds are blanks here
					got = append(got, text)
				}
				for i := range want {
					want[i] = strings.TrimSpace(want[i])
				}
				assert.Equal(t, strings.Join(got, "|"), strings.Join(want, "|"), "%s, %s, %s", table, name, flags)
			}
		}
	}
}
