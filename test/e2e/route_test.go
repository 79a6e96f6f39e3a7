package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares the output of a program with a file. Directories, spool IDs, inodes, uids and
// logins differ, and so do the widths of their columns; examples come in the order of the disk.
func golden(t *testing.T, s *suite.Suite, name, said string) {
	t.Helper()
	said = strings.ReplaceAll(said, s.Dir, "DIR")
	said = regexp.MustCompile(`S\d+A[0-9A-Za-z-]+`).ReplaceAllString(said, "ID")
	said = regexp.MustCompile(`(uid |pipe\.|router/)\d+`).ReplaceAllString(said, "${1}N")
	said = regexp.MustCompile(`(\S)  +`).ReplaceAllString(said, "${1}  ")
	said = regexp.MustCompile(`(?m)^sender  .*\n`).ReplaceAllString(said, "")
	lines := strings.SplitAfter(said, "\n")
	for i := 0; i < len(lines); i++ {
		j := i
		for j < len(lines) && strings.HasPrefix(lines[j], "    ID") {
			j++
		}
		slices.Sort(lines[i:j])
		i = max(i, j-1)
	}
	said = strings.Join(lines, "")
	file := filepath.Join("testdata", name)
	if *update {
		write(t, file, said)
	}
	if diff := cmp.Diff(read(t, file), said); diff != "" {
		t.Errorf("%s: want -, got +\n%s", file, diff)
	}
}

// everything is each name of the system's postoffice and configuration, with mode, time
// and bytes.
func everything(t *testing.T, s *suite.Suite) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{s.PostOffice(), filepath.Dir(s.Config())} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil {
				fmt.Fprintln(&b, name, info.Mode(), info.ModTime().UnixNano())
			}
			if err == nil && info.Mode().IsRegular() {
				fmt.Fprintf(&b, "%q\n", read(t, name))
			}
			return err
		})
		assert.Must(t, err)
	}
	return b.String()
}

// routeTables are the tables of these tests, with mistakes in them.
func routeTables(s *suite.Suite) {
	s.Files["aliases"] = `# who sells
sales: alice, bob,
	extern@far.example
support: bob
one: two
two: three
three: one
keep: \bob, keep@far.example
members: :include:` + filepath.Join(s.Dir, "conf", "members") + `
lost: :include:` + filepath.Join(s.Dir, "conf", "nosuch") + `
program: "|/bin/cat >/dev/null"
drop: /dev/null
`
	s.Users = append(s.Users, "fred")
	s.Settings = map[string]string{"FORWARD": filepath.Join(s.Dir, "conf", "forward") + "/%u"}
	s.Files["forward/fred"] = "\\fred, fred@away.example\n"
	s.Files["members"] = "alice\nzoë@bücher.example\n# away: carol\n\"q p\"@quoted.example\n"
	s.Files["fqdnaliases"] = "user@virt.example: alice\n@virt.example: %1@far.example\n"
	s.Files["routes"] = "far.example smtp!relay.example\n.far.example smtp!relay.example\nold.example pigeon!loft\nclosed.example error!closed\n"
}

// Z8: zmctl route prints every step for addresses as users write them, down to the clause that
// serves them; a channel without a clause is in the output and the exit code. Nothing is changed.
func TestRoutePrintsEveryStep(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, routeTables)
	submit(t, s, "From: bob@mta.example\nTo: Alice <alice@mta.example>, sales\nSubject: x\n\n", "-t", "-f", "bob@mta.example")
	before := everything(t, s)
	const delivered, rejected, later = 0, 1, 75
	for name, tt := range map[string]struct {
		code int
		args []string
	}{
		"alias":      {delivered, []string{"sales"}},
		"loop":       {rejected, []string{"one@mta.example"}},
		"include":    {delivered, []string{"members"}},
		"forward":    {delivered, []string{"fred"}},
		"lost":       {later, []string{"lost"}},
		"program":    {rejected, []string{"program", "drop"}},
		"domains":    {delivered, []string{"user@virt.example", "other@VIRT.example", "x@sub.far.example", "zoë@BÜCHER.example", "x@[192.0.2.3]"}},
		"odd":        {delivered, []string{"@one.example,@two.example:x@far.example", `"q p"@far.example`, "alice+tag", "<alice@mta.example>"}},
		"broken":     {rejected, []string{"a@@b", "a b", "x@-.example", "", "nosuch@mta.example"}},
		"unserved":   {rejected, []string{"bird@old.example"}},
		"from":       {delivered, []string{"--from", "a@b.example", "alice"}},
		"spool-file": {delivered, []string{"--message", path(s, "router/"+only(t, s, "router"))}},
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, s, "route-"+name+".golden", exits(t, s, tt.code, "zmctl", append([]string{"route"}, tt.args...)...))
		})
	}
	if diff := cmp.Diff(before, everything(t, s)); diff != "" {
		t.Errorf("the command has changed something:\n%s", diff)
	}
	for _, args := range [][]string{{}, {"--config", "x", "alice"}, {"--host", "x", "alice"}, {"--queue", "--message", "x"}} {
		exits(t, s, 64, "zmctl", append([]string{"route"}, args...)...)
	}
	// Z8: zmctl check-config finds it, too.
	wantIn(t, zmctl(t, s, "check-config"), "routes:3:13: warning: ")
}

// candidate copies the system's configuration, with some files changed.
func candidate(t *testing.T, s *suite.Suite, name string, change map[string]func(text string) string) string {
	t.Helper()
	dir := filepath.Join(s.Dir, name)
	assert.Must(t, os.CopyFS(dir, os.DirFS(filepath.Dir(s.Config()))))
	conf := filepath.Join(dir, "zmailer.conf")
	write(t, conf, strings.ReplaceAll(read(t, conf), filepath.Dir(s.Config())+"/", dir+"/"))
	for file, f := range change {
		write(t, filepath.Join(dir, file), f(read(t, filepath.Join(dir, file))))
	}
	return dir
}

func replaced(old, with string) func(string) string {
	return func(text string) string { return strings.ReplaceAll(text, old, with) }
}

// zmctl route --queue routes all queued mail by another configuration and groups the differences;
// nothing is changed and nothing sent. An unusable configuration is reported with its line.
func TestRouteOfTheQueuePrintsDifferences(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, routeTables)
	const from = "bob@mta.example"
	submit(t, s, "Subject: 1\n\n", "-f", from, "u1@far.example", "u2@sub.far.example")
	submit(t, s, "Subject: 2\n\n", "-f", from, "sales@mta.example")
	submit(t, s, "Subject: 3\n\n", "-f", from, "support@mta.example", "x@elsewhere.example")
	submit(t, s, "Subject: 4\n\n", "-f", from, "members@mta.example")
	submit(t, s, "Subject: 5\n\n", "-f", from, "lost@mta.example")
	submit(t, s, "Subject: 6\n\n", "-f", from, "program@mta.example", "same@other.example")
	exits(t, s, 0, "router", "--once")
	submit(t, s, "Subject: 7\n\n", "-f", from, "late@far.example")
	next := candidate(t, s, "next", map[string]func(string) string{
		"routes": func(text string) string {
			return strings.ReplaceAll(text, "smtp!relay", "smtp!relay2") + "elsewhere.example error!5.7.1:not+20there+20any+20more\n.bücher.example lmtp2!box\n"
		},
		"aliases": func(text string) string {
			text = strings.ReplaceAll(text, "sales: alice, bob,", "sales: alice, carol,")
			text = strings.ReplaceAll(text, "support: bob", "support: nosuch")
			return strings.ReplaceAll(text, "conf/nosuch", "next/members")
		},
		"users": func(text string) string { return text + "carol\n" },
	})
	before := everything(t, s)
	compare := func(code int, config string, args ...string) string {
		t.Helper()
		return exits(t, s, code, "zmctl", append([]string{"route", "--queue", "--config", config}, args...)...)
	}
	golden(t, s, "route-queue.golden", compare(1, next))
	exits(t, s, 0, "zmctl", "route", "--queue")
	compare(0, candidate(t, s, "same", nil))
	var sum struct {
		Messages, Recipients, Differ int
		Groups                       []struct {
			Kind, From, To string
			Recipients     int
			NotServed      string `json:"not_served"`
		}
	}
	assert.Must(t, json.Unmarshal([]byte(compare(1, next, "--json", "--to", "*bücher.example")), &sum))
	if len(sum.Groups) != 1 || sum.Groups[0].Kind != "move" || sum.Groups[0].To != "lmtp2!box" || sum.Groups[0].NotServed == "" {
		t.Errorf("Z8: got %+v", sum) // channel lmtp2 has no clause
	}
	broken := candidate(t, s, "broken", map[string]func(string) string{"aliases": replaced("support: bob", "support bob")})
	wantIn(t, compare(78, broken), broken+"/aliases:4:")
	broken = candidate(t, s, "broken2", map[string]func(string) string{"scheduler.conf": replaced("interval=1s", "interval=soon")})
	wantIn(t, compare(78, broken), broken+"/scheduler.conf:2:")
	compare(78, filepath.Join(s.Dir, "none"))
	if diff := cmp.Diff(before, everything(t, s)); diff != "" {
		t.Errorf("the command has changed something:\n%s", diff)
	}
	// When the present configuration is broken, another one can still be tried.
	configure(t, s, "aliases", "support bob\n")
	wantIn(t, compare(1, next), "conf/aliases:1:", "smtp!relay2.example")
}
