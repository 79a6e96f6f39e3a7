package mailq

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "write golden files anew")

// M40, and what ZMailer's mailq computes: MD5 of the whole second line and the password.
func TestAuthenticatorIsTheDigestOfChallengeAndPassword(t *testing.T) {
	c := Challenge("1090000000.123456.1")
	if c != "220 MAILQ-V2-CHALLENGE: 1090000000.123456.1" {
		t.Fatalf("challenge %q", c)
	}
	// printf '%s%s' "220 MAILQ-V2-CHALLENGE: 1090000000.123456.1" "nobody" | md5sum
	const want = "e082c8ccb82ac069c376d459f1103ac8"
	assert.Equal(t, Authenticator(c, "nobody"), want)
	if !Proves(c, "nobody", strings.ToUpper(want)) || Proves(c, "Nobody", want) || Proves(c, "nobody", "") {
		t.Error("Proves is wrong")
	}
}

func TestRequestsAreReadAndWritten(t *testing.T) {
	tests := map[string]struct {
		line string
		want Request
	}{
		"login":                 {"AUTH joe 00ff", Request{Kind: Auth, User: "joe", Digest: "00ff"}},
		"short":                 {"SHOW QUEUE SHORT", Request{Kind: Short}},
		"threads":               {"show queue threads", Request{Kind: Threads}},
		"threads for programs":  {"SHOW QUEUE THREADS2\r", Request{Kind: Threads2}},
		"snmp":                  {"SHOW SNMP", Request{Kind: SNMP}},
		"counters":              {"SHOW\t COUNTERS", Request{Kind: Counters}},
		"thread":                {"SHOW THREAD smtp a.example", Request{Kind: Thread, Channel: "smtp", Host: "a.example"}},
		"thread without a host": {"SHOW THREAD local ", Request{Kind: Thread, Channel: "local"}},
		"etrn":                  {"ETRN @a.example", Request{Kind: ETRN, Host: "@a.example"}},
		"kill a thread":         {"KILL THREAD smtp a.example", Request{Kind: KillThread, Channel: "smtp", Host: "a.example"}},
		"kill without a word":   {"KILL THREAD smtp a.example silent", Request{Kind: KillThread, Channel: "smtp", Host: "a.example", Silent: true}},
		"kill a message":        {"KILL MSG S1A", Request{Kind: KillMessage, ID: "S1A"}},
		"quit":                  {"quit", Request{Kind: Quit}},
		"exit":                  {"EXIT", Request{Kind: Quit}},
		"json message":          {"JSON MESSAGE S1A", Request{Kind: JSONMessage, ID: "S1A"}},
		"events":                {"JSON EVENTS", Request{Kind: JSONEvents}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseRequest([]byte(tt.line))
			if err != nil || got != tt.want {
				t.Fatalf("got %+v, %v; want %+v", got, err, tt.want)
			}
			line := AppendRequest(nil, got)
			if again, err := ParseRequest(line[:len(line)-1]); err != nil || again != got {
				t.Errorf("written as %q it is %+v, %v", line, again, err)
			}
		})
	}
	for _, line := range []string{"", " ", "SHOW", "SHOW QUEUE", "SHOW QUEUE LONG", "AUTH joe", "AUTH a b c", "ETRN", "ETRN a b",
		"KILL", "KILL MSG", "KILL THREAD", "SHOW THREAD", "SHOW THREAD a b c", "SHOW SNMP x", "QUIT now", "SHOW SNMP\x00", "JSON", "\xff"} {
		if r, err := ParseRequest([]byte(line)); !errors.Is(err, ErrRequest) {
			t.Errorf("%q: got %+v, %v", line, r, err)
		}
	}
}

// Every kind needs a right of its own; an unknown kind needs the greatest.
func TestRightsOfEachRequest(t *testing.T) {
	for _, k := range []Kind{0, Auth, Short, Threads, Threads2, SNMP, Counters, Thread, ETRN, KillThread, KillMessage, Quit, JSONStatus, JSONThreads, JSONThread, JSONMessage, JSONEvents, 200} {
		if !All.May(k) {
			t.Errorf("all rights are not enough for %v", k)
		}
		assert.Equal(t, None.May(k), k == Auth || k == Quit, "%v without a login", k)
		if (All &^ loggedIn).May(k) && k != Auth && k != Quit {
			t.Errorf("%v without a login", k)
		}
	}
	if (All &^ MayKill).May(200) {
		t.Error("what is not known is allowed")
	}
}

func TestSpansHaveTwoParts(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 7 * time.Second: "7s", 5*time.Minute + 8*time.Second: "5m8s", time.Hour: "1h", time.Hour + 5*time.Second: "1h5s",
		26*time.Hour + 3*time.Minute: "1d2h", 24*time.Hour + 59*time.Second: "1d59s", -90 * time.Second: "-1m30s",
		999 * time.Millisecond: "0s",
	} {
		assert.Equal(t, Span(d), want, d)
	}
}

// exchange is one side of a connection that was written down.
type exchange struct {
	io.Reader
	said bytes.Buffer
}

func (e *exchange) Write(b []byte) (int, error) { return e.said.Write(b) }

func at(s int64) time.Time { return time.Unix(1_795_220_000+s, 0) }

// answers returns a listing as the server writes it.
func answers() []byte {
	b := Greeting(Challenge("1795220000.5.77.1"))
	b = append(b, "+OK\n"...)
	b = append(b, Follows+"\n"...)
	threads := []ThreadLine{
		{Channel: "smtp", Host: "a.example.com", Messages: 4, Recipients: 4, Attempts: 12, Wait: 6500 * time.Millisecond, Age: 5*time.Minute + 8*time.Second},
		{Channel: "smtp", Host: ".odd", Messages: 1, Recipients: 2, PID: 812, Age: 3 * time.Second},
		{Channel: "local", Host: "", Messages: 1, Recipients: 1, Age: time.Second, Pending: "channelwait"},
	}
	for i := range threads {
		b = AppendThreads2(b, &threads[i])
	}
	b = append(b, End+"\n"+Follows+"\n"...)
	entries := []Entry{
		{File: "D/10117776-77", Sender: "s@b.example", Offset: 120, Expires: at(3600), Next: at(60), Last: at(-5), Tries: 3, State: "retry in 1m",
			Answer: "<<- RCPT TO:<a@b>\n->> 450 4.2.1 later\tplease"},
		{File: "10117777", Index: 1, Offset: 180, State: "waiting for channel slot"},
	}
	for i := range entries {
		b = AppendEntry(b, &entries[i])
	}
	b = append(b, End+"\n"+Follows+"\n"...)
	b = AppendLine(b, "smtp/*/0")
	for i := range threads {
		b = AppendThreads(b, &threads[i])
	}
	b = AppendRing(b, &RingLine{Threads: 3, Recipients: 7, Procs: 2, Idle: 1, Limit: 20, Overfeed: 5})
	s := Sums{Agents: 2, Idle: 1, Messages: 6, Threads: 3, Recipients: 7, Uptime: 90 * time.Second, MessagesIn: 10, MessagesOut: 4, RecipientsIn: 20, RecipientsOut: 13}
	b = AppendSums(b, &s, false)
	b = append(b, End+"\n"+Follows+"\n"...)
	b = AppendSums(b, &s, true)
	b = append(b, End+"\n"+Follows+"\n"...)
	b = AppendCounter(b, "SC.StoredMessages-G", 6)
	return append(b, End+"\n-MAILQ2 refused\n"...)
}

// M39: what is written is what ZMailer's mailq reads; Client reads it in the
// same way.
func TestGoldenTranscript(t *testing.T) {
	name := filepath.Join("testdata", "transcript.golden")
	got := answers()
	if *update {
		assert.Must(t, os.WriteFile(name, got, 0o600))
	}
	want, err := os.ReadFile(name)
	assert.Must(t, err)
	assert.Same(t, got, want)
}

func TestClientReadsWhatTheServerWrites(t *testing.T) {
	x := &exchange{Reader: bytes.NewReader(answers())}
	c, err := NewClient(x)
	assert.Must(t, err)
	assert.Must(t, c.Login("joe", "secret"))
	var list []string
	keep := func(line string) error {
		list = append(list, line)
		return nil
	}
	ask := func(k Kind) []string {
		t.Helper()
		list = nil
		if _, err := c.Ask(Request{Kind: k, Channel: "smtp", Host: "x"}, keep); err != nil {
			t.Fatal(err)
		}
		return list
	}
	assert.Equal(t, len(ask(Threads2)), 3, "threads")
	assert.Equal(t, list[0], "smtp\ta.example.com\tN=4\tR=4\tA=12\tW=7s\tQA=5m8s")
	entries := ask(Thread)
	assert.Equal(t, entries[0], "D/10117776-77\t0\t<s@b.example>\t120\t1795223600\t1795220060\t1795219995\t3\tretry in 1m\t<<- RCPT TO:<a@b>\r->> 450 4.2.1 later please")
	// ZMailer's mailq parts a line at tabs and wants ten parts.
	for _, line := range entries {
		assert.Equal(t, strings.Count(line, "\t"), 9, "tabs in %q", line)
	}
	ask(Threads)
	ask(SNMP)
	ask(Counters)
	if _, err := c.Ask(Request{Kind: ETRN, Host: "x"}, nil); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Ask(Request{Kind: ETRN, Host: "x"}, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after the end: %v", err)
	}
	if !strings.HasPrefix(x.said.String(), "AUTH joe ") || !strings.Contains(x.said.String(), "\nSHOW THREAD smtp x\n") {
		t.Errorf("it said %q", x.said.String())
	}
}
