package smtpserver

import (
	"bytes"
	"fmt"
	"net"
	"net/textproto"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gomilter "github.com/emersion/go-milter"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/wire/milter"
)

// sieve is a filter of go-milter's library. It has no objection to anything unless the
// test says so.
type sieve struct {
	gomilter.NoOpMilter
	address string
	options gomilter.OptProtocol

	mu    sync.Mutex
	heard []string
	body  bytes.Buffer

	at  map[string]gomilter.Response // by step, and by step and argument
	end func(*gomilter.Modifier) gomilter.Response
}

// filterOn starts the filter on loopback.
func filterOn(t testing.TB, f *sieve) *sieve {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &gomilter.Server{NewMilter: func() gomilter.Milter { return f }, Protocol: f.options,
		Actions: gomilter.OptAddHeader | gomilter.OptChangeHeader | gomilter.OptChangeBody | gomilter.OptAddRcpt | gomilter.OptRemoveRcpt | gomilter.OptQuarantine}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { _ = l.Close(); <-done })
	f.address = l.Addr().String()
	return f
}

func (f *sieve) say(step, arg string) (gomilter.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = append(f.heard, strings.TrimSpace(step+" "+arg))
	for _, key := range []string{step + " " + arg, step} {
		if r := f.at[key]; r != nil {
			return r, nil
		}
	}
	return gomilter.RespContinue, nil
}

func (f *sieve) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.heard
	f.heard = nil
	return strings.Join(h, "|")
}

func (f *sieve) Connect(host, family string, _ uint16, addr net.IP, m *gomilter.Modifier) (gomilter.Response, error) {
	return f.say("connect", fmt.Sprintf("%s %s %v %s", host, family, addr, m.Macros["{daemon_name}"]))
}
func (f *sieve) Helo(name string, _ *gomilter.Modifier) (gomilter.Response, error) {
	return f.say("helo", name)
}
func (f *sieve) MailFrom(from string, _ *gomilter.Modifier) (gomilter.Response, error) {
	return f.say("mail", from)
}
func (f *sieve) RcptTo(to string, _ *gomilter.Modifier) (gomilter.Response, error) {
	return f.say("rcpt", to)
}
func (f *sieve) Header(name, value string, _ *gomilter.Modifier) (gomilter.Response, error) {
	return f.say("header", name+":"+value)
}
func (f *sieve) Headers(textproto.MIMEHeader, *gomilter.Modifier) (gomilter.Response, error) {
	return f.say("headers", "")
}
func (f *sieve) BodyChunk(b []byte, _ *gomilter.Modifier) (gomilter.Response, error) {
	f.mu.Lock()
	f.body.Write(b)
	f.mu.Unlock()
	return gomilter.RespContinue, nil
}
func (f *sieve) Body(m *gomilter.Modifier) (gomilter.Response, error) {
	f.mu.Lock()
	body := f.body.String()
	f.body.Reset()
	f.mu.Unlock()
	r, err := f.say("body", body)
	if f.end != nil {
		return f.end(m), nil
	}
	return r, err
}
func (f *sieve) Abort(*gomilter.Modifier) error {
	_, err := f.say("abort", "")
	return err
}

// with has the server ask filters.
func with(filters ...*sieve) func(*Config) {
	return func(c *Config) {
		for _, f := range filters {
			c.Filters.Milters = append(c.Filters.Milters, milter.Config{Network: "tcp", Address: f.address, Timeout: patience, ContentTimeout: patience})
		}
	}
}

const plain = "Subject: x\nTo: one\nTo: two\n\nhi\n"

func TestFilterSeesWhatTheClientSays(t *testing.T) {
	f := filterOn(t, &sieve{})
	r := start(t, with(f))
	p := r.dial()
	p.mail("a@example.net", "b@example.org", plain, "250")
	want := "connect [127.0.0.1] tcp4 127.0.0.1 mx|helo client.example.net|mail a@example.net|rcpt b@example.org|header Subject:x|header To:one|header To:two|headers|body hi"
	if got := f.said(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := r.content(); got != plain {
		t.Errorf("it was changed: %q", got)
	}
	// A second message of the same client, and one that is given up.
	p.say("MAIL FROM:<c@example.net>", "250")
	p.say("RSET", "250")
	p.mail("d@example.net", "b@example.org", "junk\nX: y\n\nhi\n", "250")
	want = "mail c@example.net|abort|mail d@example.net|rcpt b@example.org|headers|body junk\r\nX: y\r\n\r\nhi"
	if got := f.said(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// A client that greets anew is another one for the filter.
	p.say("EHLO other.example", "250")
	p.say("MAIL FROM:<c@example.net>", "250")
	if got := f.said(); !strings.HasPrefix(strings.TrimPrefix(got, "abort|"), "connect") {
		t.Errorf("got %s", got)
	}
}

func TestFilterDecidesAtEachStep(t *testing.T) {
	own := gomilter.NewResponseStr('y', "554 5.7.9 go away")
	for name, tt := range map[string]struct {
		at               map[string]gomilter.Response
		mail, rcpt, data string
	}{
		"connect": {map[string]gomilter.Response{"connect": gomilter.RespReject}, "550 5.7.1", "", ""},
		"helo":    {map[string]gomilter.Response{"helo": gomilter.RespTempFail}, "451 4.7.1", "", ""},
		"mail":    {map[string]gomilter.Response{"mail": own}, "554 5.7.9", "", ""},
		"rcpt":    {map[string]gomilter.Response{"rcpt": own}, "250", "554 5.7.9", ""},
		"header":  {map[string]gomilter.Response{"header": gomilter.RespTempFail}, "250", "250", "451 4.7.1"},
		"headers": {map[string]gomilter.Response{"headers": gomilter.RespReject}, "250", "250", "550 5.7.1"},
		"body":    {map[string]gomilter.Response{"body": own}, "250", "250", "554 5.7.9"},
	} {
		t.Run(name, func(t *testing.T) {
			f := filterOn(t, &sieve{at: tt.at})
			r := start(t, with(f))
			p := r.dial()
			p.say("EHLO client.example.net", "250")
			for range 2 { // the second time as the first
				p.say("MAIL FROM:<a@b.example>", tt.mail)
				if tt.rcpt != "" {
					p.say("RCPT TO:<c@d.example>", tt.rcpt)
				}
				if tt.data != "" {
					p.say("DATA", "354")
					p.say("Subject: x\r\n\r\nhi\r\n.", tt.data)
				}
				p.say("RSET", "250")
			}
			r.nothing()
			if !strings.Contains(r.log.String(), `by="milter inet:`) {
				t.Errorf("the log does not say who:\n%s", r.log)
			}
		})
	}
}

// The recipients that a filter refuses are not the message's; the others get it.
func TestFilterRefusesOneRecipient(t *testing.T) {
	f := filterOn(t, &sieve{at: map[string]gomilter.Response{"rcpt bad@example.org": gomilter.RespReject}})
	r := start(t, with(f))
	p := r.dial()
	p.say("EHLO client.example.net", "250")
	p.say("MAIL FROM:<a@b.example>", "250")
	p.say("RCPT TO:<bad@example.org>", "550")
	p.say("RCPT TO:<good@example.org>", "250")
	p.say("DATA", "354")
	p.say("Subject: x\r\n\r\nhi\r\n.", "250")
	if got := r.only(); !strings.Contains(got, "\nto <good@example.org>\nenv-end\n") || strings.Contains(got, "bad@") {
		t.Errorf("got %s", got)
	}
}

func TestFilterChangesTheMessage(t *testing.T) {
	const begin = "Subject: x\nTo: one\nTo: two\n"
	for name, tt := range map[string]struct {
		change  func(*gomilter.Modifier) error
		message string
		want    string
	}{
		"add":                  {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a\r\n\tb") }, plain, begin + "X-S: a\n\tb\n\nhi\n"},
		"insert on top":        {func(m *gomilter.Modifier) error { return m.InsertHeader(0, "X-S", "a") }, plain, "X-S: a\n" + begin + "\nhi\n"},
		"insert behind two":    {func(m *gomilter.Modifier) error { return m.InsertHeader(2, "X-S", "a") }, plain, "Subject: x\nTo: one\nX-S: a\nTo: two\n\nhi\n"},
		"insert too far":       {func(m *gomilter.Modifier) error { return m.InsertHeader(99, "X-S", "a") }, plain, begin + "X-S: a\n\nhi\n"},
		"change the second":    {func(m *gomilter.Modifier) error { return m.ChangeHeader(2, "to", "new") }, plain, "Subject: x\nTo: one\nto: new\n\nhi\n"},
		"delete the first":     {func(m *gomilter.Modifier) error { return m.ChangeHeader(1, "To", "") }, plain, "Subject: x\nTo: two\n\nhi\n"},
		"change what is not":   {func(m *gomilter.Modifier) error { return m.ChangeHeader(3, "To", "three") }, plain, begin + "To: three\n\nhi\n"},
		"delete what is not":   {func(m *gomilter.Modifier) error { return m.ChangeHeader(3, "To", "") }, plain, plain},
		"a line smuggled in":   {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a\nBcc: evil\n\nbody") }, plain, begin + "X-S: a\n\tBcc: evil\n\tbody\n\nhi\n"},
		"a name that is none":  {func(m *gomilter.Modifier) error { return m.AddHeader("X S:\n", "a") }, plain, plain},
		"body":                 {func(m *gomilter.Modifier) error { return m.ReplaceBody([]byte("new\r\nbody\n")) }, plain, begin + "\nnew\nbody\n"},
		"body made empty":      {func(m *gomilter.Modifier) error { return m.ReplaceBody(nil) }, plain, begin + "\n"},
		"large body":           {func(m *gomilter.Modifier) error { return m.ReplaceBody(bytes.Repeat([]byte("0123456789\n"), 60000)) }, plain, begin + "\n" + strings.Repeat("0123456789\n", 60000)},
		"body where was none":  {func(m *gomilter.Modifier) error { return m.ReplaceBody([]byte("new")) }, "Subject: x\n", "Subject: x\n\nnew"},
		"add where is no body": {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a") }, "Subject: x\n", "Subject: x\nX-S: a\n"},
		"add to no header":     {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a") }, "\nhi\n", "X-S: a\n\nhi\n"},
		"add before junk":      {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a") }, "Subject: x\njunk\n\nhi\n", "Subject: x\nX-S: a\njunk\n\nhi\n"},
		"body with junk":       {func(m *gomilter.Modifier) error { return m.ReplaceBody([]byte("new\n")) }, "Subject: x\njunk\n\nhi\n", "Subject: x\n\nnew\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := filterOn(t, &sieve{})
			f.end = func(m *gomilter.Modifier) gomilter.Response {
				if err := tt.change(m); err != nil {
					t.Error(err)
				}
				return gomilter.RespAccept
			}
			r := start(t, with(f))
			r.dial().mail("a@example.net", "b@example.org", tt.message, "250")
			if got := r.content(); got != tt.want {
				t.Errorf("got\n%.300q\nwant\n%.300q", got, tt.want)
			}
		})
	}
}

func TestFilterChangesTheEnvelope(t *testing.T) {
	f := filterOn(t, &sieve{})
	f.end = func(m *gomilter.Modifier) gomilter.Response {
		for _, err := range []error{m.ChangeFrom("<new@example.net>"), m.AddRecipient("added@example.org"), m.AddRecipient("B@EXAMPLE.org"),
			m.AddRecipient("kept@EXAMPLE.ORG"), m.DeleteRecipient("gone@Example.Org"), m.DeleteRecipient("never@example.org"), m.AddRecipient(" not an address "), m.AddRecipient("")} {
			if err != nil {
				t.Error(err)
			}
		}
		return gomilter.RespContinue
	}
	r := start(t, with(f))
	p := r.dial()
	p.say("EHLO client.example.net", "250")
	p.say("MAIL FROM:<a@b.example>", "250")
	for _, to := range []string{"kept@example.org", "gone@example.org"} {
		p.say("RCPT TO:<"+to+"> NOTIFY=NEVER", "250")
	}
	p.say("DATA", "354")
	id := idIn(t, p.say("Subject: x\r\n\r\nhi\r\n.", "250"))
	got := r.only()
	if want := "from <new@example.net>\ntodsn NOTIFY=NEVER\nto <kept@example.org>\nto <added@example.org>\nto <B@EXAMPLE.org>\nenv-end\n"; !strings.Contains(got, want) {
		t.Errorf("got %s", got)
	}
	if n := strings.Count(r.log.String(), "filter-nonsense"); n != 2 {
		t.Errorf("%d complaints, want 2", n)
	}
	if got := r.book(t).Records[id]; got == nil || got.In != 3 {
		t.Errorf("the ledger has %+v", got)
	}
}

func (r *running) book(t *testing.T) *ledger.Book {
	t.Helper()
	po, err := postoffice.Open(postoffice.Config{FS: r.disk})
	if err != nil {
		t.Fatal(err)
	}
	book, err := ledger.Read(po)
	if err != nil {
		t.Fatal(err)
	}
	return book
}

// A message that is thrown away is taken, goes nowhere, and has an end in the ledger.
func TestDiscardedMessageIsTakenAndAccountedFor(t *testing.T) {
	for name, f := range map[string]*sieve{
		"connect": {at: map[string]gomilter.Response{"connect": gomilter.RespDiscard}},
		"mail":    {at: map[string]gomilter.Response{"mail": gomilter.RespDiscard}},
		"rcpt":    {at: map[string]gomilter.Response{"rcpt": gomilter.RespDiscard}},
		"header":  {at: map[string]gomilter.Response{"header": gomilter.RespDiscard}},
		"body":    {at: map[string]gomilter.Response{"body": gomilter.RespDiscard}},
		"no recipient left": {end: func(m *gomilter.Modifier) gomilter.Response {
			_ = m.DeleteRecipient("b@example.org")
			_ = m.DeleteRecipient("c@example.org")
			return gomilter.RespContinue
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, with(filterOn(t, f)))
			p := r.dial()
			p.say("EHLO client.example.net", "250")
			p.say("MAIL FROM:<a@b.example>", "250")
			p.say("RCPT TO:<b@example.org>", "250")
			p.say("RCPT TO:<c@example.org>", "250")
			p.say("DATA", "354")
			id := idIn(t, p.say("Subject: x\r\n\r\nhi\r\n.", "250 2.0.0"))
			r.nothing()
			got := r.book(t).Records[id]
			if got == nil || got.In != 2 || got.Open() || got.End.Gone != 2 || got.Why != "discarded" {
				t.Errorf("the ledger has %+v", got)
			}
			if !strings.Contains(r.log.String(), "msg=discarded") {
				t.Error("no log line")
			}
		})
	}
}

// M13: a message that a filter quarantines waits for an operator.
func TestQuarantinedMessageIsFrozen(t *testing.T) {
	f := filterOn(t, &sieve{end: func(m *gomilter.Modifier) gomilter.Response {
		_ = m.AddHeader("X-Spam", "yes")
		_ = m.Quarantine("looks\nbad")
		return gomilter.RespAccept
	}})
	r := start(t, with(f))
	r.dial().mail("a@example.net", "b@example.org", plain, "250 2.0.0")
	r.nothing()
	if got := r.names("freezer"); !slices.ContainsFunc(got, func(n string) bool { return strings.HasSuffix(n, "."+"filter") }) {
		t.Errorf("freezer/ holds %q", got)
	}
}

func TestFilterThatIsDown(t *testing.T) {
	down := &sieve{address: "127.0.0.1:1"}
	for name, tt := range map[string]struct {
		accept bool
		want   string
	}{"defer": {false, "451 4.7.1"}, "accept": {true, "250"}} {
		t.Run(name, func(t *testing.T) {
			up := filterOn(t, &sieve{})
			r := start(t, func(c *Config) { with(down, up)(c); c.Filters.TroubleAccepts = tt.accept })
			p := r.dial()
			p.say("EHLO client.example.net", "250")
			p.say("MAIL FROM:<a@b.example>", tt.want)
			p.say("RSET", "250")
			p.say("MAIL FROM:<a@b.example>", tt.want)
			if n := strings.Count(r.log.String(), "filter-trouble"); n != 1 {
				t.Errorf("said %d times, want once", n)
			}
			if heard := up.said() != ""; heard != tt.accept {
				t.Errorf("the other filter was asked: %v", heard)
			}
		})
	}
}

// A filter that dies in the middle of a message: the client is told to try again, and
// the next message finds the filter that has been started anew.
func TestFilterThatDiesIsFoundAgain(t *testing.T) {
	for _, step := range []string{"rcpt", "header", "body"} {
		t.Run(step, func(t *testing.T) {
			f := filterOn(t, &sieve{at: map[string]gomilter.Response{step: gomilter.NewResponse('?', nil)}})
			r := start(t, with(f))
			p := r.dial()
			p.say("EHLO client.example.net", "250")
			p.say("MAIL FROM:<a@b.example>", "250")
			if step == "rcpt" {
				p.say("RCPT TO:<b@example.org>", "451 4.7.1")
				p.say("RCPT TO:<c@example.org>", "451 4.7.1")
				p.say("RSET", "250")
			} else {
				p.say("RCPT TO:<b@example.org>", "250")
				p.say("DATA", "354")
				p.say("Subject: x\r\n\r\nhi\r\n.", "451 4.7.1")
			}
			r.nothing()
			f.mu.Lock()
			f.at = nil
			f.mu.Unlock()
			p.mail("a@b.example", "b@example.org", plain, "250")
			r.only()
			if n := strings.Count(r.log.String(), "filter-recovered"); n != 1 {
				t.Errorf("recovered %d times", n)
			}
		})
	}
}

// Each filter sees what those before it have left; checks come first.
func TestFiltersFollowOneAnother(t *testing.T) {
	first := filterOn(t, &sieve{end: func(m *gomilter.Modifier) gomilter.Response {
		_ = m.AddHeader("X-First", "1")
		_ = m.ReplaceBody([]byte("new\r\n"))
		return gomilter.RespAccept
	}})
	second := filterOn(t, &sieve{end: func(m *gomilter.Modifier) gomilter.Response {
		_ = m.ReplaceBody([]byte("newer\r\n"))
		return gomilter.RespAccept
	}})
	r := start(t, with(first, second))
	r.dial().mail("a@example.net", "b@example.org", plain, "250")
	if got := r.content(); got != "Subject: x\nTo: one\nTo: two\nX-First: 1\n\nnewer\n" {
		t.Errorf("got %q", got)
	}
	if got := second.said(); !strings.HasSuffix(got, "header X-First:1|headers|body new") {
		t.Errorf("the second got %s", got)
	}
}

// The end of the server does not wait for a filter.
func TestStopDoesNotWaitForAFilter(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := start(t, func(c *Config) {
		c.Filters.Milters = []milter.Config{{Network: "tcp", Address: l.Addr().String(), Timeout: time.Hour}}
		c.StopTimeout = 50 * time.Millisecond
	})
	p := r.dial()
	p.say("EHLO client.example.net", "250")
	p.send("MAIL FROM:<a@b.example>\r\n")
	silent, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begin := time.Now()
	r.stop()
	if err := r.ended(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > killGrace/2 {
		t.Errorf("it took %v", took)
	}
}

// Another's mail system by LMTP: filters see it too, and each recipient is told.
func TestFilterRefusesAContentThatCameByLMTP(t *testing.T) {
	f := filterOn(t, &sieve{at: map[string]gomilter.Response{"body": gomilter.RespReject}})
	socket := filepath.Join(t.TempDir(), "lmtp")
	r := start(t, func(c *Config) { with(f)(c); c.LMTPListen = []string{socket} })
	p := r.connectTo("unix", socket)
	p.expect("220")
	p.say("LHLO client.example.net", "250")
	p.say("MAIL FROM:<a@b.example>", "250")
	p.say("RCPT TO:<b@mx.example.org>", "250")
	p.say("RCPT TO:<c@mx.example.org>", "250")
	p.say("DATA", "354")
	p.say("Subject: x\r\n\r\nhi\r\n.", "550 5.7.1")
	p.expect("550 5.7.1")
	r.nothing()
	if got := f.said(); !strings.HasPrefix(got, "connect localhost unknown <nil> lmtp|") {
		t.Errorf("it got %s", got)
	}
}

// BDAT takes the same way as DATA.
func TestFilterSeesWhatComesInChunks(t *testing.T) {
	f := filterOn(t, &sieve{})
	r := start(t, with(f))
	p := r.dial()
	p.say("EHLO client.example.net", "250")
	p.send("MAIL FROM:<a@b.example>\r\nRCPT TO:<b@example.org>\r\nBDAT 12\r\nSubject: x\r\n")
	p.expect("250", "250", "250")
	p.send("BDAT 6 LAST\r\n\r\nhi\r\n")
	p.expect("250 2.0.0")
	if got := f.said(); !strings.HasSuffix(got, "header Subject:x|headers|body hi") {
		t.Errorf("it got %s", got)
	}
	if got := r.content(); got != "Subject: x\n\nhi\n" {
		t.Errorf("got %q", got)
	}
}
