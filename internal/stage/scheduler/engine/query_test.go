package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

// dial connects to the query socket as the postoffice's owner.
func (r *rig) dial() (*mailq.Client, net.Conn) {
	r.T.Helper()
	r.wait(r.starts, "msg=query-served", postoffice.QuerySocket)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := postoffice.DialSocket(ctx, filepath.Join(r.dir, postoffice.QuerySocket))
	if err != nil {
		r.T.Fatal(err)
	}
	return r.client(conn)
}

// dialTCP connects to the socket of PARAM mailqsock.
func (r *rig) dialTCP() (*mailq.Client, net.Conn) {
	r.T.Helper()
	r.wait(1, "msg=query-served", "socket=127.0.0.1:")
	found := regexp.MustCompile(`query-served socket=(127\S+)`).FindStringSubmatch(r.events.String())
	conn, err := net.Dial("tcp", found[1])
	if err != nil {
		r.T.Fatal(err)
	}
	return r.client(conn)
}

func (r *rig) client(conn net.Conn) (*mailq.Client, net.Conn) {
	r.T.Helper()
	r.T.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		r.T.Fatal(err)
	}
	c, err := mailq.NewClient(conn)
	if err != nil {
		r.T.Fatal(err)
	}
	return c, conn
}

// asked asks and gives the lines of the answer, or the answer itself.
func askedLines(t testing.TB, c *mailq.Client, req mailq.Request) []string {
	t.Helper()
	list := []string{}
	first, err := c.Ask(req, func(line string) error {
		list = append(list, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if "+"+first != mailq.Follows {
		return []string{first}
	}
	return list
}

// status asks for JSON STATUS.
func (r *rig) status(c *mailq.Client) (s mailq.StatusInfo) {
	r.T.Helper()
	if err := json.Unmarshal([]byte(askedLines(r.T, c, mailq.Request{Kind: mailq.JSONStatus})[0]), &s); err != nil {
		r.T.Fatal(err)
	}
	return s
}

// timeless takes times and numbers of processes and files out of an answer.
func timeless(lines []string) string {
	text := strings.Join(lines, "\n")
	for _, p := range [][2]string{
		{`P=\d+`, "P=PID"}, {`(QA|W)=\w+`, "$1=T"}, {`\t\d{10}\b`, "\tUNIX"}, {`(?m)^\d+(-\d+)?\t`, "FILE\t"}, {`retry in \w+`, "retry in T"},
		{`Uptime: \w+`, "Uptime: T"}, {`S\d+A\w+`, "ID"}, {`"name":"[^"]*"`, `"name":"FILE"`}, {`"\d{4}-\d\d-\d\dT[^"]*"`, `"TIME"`},
		{`("(?:wait_seconds|oldest_seconds|pid)"):\d+`, "$1:0"}, {`Kids: \d+  Idle:  \d+`, "Kids: N  Idle:  N"}, {`Procs: +\d+ Idle: +\d+`, "Procs: N Idle: N"},
	} {
		text = regexp.MustCompile(p[0]).ReplaceAllString(text, p[1])
	}
	return text
}

// M39, Z25: per thread and per message, with counts, ages and the last answer, as ZMailer's
// mailq reads it and as JSON.
func TestQueueIsShownOnTheSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, nil)
	r.Queue("s@a.example", storetest.Rcpt{Line: "smtp slow.example defer9.1@slow.example"}, storetest.Rcpt{Line: "smtp slow.example defer9.2@slow.example"})
	r.start()
	r.wait(2, "msg=deferred")
	r.wait(1, "msg=recorded")
	c, _ := r.dial()
	// What ZMailer's mailq says first, any client that runs it.
	if err := c.Login("nobody", "nobody"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		req  mailq.Request
		want string
	}{
		{mailq.Request{Kind: mailq.Threads2}, "smtp\tslow.example\tN=1\tR=2\tA=1\tW=T\tQA=T"},
		{mailq.Request{Kind: mailq.Threads}, "smtp/*/0\n    smtp/slow.example/0\t\tR=2   A=1  W=T QA=T\n" +
			"\tThreads:    1 Msgs:     2 Procs: N Idle: N Plim:   0 Flim:   0\n" +
			"Kids: N  Idle:  N  Msgs:   1  Thrds:   1  Rcpnts:    2  Uptime: T\nMsgs in 1 out 0 stored 1 Rcpnts in 2 out 0 stored 2"},
		{mailq.Request{Kind: mailq.Thread, Channel: "smtp", Host: "SLOW.example"},
			"#smtp/slow.example/0  N=1   R=2   A=1  W=T QA=T\n" +
				"FILE\t0\t<s@a.example>\tOFF\tUNIX\tUNIX\tUNIX\t1\tretry in T\t450 4.2.1 later\nFILE\t1\t<s@a.example>\tOFF\tUNIX\tUNIX\tUNIX\t1\tretry in T\t450 4.2.1 later"},
		{mailq.Request{Kind: mailq.Thread, Channel: "smtp", Host: "none.example"}, ""},
	} {
		got := timeless(askedLines(t, c, tt.req))
		got = regexp.MustCompile(`>\t\d+\t`).ReplaceAllString(got, ">\tOFF\t")
		if got != tt.want {
			t.Errorf("%v: got\n%s\nwant\n%s", tt.req.Kind, got, tt.want)
		}
	}
	thread := askedLines(t, c, mailq.Request{Kind: mailq.JSONThread, Channel: "smtp", Host: "slow.example"})
	var info mailq.ThreadInfo
	var w mailq.WaitingInfo
	if len(thread) != 3 || json.Unmarshal([]byte(thread[0]), &info) != nil || json.Unmarshal([]byte(thread[2]), &w) != nil {
		t.Fatalf("got %q", thread)
	}
	if info.Host != "slow.example" || info.Messages != 1 || info.Recipients != 2 || info.WaitSeconds < 1 || info.Oldest.IsZero() || info.Clause != "smtp/*" {
		t.Errorf("got %+v", info)
	}
	if w.Rcpt != "defer9.2@slow.example" || w.State != "waiting" || w.Attempts != 1 || w.Answer != "450 4.2.1 later" || w.Next.IsZero() || w.Expires.IsZero() {
		t.Errorf("got %+v", w)
	}
	// Why does this message wait?
	var m mailq.MessageInfo
	if err := json.Unmarshal([]byte(askedLines(t, c, mailq.Request{Kind: mailq.JSONMessage, ID: w.ID})[0]), &m); err != nil {
		t.Fatal(err)
	}
	if m.ID != w.ID || m.Open != 2 || len(m.Why) != 1 || len(m.Recipients) != 2 || !strings.Contains(m.Why[0].Text, "next attempt") {
		t.Errorf("got %+v", m)
	}
	if got := askedLines(t, c, mailq.Request{Kind: mailq.Quit}); got[0] != "Bye bye" {
		t.Errorf("got %q", got)
	}
}

// roleFile has a user for each right.
const roleFile = `none:p:NONE:
snmp:p:SNMP:[127.0.0.1]
qq:p:QQ:
tt:p:TT:[127.0.0.0]/8
etrn:p:ETRN:
kill:p:KILL:
all:p:ALL:
far:p:ALL:[192.0.2.0]/24
`

// M40: each role with each command.
func TestRolesAndCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t, "PARAM mailqsock = 127.0.0.1:0\n"+scriptConf("", ""), 0, nil)
	r.conf.AuthFile = filepath.Join(r.dir, "auth")
	if err := os.WriteFile(r.conf.AuthFile, []byte(roleFile), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Queue("s@a.example", storetest.Rcpt{Line: "smtp slow.example defer9@slow.example"})
	r.start()
	r.wait(1, "msg=recorded")
	may := map[string][]mailq.Kind{
		"":     nil,
		"none": {mailq.Counters},
		"snmp": {mailq.Counters, mailq.SNMP},
		"qq":   {mailq.Counters, mailq.Short, mailq.JSONStatus},
		"tt": {mailq.Counters, mailq.Threads, mailq.Threads2, mailq.Thread, mailq.JSONThreads, mailq.JSONThread, mailq.JSONMessage,
			mailq.JSONEvents},
		"etrn": {mailq.Counters, mailq.ETRN},
		"kill": {mailq.Counters, mailq.KillThread, mailq.KillMessage},
		"all":  mailq.Kinds(),
	}
	for role, allowed := range may {
		t.Run("role="+role, func(t *testing.T) {
			r.T = t
			c, _ := r.dialTCP()
			if role != "" {
				if err := c.Login(role, "p"); err != nil {
					t.Fatal(err)
				}
			}
			for _, k := range mailq.Kinds() {
				if k == mailq.Auth || k == mailq.Quit {
					continue
				}
				want := slices.Contains(allowed, k)
				if want && k == mailq.JSONEvents {
					continue // it does not end; TestEvents has it
				}
				// What is not there, so that nothing is lost.
				_, err := c.Ask(mailq.Request{Kind: k, Channel: "smtp", Host: "none.example", ID: "1"}, nil)
				refused := err != nil && (strings.Contains(err.Error(), "access control") || strings.Contains(err.Error(), "AUTHENTICATE"))
				if err != nil && !errors.Is(err, mailq.ErrRefused) {
					t.Fatalf("%v: %v", k, err)
				}
				if refused == want {
					t.Errorf("%v: got %v, want allowed %v", k, err, want)
				}
			}
		})
	}
	r.T = t
	for _, who := range [][2]string{{"all", "wrong"}, {"far", "p"}, {"nobody", "nobody"}} {
		c, _ := r.dialTCP()
		if err := c.Login(who[0], who[1]); !errors.Is(err, mailq.ErrRefused) {
			t.Errorf("%s: got %v", who[0], err)
		}
		if _, err := c.Ask(mailq.Request{Kind: mailq.Counters}, nil); !errors.Is(err, mailq.ErrRefused) {
			t.Errorf("%s is in: %v", who[0], err)
		}
	}
	r.wait(3, "msg=query-login-failed")
}

// M14: by a request to the scheduler and by a special file.
func TestETRNBySocketAndByFile(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, nil)
	r.Queue("s@a.example", storetest.Rcpt{Line: "smtp slow.example defer2@slow.example"}, storetest.Rcpt{Line: "smtp other.example defer9@other.example"})
	r.start()
	r.wait(2, "msg=deferred")
	r.wait(2, "msg=recorded")
	c, _ := r.dial()
	if got := askedLines(t, c, mailq.Request{Kind: mailq.ETRN, Host: "none.example"})[0]; !strings.Contains(got, "didn't") {
		t.Errorf("got %q", got)
	}
	if got := askedLines(t, c, mailq.Request{Kind: mailq.ETRN, Host: "Slow.Example"})[0]; got != "OK; an ETRN started something." {
		t.Errorf("got %q", got)
	}
	r.wait(3, "msg=recorded")
	file := filepath.Join(r.dir, "public", "T1")
	if err := os.WriteFile(file, []byte("@ 0x00000003\ni 4711\nT slow.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file, filepath.Join(r.dir, "transport", "4711")); err != nil {
		t.Fatal(err)
	}
	r.wait(1, "msg=etrn", "host=slow.example", "name=4711")
	r.wait(1, "msg=delivered", "slow.example")
	if n, _ := r.events.count("msg=deferred", "other.example"); n != 1 {
		t.Errorf("another host was tried %d times", n)
	}
}

// M41: per thread and per message, silent or reported.
func TestKillGivesUpAThreadOrAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, nil)
	names := []string{}
	for i := range 4 {
		names = append(names, r.Queue("s@a.example", storetest.Rcpt{Line: fmt.Sprintf("smtp slow.example defer9.%d@slow.example", i)},
			storetest.Rcpt{Line: fmt.Sprintf("smtp other.example defer9.%d@other.example", i)}))
	}
	r.start()
	r.wait(8, "msg=recorded")
	c, _ := r.dial()
	if got := askedLines(t, c, mailq.Request{Kind: mailq.KillThread, Channel: "smtp", Host: "slow.example"})[0]; got != "OK; 4 recipients of 4 messages expired" {
		t.Errorf("got %q", got)
	}
	info, err := r.PO.Queue.StatMessage(names[0])
	if err != nil {
		t.Fatal(err)
	}
	id := postoffice.IDOf(info).String()
	if got := askedLines(t, c, mailq.Request{Kind: mailq.KillMessage, ID: id, Silent: true})[0]; got != "OK; 1 recipients of 1 messages expired" {
		t.Errorf("got %q", got)
	}
	for _, bad := range []string{"S1A1", "17", names[1] + "x", "../" + names[1]} {
		if _, err := c.Ask(mailq.Request{Kind: mailq.KillMessage, ID: bad}, nil); !errors.Is(err, mailq.ErrRefused) {
			t.Errorf("KILL MSG %s: %v", bad, err)
		}
	}
	r.wait(1, "msg=finished", "name="+names[0])
	for _, name := range names[1:] {
		for _, rc := range r.Parse(name).Groups[0].Recipients {
			if want := map[string]workspec.Tag{"slow.example": workspec.TagFailed, "other.example": workspec.TagToDo}[rc.Host]; rc.Tag != want {
				t.Errorf("%s %s: tag %q, want %q", name, rc.Host, rc.Tag, want)
			}
		}
	}
	// The first one's sender hears of the thread's end, not of the silent one.
	reports := r.Reports()
	if len(reports) != 1 || len(storetest.Fields(reports[0], "Action")) != 1 || !strings.Contains(reports[0], "slow.example") {
		t.Errorf("got reports %q", reports)
	}
	r.wait(1, "msg=killed", "host=slow.example", "recipients=4")
}
