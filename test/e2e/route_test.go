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

	"zmailer/test/peer"
	"zmailer/test/suite"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares what a program said with a file. Directories, spool IDs, inodes, uids
// and logins are not the same everywhere, nor are widths of columns that hold them;
// examples come in the order of the disk.
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
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// routeTables are what zmctl route is tried on: what a new user writes, and what goes
// wrong.
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

// Z8 and what-if: every step for addresses as people write them, down to the clause that
// serves them; a route to a channel that nothing serves is told, and the exit code says
// it, too. Nothing is changed by asking.
func TestRouteTellsEveryStep(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, routeTables)
	submit(t, s, "From: bob@mta.example\nTo: Alice <alice@mta.example>, sales\nSubject: x\n\n", "-t", "-f", "bob@mta.example")
	before := everything(t, s)
	const delivered, rejected, later = 0, 1, 75
	tests := map[string]struct {
		args []string
		code int
	}{
		"alias":       {[]string{"sales"}, delivered},
		"loop":        {[]string{"one@mta.example"}, rejected},
		"copy":        {[]string{"keep"}, delivered},
		"include":     {[]string{"members"}, delivered},
		"forward":     {[]string{"fred"}, delivered},
		"lost":        {[]string{"lost"}, later},
		"program":     {[]string{"program", "drop"}, rejected},
		"domains":     {[]string{"user@virt.example", "other@VIRT.example", "x@sub.far.example", "zoë@BÜCHER.example", "x@[192.0.2.3]"}, delivered},
		"odd":         {[]string{"@one.example,@two.example:x@far.example", `"q p"@far.example`, "alice+tag", "<alice@mta.example>"}, delivered},
		"broken":      {[]string{"a@@b", "a b", "x@-.example", "", "nosuch@mta.example"}, rejected},
		"unserved":    {[]string{"bird@old.example"}, rejected},
		"closed":      {[]string{"bird@closed.example"}, rejected},
		"from":        {[]string{"--from", "a@b.example", "alice"}, delivered},
		"null-sender": {[]string{"--from", "<>", "alice"}, delivered},
		"spool-file":  {[]string{"--message", path(s, "router/"+only(t, s, "router"))}, delivered},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			said, code := call(t, s, "zmctl", append([]string{"route"}, tt.args...)...)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			golden(t, s, "route-"+name+".golden", said)
		})
	}
	if diff := cmp.Diff(before, everything(t, s)); diff != "" {
		t.Errorf("asking has changed something:\n%s", diff)
	}
	for _, args := range [][]string{{}, {"--config", "x", "alice"}, {"--host", "x", "alice"}, {"--queue", "--message", "x"}} {
		if said, code := call(t, s, "zmctl", append([]string{"route"}, args...)...); code != 64 {
			t.Errorf("zmctl route %q: exit code %d: %s", args, code, said)
		}
	}
	// Z8: nor is it left to be found by asking.
	wantIn(t, zmctl(t, s, "check-config"), "routes:3:13: warning: no clause of scheduler.conf with a command serves channel pigeon")
}

// candidate copies the system's configuration, with some files changed.
func candidate(t *testing.T, s *suite.Suite, name string, change map[string]func(text string) string) string {
	t.Helper()
	dir := filepath.Join(s.Dir, name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Dir(s.Config()))); err != nil {
		t.Fatal(err)
	}
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

// What-if: all queued mail by another configuration, the differences in groups; nothing
// is changed and nothing sent. A configuration that cannot be used is told with its line.
func TestRouteOfTheQueueTellsDifferences(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, routeTables)
	const from = "bob@mta.example"
	submit(t, s, "Subject: 1\n\n", "-f", from, "u1@far.example", "u2@sub.far.example")
	submit(t, s, "Subject: 2\n\n", "-f", from, "sales@mta.example")
	submit(t, s, "Subject: 3\n\n", "-f", from, "support@mta.example", "x@elsewhere.example")
	submit(t, s, "Subject: 4\n\n", "-f", from, "members@mta.example")
	submit(t, s, "Subject: 5\n\n", "-f", from, "lost@mta.example")
	submit(t, s, "Subject: 6\n\n", "-f", from, "program@mta.example", "same@other.example")
	if said, code := call(t, s, "router", "--once"); code != 0 {
		t.Fatalf("router --once: %s", said)
	}
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
	said, code := call(t, s, "zmctl", "route", "--queue", "--config", next)
	if code != 1 {
		t.Errorf("with differences: exit code %d", code)
	}
	golden(t, s, "route-queue.golden", said)

	said, code = call(t, s, "zmctl", "route", "--queue", "--config", next, "--to", "*far.example", "--state", "queued")
	if code != 1 {
		t.Errorf("of some recipients: exit code %d", code)
	}
	golden(t, s, "route-queue-some.golden", said)

	if said, code = call(t, s, "zmctl", "route", "--queue"); code != 0 || !strings.Contains(said, ", 0 would differ") {
		t.Errorf("by the present configuration: exit code %d: %s", code, said)
	}
	same := candidate(t, s, "same", nil)
	if said, code = call(t, s, "zmctl", "route", "--queue", "--config", same); code != 0 || !strings.Contains(said, "7 messages") || !strings.Contains(said, ", 0 would differ") {
		t.Errorf("by a copy of it: exit code %d: %s", code, said)
	}
	var sum struct {
		Messages, Recipients, Differ int
		Groups                       []struct {
			Kind, From, To string
			Recipients     int
			NotServed      string `json:"not_served"`
		}
	}
	said, code = call(t, s, "zmctl", "route", "--queue", "--config", next, "--json", "--to", "*bücher.example")
	if err := json.Unmarshal([]byte(said), &sum); err != nil || code != 1 {
		t.Fatalf("exit code %d: %v: %s", code, err, said)
	}
	if len(sum.Groups) != 1 || sum.Groups[0].Kind != "move" || sum.Groups[0].To != "lmtp2!box" || sum.Groups[0].NotServed == "" {
		t.Errorf("Z8: got %+v", sum) // channel lmtp2 has no clause
	}
	broken := candidate(t, s, "broken", map[string]func(string) string{"aliases": replaced("support: bob", "support bob")})
	if said, code = call(t, s, "zmctl", "route", "--queue", "--config", broken); code != 78 || !strings.Contains(said, broken+"/aliases:4:") {
		t.Errorf("a bad table: exit code %d: %s", code, said)
	}
	broken = candidate(t, s, "broken2", map[string]func(string) string{"scheduler.conf": replaced("interval=1s", "interval=soon")})
	if said, code = call(t, s, "zmctl", "route", "--queue", "--config", broken); code != 78 || !strings.Contains(said, broken+"/scheduler.conf:2:") {
		t.Errorf("a bad scheduler.conf: exit code %d: %s", code, said)
	}
	if said, code = call(t, s, "zmctl", "route", "--queue", "--config", filepath.Join(s.Dir, "none")); code != 78 || !strings.Contains(said, "none") {
		t.Errorf("none: exit code %d: %s", code, said)
	}
	if diff := cmp.Diff(before, everything(t, s)); diff != "" {
		t.Errorf("asking has changed something:\n%s", diff)
	}
	// A present configuration that is broken is why people try another.
	configure(t, s, "aliases", "support bob\n")
	said, code = call(t, s, "zmctl", "route", "--queue", "--config", next)
	if code != 1 {
		t.Errorf("beside a broken one: exit code %d", code)
	}
	wantIn(t, said, "conf/aliases:1:", "the present configuration cannot be used", "smtp!relay.example → smtp!relay2.example   3 recipients in 2 messages")
}

// The queue may be compared while the daemons work on it: files that go away have moved
// on, no mail is stopped, and none is lost.
func TestRouteOfTheQueueWhileItMoves(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	next := candidate(t, s, "next", map[string]func(string) string{"routes": replaced("smtp!", "smtp!elsewhere-")})
	const n = 30
	asked := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		var err error
		for ended := false; err == nil && !ended; {
			select {
			case <-done:
				ended = true // once more, of what is left
			default:
			}
			cmd := s.Command("zmctl", "route", "--queue", "--config", next, "--json")
			out, rerr := cmd.Output()
			if code := cmd.ProcessState.ExitCode(); code != 0 && code != 1 || !json.Valid(out) {
				err = fmt.Errorf("exit code %d: %w: %s", code, rerr, out)
			}
		}
		asked <- err
	}()
	for i := range n {
		submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", fmt.Sprintf("u%d@sink.example", i))
	}
	if err := sink.Wait(n, patience); err != nil {
		t.Error(err)
	}
	awaitEmpty(t, s)
	close(done)
	if err := <-asked; err != nil {
		t.Error(err)
	}
	if got := len(sink.Messages()); got != n {
		t.Errorf("%d messages have come, want %d", got, n)
	}
}
