package query

import (
	"bufio"
	"crypto/md5"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// zmailq does what ZMailer 3's mailq does with a connection to a scheduler, in its order and
// with its rules for what it reads: functions query2, readmq2cfp and _getline of
// scheduler/mailq.c. It gives what that program prints.
type zmailq struct {
	t       *testing.T
	dir     string // the postoffice
	verbose bool   // -v
	schedq  int    // how many -Q
	now     time.Time
	in      *bufio.Reader
	conn    net.Conn
	out     strings.Builder
}

// mailq is mailq with some options.
func (r *rig) mailq(t *testing.T, conn net.Conn, options string) string {
	t.Helper()
	q := &zmailq{t: t, dir: r.dir, verbose: strings.Contains(options, "v"), schedq: strings.Count(options, "Q"), now: time.Now(), in: bufio.NewReader(conn), conn: conn}
	if version := q.getline(); !strings.HasPrefix(version, "version zmailer 2.0") {
		t.Fatalf("version mismatch, input is %q", version)
	}
	q.query2()
	return q.out.String()
}

func (q *zmailq) getline() string {
	q.t.Helper()
	s, err := q.in.ReadString('\n')
	if err != nil {
		q.t.Fatalf("no input from scheduler: %v", err)
	}
	return strings.TrimSuffix(s, "\n")
}

// ask says a command and reads lines to the dot; false: the answer is no, which it prints.
func (q *zmailq) ask(format string, args ...any) (lines []string, ok bool) {
	q.t.Helper()
	fmt.Fprintf(q.conn, format+"\n", args...)
	if first := q.getline(); !strings.HasPrefix(first, "+") {
		fmt.Fprintf(&q.out, "Scheduler response: '%s'\n", first)
		return nil, false
	}
	for {
		l := q.getline()
		if l == "." {
			return lines, true
		}
		lines = append(lines, strings.TrimPrefix(l, "."))
	}
}

func (q *zmailq) query2() {
	q.t.Helper()
	challenge := q.getline()
	fmt.Fprintf(q.conn, "AUTH nobody %x\n", md5.Sum([]byte(challenge+"nobody")))
	if said := q.getline(); !strings.HasPrefix(said, "+") {
		fmt.Fprintf(&q.out, "User 'nobody' not accepted to server; err='%s'\n", said[1:])
		return
	}
	if q.schedq > 0 {
		lines, _ := q.ask("%s", []string{"", "SHOW QUEUE THREADS", "SHOW QUEUE SHORT", "SHOW SNMP", "SHOW COUNTERS"}[q.schedq])
		q.out.WriteString(strings.Join(lines, "\n") + "\n")
		fmt.Fprintf(q.conn, "QUIT\n")
		return
	}
	threads, ok := q.ask("SHOW QUEUE THREADS2")
	if !ok {
		return
	}
	type entry struct{ channel, host, line string }
	var entries []entry
	for _, l := range threads {
		channel, rest, _ := strings.Cut(l, "\t")
		host, _, _ := strings.Cut(rest, "\t")
		lines, ok := q.ask("SHOW THREAD %s %s", channel, host)
		if !ok {
			break
		}
		for i, l := range lines {
			if summary, ok := strings.CutPrefix(l, "#"); ok && i == 0 {
				q.out.WriteString(summary + "\n")
				continue
			}
			entries = append(entries, entry{channel, host, l})
		}
	}
	fmt.Fprintf(q.conn, "QUIT\n")
	var cfp *ctlfile
	for i, e := range entries {
		if i == 0 || e.channel != entries[i-1].channel || e.host != entries[i-1].host {
			fmt.Fprintf(&q.out, "%s/%s:\n", e.channel, e.host)
		}
		split := strings.SplitN(e.line, "\t", 10)
		if len(split) != 10 {
			q.t.Errorf("Communication error! Malformed data entry! %q", e.line)
			continue
		}
		q.entry(split, &cfp)
	}
}

// entry is the body of query2's last loop.
func (q *zmailq) entry(split []string, cfp **ctlfile) {
	first := atoi(split[1]) == 0
	expires := time.Unix(atoi(split[4]), 0).Sub(q.now).Round(time.Second)
	if first {
		fmt.Fprintf(&q.out, "\t%s: (", split[0])
	}
	if !q.verbose {
		if first {
			fmt.Fprintf(&q.out, "%s tries, expires in %v) %s\n", split[7], expires, split[9])
		}
		return
	}
	if first {
		*cfp = readmq2cfp(filepath.Join(q.dir, "transport", split[0]))
		fmt.Fprintf(&q.out, "%s tries, expires in %v)\n", split[7], expires)
		if *cfp != nil && (*cfp).logident != "" {
			fmt.Fprintf(&q.out, "\t  id\t%s\n", (*cfp).logident)
		}
		fmt.Fprintf(&q.out, "\t  from\t%s\n", split[2])
	}
	if *cfp != nil {
		s := (*cfp).contents
		at := int(atoi(split[3])) + 2
		if at > len(s) {
			fmt.Fprintf(&q.out, "\t\tto-ptr bad; split[3]='%s'\n", split[3])
			return
		}
		if s[at] == ' ' || s[at] >= '0' && s[at] <= '9' {
			at += 6 // _CFTAG_RCPTPIDSIZE
		}
		if (*cfp).format&2 != 0 || s[at] == ' ' || s[at] >= '0' && s[at] <= '9' {
			at += 4 // _CFTAG_RCPTDELAYSIZE
		}
		word := ""
		for range 3 { // channel, host, user
			n := strings.IndexAny(s[at:], " \t\x00")
			word = s[at : at+n]
			for at += n; s[at] == ' ' || s[at] == '\t'; at++ {
			}
		}
		fmt.Fprintf(&q.out, "\t  to\t%s\n", word)
	}
	for _, diag := range strings.FieldsFunc(split[9], func(r rune) bool { return r == '\r' }) {
		fmt.Fprintf(&q.out, "\t  diag\t%s\n", diag)
	}
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// ctlfile is what readmq2cfp has of a specification.
type ctlfile struct {
	contents, logident string
	format             int64
}

// readmq2cfp reads a specification as that function does: each line's first byte is its
// kind and its second is passed over, whatever it is; a newline becomes a NUL.
func readmq2cfp(name string) *ctlfile {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	c := &ctlfile{}
	for s := 0; s < len(b); s++ {
		if b[s] == '\n' {
			s++
		}
		if s+2 >= len(b) {
			break
		}
		kind := b[s]
		s += 2
		p := slices.Index(b[s:], '\n')
		if p < 0 {
			break
		}
		if kind == 'm' || kind == 'M' {
			for ; s+1 < len(b) && !(b[s] == '\n' && b[s+1] == '\n'); s++ {
			}
			b[s] = 0
			continue
		}
		b[s+p] = 0
		value := string(b[s : s+p])
		switch kind {
		case '@':
			c.format, _ = strconv.ParseInt(value, 0, 64)
		case 'l':
			c.logident = value
		}
		s += p
	}
	c.contents = string(b) + "\x00"
	return c
}

// waiting queues messages that wait each for something else: for their next attempt, because
// an operator holds or has frozen them, on channel hold, and for the next attempt of a message
// from the null sender.
func (r *rig) waiting() (names []string) {
	r.T.Helper()
	for i, lines := range [][]string{
		{"smtp slow.example defer.1@slow.example", "smtp other.example defer.4@other.example", "smtp slow.example defer.also@slow.example"},
		{"smtp slow.example ok.2@slow.example"},
		{"smtp other.example ok.3@other.example"},
		{"hold " + strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10) + " later@h.example"},
	} {
		name := r.put(fmt.Sprintf("s%d@a.example", i), lines...)
		switch i {
		case 1:
			r.Ordered(operations.Hold(r.Request(name), name, time.Time{}))(1)
		case 2:
			r.Ordered(operations.Freeze(r.Request(name), name, "person"))(1)
		}
		r.read(name)
		names = append(names, name)
	}
	return append(names, r.queue("<>", "smtp other.example defer.5@other.example"))
}

// Zm2, M39: ZMailer's mailq lists every message that is queued, whatever it waits for, each
// once for each of its threads, behind the line of its thread; -Q counts as many, -QQ and -QQQ
// are answered.
func TestZm2MailqListsEveryQueuedMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	names := r.waiting()
	text := r.mailq(t, r.connect(), "")
	for i, name := range names {
		want := 1
		if i == 0 {
			want = 2
		}
		assert.Equal(t, strings.Count(text, "\t"+name+": ("), want, "lines of %s", name)
	}
	for options, pattern := range map[string]string{
		"":    `(?m)^smtp/slow\.example/0  N=1 +R=2 +A=\d+ +(W=\d+s )?QA=\S+`,
		"Q":   `(?s)smtp/\*/0\n.*    smtp/slow\.example/0\t.*    hold/.*Kids: .*Msgs: +5 +Thrds: +\d+ +Rcpnts: +7 `,
		"QQ":  `(?s)^smtp/\*.*Kids: `,
		"QQQ": `^Kids: .*Uptime: \d+ sec\nMsgs in `,
	} {
		if got := r.mailq(t, r.connect(), options); !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("mailq -%s: got\n%s\nwant %s", options, got, pattern)
		}
	}
}

// Zm3, M40: ZMailer's mailq -v shows senders and recipients of every message, also of a thread
// that has but the second recipient of a message.
func TestZm3VerboseMailqShowsSendersAndRecipients(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	names := r.waiting()
	text := r.mailq(t, r.connect(), "v")
	const later = "\t  diag\t450 4.2.1 later\n"
	for want, of := range map[string]int{
		"\t  from\t<s0@a.example>\n\t  to\tdefer.1@slow.example\n" + later + "\t  to\tdefer.also@slow.example\n" + later: 0,
		"\t  from\t<s0@a.example>\n\t  to\tdefer.4@other.example\n" + later:                                              0,
		"\t  from\t<s1@a.example>\n\t  to\tok.2@slow.example\n":                                                          1,
		"\t  from\t<s2@a.example>\n\t  to\tok.3@other.example\n":                                                         2,
		"\t  from\t<s3@a.example>\n\t  to\tlater@h.example\n":                                                            3,
		"\t  from\t<>\n\t  to\tdefer.5@other.example\n":                                                                  4,
	} {
		if !regexp.MustCompile(`\t` + names[of] + `: \(\d+ tries, expires in \S+\)\n` + regexp.QuoteMeta(want)).MatchString(text) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}

// fromZmailer returns the first fenced block of the manual's page behind a heading.
func fromZmailer(t *testing.T, heading string) []string {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/coming-from-zmailer.md")
	assert.Must(t, err)
	_, rest, ok := strings.Cut(string(page), heading+"\n")
	_, rest, fence := strings.Cut(rest, "\n```\n")
	block, _, end := strings.Cut(rest, "\n```\n")
	if !ok || !fence || !end {
		t.Fatalf("no block behind %q", heading)
	}
	return strings.Split(block, "\n")
}

// Zm4: with the lines that the manual names, ZMailer's mailq gets its answers over TCP, as
// the user whose name and password it has by default.
func TestZm4MailqLogsInOverTCPWithTheLinesOfTheManual(t *testing.T) {
	t.Parallel()
	lines := fromZmailer(t, "### mailq over TCP")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "nobody:nobody:") || !strings.HasPrefix(lines[1], "root:") {
		t.Fatalf("the manual has %q", lines)
	}
	file := filepath.Join(t.TempDir(), "authfile")
	assert.Must(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	for authfile, pattern := range map[string]string{"": "^User 'nobody' not accepted", "PARAM authfile = " + file + "\n": `(?m)^\t\d\S*: \(`} {
		r := newRig(t, "PARAM mailqsock = 127.0.0.1:0\n"+authfile)
		r.queue("s@a.example", "smtp slow.example ok@slow.example")
		if got := r.mailq(t, r.connectTCP(), ""); !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("%q: got %q", authfile, got)
		}
	}
}

// Zm5: the lines of the manual make the hash directories that ZMailer's router expects.
func TestZm5HashDirectoriesOfTheManual(t *testing.T) {
	t.Parallel()
	f, dir := storetest.Disk(t)
	assert.Must(t, postoffice.Init(f))
	cmd := exec.Command("sh", "-ec", strings.Join(fromZmailer(t, "### Hash directories"), "\n"))
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "POSTOFFICE=" + dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, sub := range []string{"queue", "transport"} {
		for x := 'A'; x <= 'Z'; x++ {
			for y := 'A'; y <= 'Z'; y++ {
				if info, err := os.Stat(filepath.Join(dir, sub, string(x), string(y))); err != nil || !info.IsDir() {
					t.Fatalf("%s/%c/%c: %v", sub, x, y, err)
				}
			}
		}
	}
}
