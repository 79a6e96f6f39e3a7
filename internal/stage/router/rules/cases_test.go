package rules

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "rewrite what is expected in testdata/*.txt")

var titleLine = regexp.MustCompile(`(?m)^-- (\w+) (.*) --\n`)

// section is a part of a file of cases, below a line "-- KIND NAME --".
type section struct{ kind, name, body string }

func readCases(t testing.TB, file string) (comment string, list []section) {
	text := string(assert.Get(os.ReadFile(file))(t))
	at := titleLine.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		list = append(list, section{text[m[2]:m[3]], text[m[4]:m[5]], text[m[1]:end]})
	}
	return text[:at[0][0]], list
}

// longChain is a loop with its steps, which are shortened at a place that the length of the test's
// directory decides.
var longChain = regexp.MustCompile(`(error loop: more than \d+ steps: ).*: (\S+ \d+)\n`)

// M47: each file of testdata has tables, and below "resolve ADDRESS" or "report ADDRESS" the
// targets: channel, host, user, privilege, and the owner of the list, with a star if each
// member is named in the sender. "table users" has logins with their uids; "subaddress" has the
// separators of tags, "extend" the aliases that pass them on. A section holds until the file has another of its name.
func TestRecipientGoesWhereTheCasesShow(t *testing.T) {
	for _, file := range assert.Get(filepath.Glob("testdata/*.txt"))(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			out, list := readCases(t, file)
			c := newConf(t, nil)
			c.owners = true
			users, subaddress, extend := system{}, "", Extend{}
			for _, part := range list {
				kind, name, body := part.kind, part.name, part.body
				switch {
				case kind == "subaddress":
					subaddress = name
				case kind == "extend":
					extend = Extend{Virtual: strings.Contains(name, "virtual"), Alias: strings.Contains(name, "alias")}
				case kind == "table" && name == "users":
					for line := range strings.Lines(body) {
						login, uid, _ := strings.Cut(strings.TrimSpace(line), " ")
						n := os.Geteuid() // UID
						if number, err := strconv.Atoi(uid); err == nil {
							n = number
						}
						users[login] = User{UID: uint32(n)}
					}
				case kind == "table":
					c.write(name, body)
				default:
					k := c.config()
					k.Passwd, k.LocalUsers, k.Subaddress, k.Extend = users, "passwd", strings.TrimSpace(subaddress), extend
					c.Rules = assert.Get(New(k))(t)
					got := longChain.ReplaceAllString(strings.Join(c.resolve(name, kind == "report"), "\n")+"\n", "$1...: $2\n")
					if *update {
						body = got
					}
					assert.Equal(t, got, body, "%s", name)
				}
				out += fmt.Sprintf("-- %s %s --\n%s", kind, name, body)
			}
			if *update {
				assert.Must(t, os.WriteFile(file, []byte(out), 0o644))
			}
		})
	}
}
