package engine

import (
	"bufio"
	"context"
	"crypto/md5"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// classic reads the socket as the mailq of ZMailer 2.99 and 3 does, by what that program
// expects of each line and of the specifications that it opens itself (mailq -v).
type classic struct {
	r   *rig
	in  *bufio.Reader
	out *strings.Builder
	say func(format string, args ...any)
}

// line is one line without its end.
func (c *classic) line() string {
	c.r.T.Helper()
	s, err := c.in.ReadString('\n')
	if err != nil {
		c.r.T.Fatal(err)
	}
	return strings.TrimSuffix(s, "\n")
}

// block is the lines of an answer, up to the dot.
func (c *classic) block(format string, args ...any) (list []string) {
	c.r.T.Helper()
	c.say(format+"\n", args...)
	if first := c.line(); !strings.HasPrefix(first, "+") {
		c.r.T.Fatalf("%s: the answer is %q", format, first)
	}
	for {
		l := c.line()
		if l == "." {
			return list
		}
		list = append(list, strings.TrimPrefix(l, "."))
	}
}

// login gives what anybody's mailq gives.
func (c *classic) login() {
	c.r.T.Helper()
	if v := c.line(); v != "version zmailer 2.0" {
		c.r.T.Fatalf("the version is %q", v)
	}
	c.say("AUTH nobody %x\n", md5.Sum([]byte(c.line()+"nobody")))
	if said := c.line(); !strings.HasPrefix(said, "+") {
		c.r.T.Fatalf("the login: %q", said)
	}
}

// queue prints what mailq -v prints: each thread, each file once, and of its specification
// those that the listing names by the offsets of their lines.
func (c *classic) queue() {
	c.r.T.Helper()
	for _, l := range c.block("SHOW QUEUE THREADS2") {
		channel, rest, _ := strings.Cut(l, "\t")
		host, _, _ := strings.Cut(rest, "\t")
		file := ""
		fmt.Fprintf(c.out, "%s/%s:\n", channel, host)
		for _, e := range c.block("SHOW THREAD %s %s", channel, host) {
			if strings.HasPrefix(e, "#") {
				continue // the thread's own line
			}
			f := strings.SplitN(e, "\t", 10)
			if len(f) != 10 {
				c.r.T.Fatalf("malformed: %q", e)
			}
			// The first of a file in a thread has the number 0: by it the file is opened.
			if f[1] == "0" {
				file = c.r.Read("transport/" + f[0])
				expires, err := strconv.ParseInt(f[4], 10, 64)
				if left := time.Until(time.Unix(expires, 0)); err != nil || left < time.Hour || left > 10*24*time.Hour {
					c.r.T.Errorf("it expires in %v: %q", left, e)
				}
				fmt.Fprintf(c.out, "\tFILE: (%s tries)\n\t  from\t%s\n", f[7], f[2])
			}
			at, err := strconv.Atoi(f[3])
			if err != nil || at+2 > len(file) {
				c.r.T.Fatalf("no such offset: %q", e)
			}
			fmt.Fprintf(c.out, "\t  to\t%s\n", classicRecipient(file[at:]))
			for _, d := range strings.FieldsFunc(f[9], func(r rune) bool { return r == '\r' }) {
				fmt.Fprintf(c.out, "\t  diag\t%s\n", d)
			}
		}
	}
}

// classicRecipient takes the address out of an r line: behind its two letters the slots of
// lock and delay, then channel and host.
func classicRecipient(line string) string {
	line, _, _ = strings.Cut(line[2:], "\n")
	const lock, delay = 6, 4
	line = line[lock+delay:]
	f := strings.Fields(line)
	return f[2]
}

// recordedAll waits until so many outcomes are in the specifications, however many were
// written together.
func (r *rig) recordedAll(n int) {
	r.T.Helper()
	outcomes := regexp.MustCompile(`msg=recorded .*outcomes=(\d+)`)
	deadline, tick := time.NewTimer(patience), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		sum := 0
		for _, m := range outcomes.FindAllStringSubmatch(r.events.String(), -1) {
			k, err := strconv.Atoi(m[1])
			r.must(err)
			sum += k
		}
		if sum >= n {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			r.T.Fatalf("%d of %d outcomes are recorded", sum, n)
		}
	}
}

// M39, M40: ZMailer's own mailq finds in our answers what it wants, also of a thread that has
// but the second recipient of a message, of a host without a name, and in mailq -Q, -QQ and
// -QQQ. docs/mailq.md has the protocol.
func TestMailqOfZMailerReadsTheSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, nil)
	r.Queue("s@a.example", storetest.Rcpt{Line: "smtp slow.example defer9.1@slow.example"}, storetest.Rcpt{Line: "smtp other.example defer9.2@other.example"},
		storetest.Rcpt{Line: "smtp slow.example defer9.3@slow.example"})
	r.Queue("", storetest.Rcpt{Line: "smtp other.example defer9.4@other.example"})
	r.start()
	r.recordedAll(4)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	open := func() *classic {
		conn, err := postoffice.DialSocket(ctx, filepath.Join(r.dir, postoffice.QuerySocket))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		c := &classic{r: r, in: bufio.NewReader(conn), out: &strings.Builder{}, say: func(format string, args ...any) {
			if _, err := fmt.Fprintf(conn, format, args...); err != nil {
				t.Fatal(err)
			}
		}}
		c.login()
		return c
	}
	c := open()
	c.queue()
	want := map[string]string{
		"smtp/slow.example:":  "\tFILE: (1 tries)\n\t  from\t<s@a.example>\n\t  to\tdefer9.1@slow.example\n\t  diag\t450 4.2.1 later\n\t  to\tdefer9.3@slow.example\n\t  diag\t450 4.2.1 later\n",
		"smtp/other.example:": "\tFILE: (1 tries)\n\t  from\t<s@a.example>\n\t  to\tdefer9.2@other.example\n\t  diag\t450 4.2.1 later\n",
	}
	for head, text := range want {
		if !strings.Contains(c.out.String(), head+"\n") || !strings.Contains(c.out.String(), text) {
			t.Errorf("want %s\n%s\nin\n%s", head, text, c.out)
		}
	}
	if null := "\t  from\t<>\n\t  to\tdefer9.4@other.example\n"; !strings.Contains(c.out.String(), null) {
		t.Errorf("want %q in\n%s", null, c.out)
	}
	// A host without a name is two words and a blank.
	if lines := c.block("SHOW THREAD local "); len(lines) != 0 {
		t.Errorf("got %q", lines)
	}
	for request, pattern := range map[string]string{
		"SHOW QUEUE THREADS": `(?s)smtp/\*/0\n.*    smtp/slow\.example/0\t+R=2 +A=1 +W=\S+ +QA=\S+\n.*Kids: .*Msgs in 2 out 0 stored 2 Rcpnts in 4 out 0 stored 4$`,
		"SHOW QUEUE SHORT":   `(?s)^smtp/\*.*Kids: `,
		"SHOW SNMP":          `^Kids: .*Uptime: \d+ sec\nMsgs in 2 out 0 stored 2 Rcpnts in 4 out 0 stored 4$`,
	} {
		c := open() // mailq asks one thing each time
		if got := strings.Join(c.block("%s", request), "\n"); !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("%s: got\n%s\nwant %s", request, got, pattern)
		}
	}
}
