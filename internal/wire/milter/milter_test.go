package milter

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-milter"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/milter/miltertest"
)

var client = netip.MustParseAddrPort("192.0.2.1:4711")

// begin takes a message to where its content is to follow.
func begin(t testing.TB, s *Session) {
	t.Helper()
	for _, step := range []func() (Answer, error){
		func() (Answer, error) { return s.Connect("client.example", client, Macros{"j", "mx.example.org"}) },
		func() (Answer, error) { return s.Helo("helo.example", Macros{"{tls_version}", "TLSv1.3", "v", ""}) },
		func() (Answer, error) { return s.Mail("a@a.example", nil, Macros{"{auth_authen}", "ann"}) },
		func() (Answer, error) { return s.Rcpt("b@b.example", nil, Macros{"{rcpt_addr}", "b@b.example"}) },
	} {
		if a, err := step(); err != nil || a.Action != Continue {
			t.Fatalf("got %+v, %v", a, err)
		}
	}
}

// serve starts a filter that accepts everything and notes what it hears.
func serve(t testing.TB, f *miltertest.Filter) *miltertest.Filter {
	if f == nil {
		f = &miltertest.Filter{}
	}
	f.Macros = map[string]string{"connect": "j", "helo": "{tls_version}", "mail": "{auth_authen}", "rcpt": "{rcpt_addr}", "body": "i"}
	return f.Serve(t)
}

// dial connects to a filter.
func dial(t testing.TB, f *miltertest.Filter) *Session {
	t.Helper()
	s := assert.Get(Open(context.Background(), Config{Network: "tcp", Address: f.Address, Timeout: 5 * time.Second}))(t)
	t.Cleanup(func() { _ = s.Close() }) // the filter may have closed it
	return s
}

func content(t testing.TB, s *Session, message string, newBody io.Writer) (Answer, []Change, error) {
	t.Helper()
	head, body, _ := strings.Cut(message, "\n\n")
	return s.Content(envelope.Fields([]byte(head+"\n")), strings.NewReader(body), newBody, Macros{"i", "ID1"})
}

func TestFilterHearsTheWholeTransaction(t *testing.T) {
	p := serve(t, nil)
	s := dial(t, p)
	begin(t, s)
	a, changes, err := content(t, s, "Subject: x\n y\nTo:b\nX-Empty:\n\nline\nno end", io.Discard)
	if err != nil || a.Action != Continue || len(changes) > 0 {
		t.Fatalf("got %+v, %v, %v", a, changes, err)
	}
	want := []string{"connect client.example tcp4 192.0.2.1 mx.example.org", "helo helo.example TLSv1.3", "mail a@a.example ann", "rcpt b@b.example b@b.example",
		"header Subject:x\n y", "header To:b", "header X-Empty:", "headers", "body line\r\nno end ID1"}
	if got := p.Heard(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The next message of the client, and one that is given up.
	for range 2 {
		assert.Get(s.Mail("c@c.example", nil, nil))(t)
	}
	if _, _, err := content(t, s, "A: b\n\n", io.Discard); err != nil {
		t.Fatal(err)
	}
	want = []string{"mail c@c.example ", "abort", "mail c@c.example ", "header A:b", "headers", "body ID1"}
	assert.Same(t, p.Heard(), want)
}

func TestFilterOnAUnixSocketAndAClientOnOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	p := (&miltertest.Filter{}).ServeOn(t, assert.Get(net.Listen("unix", path))(t))
	cfg := assert.Get(Parse("unix:" + path))(t)
	s := assert.Get(Open(context.Background(), cfg))(t)
	defer s.Close()
	assert.Get(s.Connect("localhost", netip.AddrPort{}, nil))(t)
	if got := p.Heard(); len(got) != 1 || !strings.HasPrefix(got[0], "connect localhost unknown") {
		t.Errorf("got %q", got)
	}
}

func TestVerdictsAtEveryStep(t *testing.T) {
	verdicts := map[string]struct {
		say  milter.Response
		want Answer
	}{
		"accept":      {milter.RespAccept, Answer{Action: Accept}},
		"reject":      {milter.RespReject, Answer{Action: Reject}},
		"tempfail":    {milter.RespTempFail, Answer{Action: TempFail}},
		"discard":     {milter.RespDiscard, Answer{Action: Discard}},
		"own words":   {milter.NewResponseStr('y', "554 5.7.9 go 100%% away"), Answer{Reject, 554, "5.7.9", "go 100% away", ""}},
		"no enhanced": {milter.NewResponseStr('y', "451 later"), Answer{TempFail, 451, "", "later", ""}},
		"two lines":   {milter.NewResponseStr('y', "550-5.7.1 first\r\n550 5.7.1 second"), Answer{Reject, 550, "5.7.1", "first", "second"}},
	}
	for _, step := range []string{"connect", "helo", "mail", "rcpt", "header", "headers", "chunk", "body"} {
		for name, v := range verdicts {
			t.Run(step+" "+name, func(t *testing.T) {
				p := serve(t, &miltertest.Filter{At: map[string]milter.Response{step: v.say}})
				s := dial(t, p)
				got, err := Answer{}, error(nil)
				for _, command := range []func(){
					func() { got, err = s.Connect("c", client, nil) },
					func() { got, err = s.Helo("h", nil) },
					func() { got, err = s.Mail("a@b", nil, nil) },
					func() { got, err = s.Rcpt("c@d", nil, nil) },
					func() { got, _, err = content(t, s, "A: b\n\nbody\n", io.Discard) },
				} {
					if command(); err != nil || got.Action != Continue {
						break
					}
				}
				if err != nil || got != v.want {
					t.Errorf("got %+v, %v, want %+v", got, err, v.want)
				}
			})
		}
	}
}

func TestChangesComeAsTheFilterWantsThem(t *testing.T) {
	p := serve(t, &miltertest.Filter{End: func(m *milter.Modifier) (milter.Response, error) {
		return milter.RespAccept, errors.Join(m.AddHeader("X-Spam", "yes\r\n\tvery"), m.InsertHeader(0, "X-Top", "t"), m.ChangeHeader(2, "To", "x"),
			m.ChangeHeader(1, "Cc", ""), m.AddRecipient("n@n.example"), m.DeleteRecipient("b@b.example"), m.ChangeFrom("<new@a.example>"),
			m.ReplaceBody([]byte("new ")), m.Quarantine("looks bad"), m.ReplaceBody([]byte("body\r\n")))
	}})
	s := dial(t, p)
	begin(t, s)
	var body bytes.Buffer
	a, got, err := content(t, s, "A: b\n\nold", &body)
	if err != nil || a.Action != Accept {
		t.Fatalf("got %+v, %v", a, err)
	}
	want := []Change{
		{Kind: AddField, Name: "X-Spam", Value: " yes\n\tvery"}, {Kind: InsertField, Name: "X-Top", Value: " t"}, {Kind: ChangeField, Index: 2, Name: "To", Value: " x"},
		{Kind: ChangeField, Index: 1, Name: "Cc"}, {Kind: AddRecipient, Address: "<n@n.example>"}, {Kind: DeleteRecipient, Address: "<b@b.example>"},
		{Kind: ChangeSender, Address: "<new@a.example>"}, {Kind: Quarantine, Value: "looks bad"},
	}
	assert.Same(t, got, want)
	if body.String() != "new body\n" {
		t.Errorf("body %q", &body)
	}
}

// What a filter does not want to see, or to answer, is not waited for.
func TestFilterLeavesStepsOut(t *testing.T) {
	p := serve(t, &miltertest.Filter{Protocol: milter.OptNoConnect | milter.OptNoHelo | milter.OptNoRcptTo | milter.OptNoBody | milter.OptNoEOH})
	s := dial(t, p)
	begin(t, s)
	if _, _, err := content(t, s, "A: b\n\nbody", io.Discard); err != nil {
		t.Fatal(err)
	}
	want := []string{"mail a@a.example ann", "header A:b", "body ID1"}
	assert.Same(t, p.Heard(), want)
}

func TestTroubleIsAnError(t *testing.T) {
	for name, tt := range map[string]struct {
		answer  []byte
		timeout bool
	}{
		"an answer that is none":    {packet('Z', ""), false},
		"a reply that is none":      {packet('y', "25x no\x00"), false},
		"a reply that accepts":      {packet('y', "250 ok\x00"), false},
		"a packet of nothing":       {[]byte{0, 0, 0, 0}, false},
		"a packet that is too long": {[]byte{0xff, 0, 0, 0, 'c'}, false},
		"nothing at all":            {nil, true},
		"a packet without its end":  {[]byte{0, 0, 0, 9, 'y', '5'}, true},
		"only that it is at work":   {bytes.Repeat(packet('p', ""), 1000), true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := scripted(t, tt.answer, nil)
			cfg.Timeout = 300 * time.Millisecond
			s := assert.Get(Open(context.Background(), cfg))(t)
			defer s.Close()
			_, err := s.Connect("c", client, nil)
			if err == nil || errors.Is(err, os.ErrDeadlineExceeded) != tt.timeout {
				t.Errorf("got %v, want a timeout: %v", err, tt.timeout)
			}
		})
	}
	cfg := assert.Get(Parse("unix:" + filepath.Join(t.TempDir(), "none")))(t)
	if _, err := Open(context.Background(), cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a filter: %v", err)
	}
}

// A filter that keeps saying that it is at work is believed for so long.
func TestFilterAtWorkIsNotWaitedForForEver(t *testing.T) {
	stop := make(chan struct{})
	cfg := scripted(t, bytes.Repeat(packet('c', ""), 4), func(c net.Conn) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := c.Write(packet('p', "")); err != nil {
					return
				}
			case <-stop:
				return
			}
		}
	})
	defer close(stop)
	cfg.ContentTimeout = 30 * time.Millisecond
	s := assert.Get(Open(context.Background(), cfg))(t)
	defer s.Close()
	begin(t, s)
	if _, _, err := content(t, s, "A: b\n\nbody", io.Discard); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestFilterThatChangesTooMuchIsStopped(t *testing.T) {
	p := serve(t, &miltertest.Filter{End: func(m *milter.Modifier) (milter.Response, error) {
		for range 100 {
			if err := m.AddHeader("X", strings.Repeat("x", 100<<10)); err != nil {
				return nil, err // the other side has gone
			}
		}
		return milter.RespAccept, nil
	}})
	s := dial(t, p)
	begin(t, s)
	if _, _, err := content(t, s, "A: b\n\nbody", io.Discard); !errors.Is(err, ErrTooMuch) {
		t.Errorf("got %v", err)
	}
}

// A new body is not in memory, however long.
func TestNewBodyIsNotKept(t *testing.T) {
	const size = 64 << 20
	piece := bytes.Repeat([]byte("0123456789abcd\r\n"), 4000)
	p := serve(t, &miltertest.Filter{Protocol: milter.OptNoBody, End: func(m *milter.Modifier) (milter.Response, error) {
		for range size / len(piece) {
			if err := m.ReplaceBody(piece); err != nil {
				return nil, err
			}
		}
		return milter.RespAccept, nil
	}})
	s := dial(t, p)
	begin(t, s)
	runtime.GC() // what tests before this one have left
	w := &watcher{}
	if _, _, err := content(t, s, "A: b\n\nbody", w); err != nil {
		t.Fatal(err)
	}
	assert.Equal(t, w.n, size/len(piece)*(len(piece)-4000), "bytes")
	if w.most > 40<<20 {
		t.Errorf("the heap has grown to %d bytes", w.most)
	}
}

// watcher looks at the heap while it is written to.
type watcher struct {
	n, looks int
	most     uint64
}

func (w *watcher) Write(b []byte) (int, error) {
	w.n += len(b)
	if w.n>>22 > w.looks {
		w.looks = w.n >> 22
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		w.most = max(w.most, m.HeapAlloc)
	}
	return len(b), nil
}

func TestErrorsOfBodyAndDiskAreNotTheFilters(t *testing.T) {
	p := serve(t, &miltertest.Filter{End: func(m *milter.Modifier) (milter.Response, error) {
		return milter.RespAccept, m.ReplaceBody([]byte("new"))
	}})
	s := dial(t, p)
	begin(t, s)
	full := errors.New("disk full")
	if _, _, err := content(t, s, "A: b\n\nbody", failing{full}); !errors.Is(err, full) {
		t.Errorf("writing: %v", err)
	}
	s = dial(t, p)
	begin(t, s)
	_, _, err := s.Content(nil, failing{full}, io.Discard, nil)
	if b := (*BodyError)(nil); !errors.As(err, &b) || !errors.Is(err, full) {
		t.Errorf("reading: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
func (f failing) Read([]byte) (int, error)  { return 0, f.err }

// Strings of the protocol end in NUL: nothing that a client sends ends them earlier.
func TestNULEndsNoString(t *testing.T) {
	p := serve(t, nil)
	s := dial(t, p)
	assert.Get(s.Connect("c\x00d", client, nil))(t)
	assert.Get(s.Helo("h\x00i", Macros{"{tls_version}", "x\x00{auth_authen}\x00root"}))(t)
	assert.Get(s.Mail("a\x00b@c", nil, Macros{"{auth_authen}", "a\x00b"}))(t)
	if _, _, err := content(t, s, "A: b\x00Subject\x00c\n\nbo\x00dy", io.Discard); err != nil {
		t.Fatal(err)
	}
	want := []string{"connect c?d tcp4 192.0.2.1 ", "helo h?i x?{auth_authen}?root", "mail a?b@c a?b", "header A:b?Subject?c", "headers", "body bo\x00dy "}
	got := p.Heard()
	got[len(got)-1] = strings.TrimSuffix(got[len(got)-1], "ID1")
	assert.Same(t, got, want)
}

func TestLongFieldIsCutForTheFilter(t *testing.T) {
	p := serve(t, nil)
	s := dial(t, p)
	begin(t, s)
	if _, _, err := content(t, s, "A: "+strings.Repeat("x", 900<<10)+"\n\n", io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, h := range p.Heard() {
		if strings.HasPrefix(h, "header ") && len(h) != len("header A:")+maxField {
			t.Errorf("%d bytes", len(h))
		}
	}
}

func TestAddressesOfFilters(t *testing.T) {
	for text, want := range map[string]Config{
		"unix:/run/m.sock":    {Network: "unix", Address: "/run/m.sock"},
		"inet:127.0.0.1:8891": {Network: "tcp", Address: "127.0.0.1:8891"},
		"inet:[::1]:8891":     {Network: "tcp", Address: "[::1]:8891"},
	} {
		if got, err := Parse(text); err != nil || got.Network != want.Network || got.Address != want.Address {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
		assert.Equal(t, want.Name(), text)
	}
	for _, text := range []string{"", "unix:", "unix:rel", "inet:8891", "inet::8891", "inet:host", "local:/x", "/run/x"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}

// Whatever a filter sends there is an answer or an error, and never more kept than is
// allowed.
func FuzzFilter(f *testing.F) {
	f.Add(slices.Concat(packet('c', ""), packet('c', ""), packet('h', "X\x00y\x00"), packet('b', "new"), packet('a', "")))
	f.Add(slices.Concat(packet('m', "\x00\x00\x00\x01To\x00\x00"), packet('i', "\xff\xff\xff\xffTo\x00x\x00"), packet('y', "550 5.7.1 no\x00")))
	f.Add(packet('m', "\x00"))
	f.Add(packet('e', ""))
	f.Add(slices.Concat(packet('p', ""), packet('q', "x"), packet('+', "<a>"), packet('-', ""), packet('t', "")))
	f.Fuzz(func(t *testing.T, answer []byte) {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(io.Discard, theirs)
		}()
		offer := make(chan error, 1)
		go func() {
			_, err := theirs.Write(append(packet('O', "\x00\x00\x00\x06\x00\x00\x00\xff\x00\x00\x00\x00"), answer...))
			_ = theirs.Close()
			offer <- err
		}()
		s := newSession(context.Background(), Config{Network: "tcp", Now: time.Now, Timeout: time.Second, ContentTimeout: time.Second}, ours)
		assert.Must(t, s.negotiate(time.Now().Add(time.Second)))
		if _, err := s.Mail("a@b", nil, Macros{"i", "1"}); err == nil {
			var body bytes.Buffer
			a, changes, err := s.Content(envelope.Fields([]byte("A: b\n")), strings.NewReader("body"), &body, nil)
			if err == nil && a.Code != 0 && a.Code/100 != 4 && a.Code/100 != 5 {
				t.Errorf("got %+v", a)
			}
			if body.Len() > len(answer) || len(changes) > len(answer)/5 {
				t.Errorf("%d changes, %d bytes of %d", len(changes), body.Len(), len(answer))
			}
		}
		_ = ours.Close()
		<-offer
		<-done
	})
}

// scripted returns a filter that agrees to what we offer and then sends bytes, whatever
// it receives.
func scripted(t testing.TB, answer []byte, after func(net.Conn)) Config {
	t.Helper()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var conns sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				script(c, answer, after)
			})
		}
	})
	return Config{Network: "tcp", Address: l.Addr().String(), Timeout: 2 * time.Second, ContentTimeout: 2 * time.Second}
}

func script(c net.Conn, answer []byte, after func(net.Conn)) {
	offer := make([]byte, 17)
	for n := 0; n < len(offer); {
		k, err := c.Read(offer[n:])
		if err != nil {
			return
		}
		n += k
	}
	copy(offer[13:], "\x00\x00\x00\x00") // it wants all of it, and answers all
	if _, err := c.Write(append(offer, answer...)); err != nil {
		return
	}
	if after != nil {
		after(c)
	}
	rest := make([]byte, 64<<10)
	for {
		if _, err := c.Read(rest); err != nil {
			return
		}
	}
}

// packet is one of the protocol.
func packet(code byte, data string) []byte {
	n := len(data) + 1
	return append([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n), code}, data...)
}
