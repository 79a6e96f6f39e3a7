package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

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
	r := newRig(t, "")
	r.queue("s@a.example", "smtp slow.example defer.1@slow.example", "smtp slow.example defer.2@slow.example")
	c := r.client(r.connect())
	// What ZMailer's mailq says first, any client that runs it.
	assert.Must(t, c.Login("nobody", "nobody"))
	for _, tt := range []struct {
		req  mailq.Request
		want string
	}{
		{mailq.Request{Kind: mailq.Threads2}, "smtp\tslow.example\tN=1\tR=2\tA=0\tW=T\tQA=T"},
		{mailq.Request{Kind: mailq.Threads}, "smtp/*/0\n    smtp/slow.example/0\t\tR=2   A=0  W=T QA=T\n" +
			"\tThreads:    1 Msgs:     2 Procs: N Idle: N Plim:   0 Flim:   0\n" +
			"Kids: N  Idle:  N  Msgs:   1  Thrds:   1  Rcpnts:    2  Uptime: T\nMsgs in 0 out 0 stored 1 Rcpnts in 0 out 0 stored 2"},
		{mailq.Request{Kind: mailq.Thread, Channel: "smtp", Host: "SLOW.example"},
			"#smtp/slow.example/0  N=1   R=2   A=0  W=T QA=T\n" +
				"FILE\t0\t<s@a.example>\tOFF\tUNIX\tUNIX\tUNIX\t1\tretry in T\t450 4.2.1 later\nFILE\t1\t<s@a.example>\tOFF\tUNIX\tUNIX\tUNIX\t1\tretry in T\t450 4.2.1 later"},
		{mailq.Request{Kind: mailq.Thread, Channel: "smtp", Host: "none.example"}, ""},
		{mailq.Request{Kind: mailq.Thread, Channel: "local"}, ""}, // two words and a blank
	} {
		got := timeless(r.asked(c, tt.req))
		got = regexp.MustCompile(`>\t\d+\t`).ReplaceAllString(got, ">\tOFF\t")
		assert.Equal(t, got, tt.want, tt.req.Kind)
	}
	thread := r.asked(c, mailq.Request{Kind: mailq.JSONThread, Channel: "smtp", Host: "slow.example"})
	var info mailq.ThreadInfo
	var w mailq.WaitingInfo
	if len(thread) != 3 || json.Unmarshal([]byte(thread[0]), &info) != nil || json.Unmarshal([]byte(thread[2]), &w) != nil {
		t.Fatalf("got %q", thread)
	}
	if info.Host != "slow.example" || info.Messages != 1 || info.Recipients != 2 || info.WaitSeconds < 1 || info.Oldest.IsZero() || info.Clause != "smtp/*" {
		t.Errorf("got %+v", info)
	}
	if w.Rcpt != "defer.2@slow.example" || w.State != "waiting" || w.Attempts != 1 || w.Answer != "450 4.2.1 later" || w.Next.IsZero() || w.Expires.IsZero() {
		t.Errorf("got %+v", w)
	}
	// Why does this message wait?
	var m mailq.MessageInfo
	assert.Must(t, json.Unmarshal([]byte(r.asked(c, mailq.Request{Kind: mailq.JSONMessage, ID: w.ID})[0]), &m))
	if m.ID != w.ID || m.Open != 2 || len(m.Why) != 1 || len(m.Recipients) != 2 {
		t.Errorf("got %+v", m)
	}
	if got := r.asked(c, mailq.Request{Kind: mailq.Quit}); got[0] != "Bye bye" {
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
	authfile := filepath.Join(t.TempDir(), "auth")
	assert.Must(t, os.WriteFile(authfile, []byte(roleFile), 0o600))
	r := newRig(t, "PARAM mailqsock = 127.0.0.1:0\nPARAM authfile = "+authfile+"\n")
	r.queue("s@a.example", "smtp slow.example defer@slow.example")
	may := map[string][]mailq.Kind{
		"":     nil,
		"none": {mailq.Counters},
		"snmp": {mailq.Counters, mailq.SNMP},
		"qq":   {mailq.Counters, mailq.Short, mailq.JSONStatus},
		"tt": {mailq.Counters, mailq.Threads, mailq.Threads2, mailq.Thread, mailq.JSONThreads, mailq.JSONThread, mailq.JSONMessage,
			mailq.JSONEvents},
		"etrn": {mailq.Counters, mailq.ETRN},
		"kill": {mailq.Counters, mailq.KillThread, mailq.KillMessage},
	}
	for k := mailq.Auth; k <= mailq.JSONEvents; k++ {
		may["all"] = append(may["all"], k)
	}
	for role, allowed := range may {
		t.Run("role="+role, func(t *testing.T) {
			c := r.client(r.connectTCP())
			if role != "" {
				assert.Must(t, c.Login(role, "p"))
			}
			for k := mailq.Auth; k <= mailq.JSONEvents; k++ {
				if k == mailq.Auth || k == mailq.Quit {
					continue
				}
				want := slices.Contains(allowed, k)
				if want && k == mailq.JSONEvents {
					continue // it does not end
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
	for _, who := range [][2]string{{"all", "wrong"}, {"far", "p"}, {"nobody", "nobody"}} {
		c := r.client(r.connectTCP())
		if err := c.Login(who[0], who[1]); !errors.Is(err, mailq.ErrRefused) {
			t.Errorf("%s: got %v", who[0], err)
		}
		if _, err := c.Ask(mailq.Request{Kind: mailq.Counters}, nil); !errors.Is(err, mailq.ErrRefused) {
			t.Errorf("%s is in: %v", who[0], err)
		}
	}
	assert.Equal(t, r.log.Count("msg=query-login-failed"), 3, "lines about logins that failed")
}

// M41: per thread and per message, silent or reported.
func TestKillGivesUpAThreadOrAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	var names []string
	for range 4 {
		names = append(names, r.queue("s@a.example", "smtp slow.example defer@slow.example", "smtp other.example defer@other.example"))
	}
	c := r.client(r.connect())
	r.asked(c, mailq.Request{Kind: mailq.KillThread, Channel: "smtp", Host: "slow.example"})
	r.asked(c, mailq.Request{Kind: mailq.KillMessage, ID: r.ID(names[0]).String(), Silent: true})
	for _, bad := range []string{"S1A1", "17", names[1] + "x", "../" + names[1]} {
		if _, err := c.Ask(mailq.Request{Kind: mailq.KillMessage, ID: bad}, nil); !errors.Is(err, mailq.ErrRefused) {
			t.Errorf("KILL MSG %s: %v", bad, err)
		}
	}
	for i, name := range names {
		s := r.Parse(name)
		killed := map[string]bool{"slow.example": true, "other.example": i == 0}
		reported := map[string]bool{"slow.example": true}
		for _, x := range s.Groups[0].Recipients {
			assert.Equal(t, x.Tag == workspec.TagFailed, killed[x.Host], "given up: %d at %s", i, x.Host)
		}
		for _, d := range s.Diagnostics {
			x := s.Groups[0].Recipients[slices.IndexFunc(s.Groups[0].Recipients, func(x workspec.Recipient) bool { return x.Offset == d.Recipient })]
			assert.Equal(t, !d.Reported, reported[x.Host], "the sender gets a report: %d at %s", i, x.Host)
		}
	}
	for _, words := range [][]string{{"host=slow.example", "recipients=4", "messages=4", "silent=false"}, {"recipients=1", "messages=1", "silent=true"}} {
		assert.Equal(t, r.log.Count(append(words, "msg=killed")...), 1, "lines with %q", words)
	}
}

// Clients that say nothing do not keep others from the query socket: the one that has been
// idle the longest makes room.
func TestDel9IdleClientsDoNotFillTheQuerySocket(t *testing.T) {
	t.Parallel()
	r := newRig(t, "PARAM mailqsock = 127.0.0.1:0\n")
	var idle []net.Conn
	for range maxClients {
		idle = append(idle, r.connectTCP())
		r.client(idle[len(idle)-1])
	}
	r.client(r.connectTCP()) // it gets a greeting
	r.log.Await(t, "msg=query-dropped")
	if _, err := io.ReadAll(idle[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the client that came first is still connected")
	}
}

// The administrator on this machine gets in though all places are taken by clients that
// are being served.
func TestDel9LocalAdministratorAlwaysGetsIn(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	for range maxClients {
		conn := r.connect()
		r.client(conn)
		// It listens for events: it is not idle.
		_, err := conn.Write([]byte("JSON EVENTS\n"))
		assert.Must(t, err)
		var first [2]byte
		if _, err := io.ReadFull(conn, first[:]); err != nil || first[0] != '+' {
			t.Fatal(string(first[:]), err)
		}
	}
	r.asked(r.client(r.connect()), mailq.Request{Kind: mailq.JSONStatus})
	r.log.Await(t, "msg=query-dropped")
}

// A new mailqsock holds without a new start: its socket takes the old one's place, who is
// connected stays so, and one that could not be made is tried again.
func TestQuerySocketFollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	path := filepath.Join(t.TempDir(), "query")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	defer taken.Close()
	tcp := taken.Addr().String()
	answers := func(c *mailq.Client) {
		t.Helper()
		assert.Equal(t, len(r.asked(c, mailq.Request{Kind: mailq.Threads2})), 0, "threads")
	}
	connect := func(network, address string) *mailq.Client {
		t.Helper()
		conn, err := net.Dial(network, address)
		assert.Must(t, err)
		return r.client(r.patient(conn))
	}
	r.server.Follow(path)
	r.log.Await(t, "msg=query-served", "socket="+path)
	old := connect("unix", path)
	answers(old)

	r.server.Follow("TCP:" + tcp)
	r.log.Await(t, "msg=query-not-served", tcp)
	answers(old)
	if _, err := os.Lstat(path); err == nil {
		t.Error("the old socket is there still")
	}
	assert.Must(t, taken.Close())
	r.server.Follow("TCP:" + tcp)
	r.log.Await(t, "msg=query-served", "socket="+tcp)
	connect("tcp", tcp)
	answers(old)
	answers(r.client(r.connect()))
}

// rubbish returns what somebody may send who means no good.
func rubbish(random *rand.Rand) []byte {
	verbs := []string{"AUTH", "SHOW", "QUEUE", "THREADS", "THREAD", "KILL", "MSG", "JSON", "MESSAGE", "EVENTS", "ETRN", "QUIT", "smtp", "h", "..", "*", "\x00", "%s", "S1A1", "4711-1"}
	var b bytes.Buffer
	for range random.IntN(30) {
		switch random.IntN(6) {
		case 0:
			b.WriteString(strings.Repeat(string(rune(random.IntN(256))), random.IntN(2*mailq.MaxLine)))
		case 1:
			for range random.IntN(200) {
				b.WriteByte(byte(random.IntN(256)))
			}
		default:
			for range random.IntN(6) {
				b.WriteString(verbs[random.IntN(len(verbs))] + " ")
			}
		}
		if random.IntN(4) > 0 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// FuzzQuerySocket: the scheduler goes on whatever is sent to its sockets, by a client with all
// rights and by one with none: rubbish, half lines, lines without end.
func FuzzQuerySocket(f *testing.F) {
	r := newRig(f, "PARAM mailqsock = 127.0.0.1:0\n")
	r.queue("s@a.example", "smtp slow.example defer@slow.example")
	f.Add([]byte("SHOW QUEUE SHORT\nKILL MSG 1\nJSON THREADS\nQUIT\n"), true)
	f.Add([]byte("KILL THREAD smtp \nETRN @\nSHOW THREAD  \n\r\n\xff\xfe"), true)
	f.Add(bytes.Repeat([]byte("x"), 10<<20), false)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		f.Add(rubbish(random), i%3 > 0)
	}
	f.Fuzz(func(t *testing.T, b []byte, local bool) {
		r.T = t
		connect := r.connectTCP
		if local {
			connect = r.connect
		}
		conn := connect()
		go func() {
			// It may hang up before it has read all.
			_, _ = conn.Write(append(b, "\nQUIT\n"...))
		}()
		if !bytes.Contains(bytes.ToUpper(b), []byte("EVENTS")) { // those do not end
			_, _ = io.Copy(io.Discard, conn)
		}
		_ = conn.Close()
		r.asked(r.client(r.connect()), mailq.Request{Kind: mailq.JSONStatus})
	})
}
