package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// session is an SMTP client that compares each reply's beginning.
type session struct {
	t testing.TB
	c io.WriteCloser
	r *bufio.Reader
}

// connect opens a session and says EHLO.
func connect(t testing.TB, addr string) *session {
	t.Helper()
	c := assert.Get(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { c.Close() })
	assert.Must(t, c.SetDeadline(time.Now().Add(2*patience)))
	k := &session{t, c, bufio.NewReader(c)}
	k.expect("", "220")
	k.say("EHLO client.example.net", "250")
	return k
}

func (k *session) say(line, want string) string {
	k.t.Helper()
	k.write(line + "\r\n")
	return k.expect(line, want)
}

func (k *session) write(text string) {
	k.t.Helper()
	_, err := k.c.Write([]byte(text))
	assert.Must(k.t, err)
}

// expect reads a reply of one or more lines to a command.
func (k *session) expect(command, want string) string {
	k.t.Helper()
	var all string
	for {
		text, err := k.r.ReadString('\n')
		if err != nil {
			k.t.Fatalf("%.40s: %q, %v", command, all, err)
		}
		if all += text; len(text) > 3 && text[3] == ' ' {
			break
		}
	}
	if !strings.HasPrefix(all, want) {
		k.t.Fatalf("%.40s: got %q, want %s", command, all, want)
	}
	return all
}

// envelope sends MAIL, RCPT and DATA.
func (k *session) envelope(from string, to ...string) {
	k.t.Helper()
	k.say("MAIL FROM:<"+from+">", "250")
	for _, rcpt := range to {
		k.say("RCPT TO:<"+rcpt+">", "250")
	}
	k.say("DATA", "354")
}

// send sends a message, whose lines end with CRLF, and wants a reply to it.
func (k *session) send(from, content, want string, to ...string) {
	k.t.Helper()
	k.envelope(from, to...)
	k.say(content+".", want)
}

// source returns a client that sends n messages of one kind on one connection.
func source(s *suite.Suite, n int, from, to, text string) *peer.Source {
	body := stuffed(text)
	return &peer.Source{Addr: s.SMTPAddr, Connections: 1, Messages: n, From: from,
		To: func(int) string { return to }, Body: func(int) []byte { return body }}
}

// sendSMTP sends a message, whose lines end with LF, by SMTP.
func sendSMTP(t *testing.T, s *suite.Suite, from, to, text string) {
	t.Helper()
	assert.Must(t, source(s, 1, from, to, text).Run(context.Background()))
}

// wire is text as SMTP carries it: CRLF line ends, an ended last line, a blank for a CR.
func wire(text string) string {
	text = strings.ReplaceAll(text, "\r", " ")
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return strings.ReplaceAll(text, "\n", "\r\n")
}

// stuffed is wire with dots doubled at line beginnings; a CR stays one.
func stuffed(text string) []byte {
	const cr = "\x01CR\x01"
	text = strings.ReplaceAll("\r\n"+wire(strings.ReplaceAll(text, "\r", cr)), "\r\n.", "\r\n..")
	return []byte(strings.ReplaceAll(strings.TrimPrefix(text, "\r\n"), cr, "\r"))
}

func abbreviate(s string) string {
	if len(s) > 600 {
		return s[:300] + " ... " + s[len(s)-300:]
	}
	return s
}

func newSink(t *testing.T, s *peer.Sink) *peer.Sink { return rig.Sink(t, s) }

// sinkAt returns a sink at an address of loopback and a port, 0 for any.
func sinkAt(t *testing.T, ip string, port int) *peer.Sink {
	t.Helper()
	return newSink(t, &peer.Sink{Listen: fmt.Sprintf("%s:%d", ip, port)})
}

func portOf(t *testing.T, s *peer.Sink) int {
	t.Helper()
	addr := assert.Get(net.ResolveTCPAddr("tcp", s.Addr()))(t)
	return addr.Port
}

// arrivals returns a sink's messages for a recipient.
func arrivals(s *peer.Sink, rcpt string) []*peer.Message {
	return slices.DeleteFunc(s.Messages(), func(m *peer.Message) bool { return !slices.Contains(m.Recipients, rcpt) })
}

// arrived waits for one more message at the sink.
func arrived(t *testing.T, sink *peer.Sink, before int) *peer.Message {
	t.Helper()
	assert.Must(t, sink.Wait(before+1, patience))
	return sink.Messages()[before]
}

// wantArrived wants n messages at a sink.
func wantArrived(t *testing.T, sink *peer.Sink, n int) {
	t.Helper()
	assert.Equal(t, len(sink.Messages()), n)
}

// wantEach wants n messages for each recipient at a sink.
func wantEach(t *testing.T, sink *peer.Sink, n int, to ...string) {
	t.Helper()
	got := map[string]int{}
	for _, m := range sink.Messages() {
		for _, r := range m.Recipients {
			got[r]++
		}
	}
	for _, r := range to {
		assert.Equal(t, got[r], n, r)
	}
}

// rcptsOf returns the recipients of a sink's messages.
func rcptsOf(s *peer.Sink) string {
	var list []string
	for _, m := range s.Messages() {
		list = append(list, m.Recipients...)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// refusing is a sink that defers recipients until it is opened, except those whose
// addresses begin with ok.
type refusing struct {
	*peer.Sink
	open chan struct{} // closed: every recipient is accepted
}

func newRefusing(t *testing.T) *refusing {
	t.Helper()
	r := &refusing{open: make(chan struct{})}
	r.Sink = newSink(t, &peer.Sink{Rcpt: func(address string, _ int) string {
		if strings.HasPrefix(address, "ok") {
			return ""
		}
		select {
		case <-r.open:
			return ""
		default:
			return "451 4.2.1 later"
		}
	}})
	return r
}

// slow has deferred mail wait for an hour, so that nothing happens by itself.
func slow(s *suite.Suite) {
	s.Files["scheduler.conf"] = strings.ReplaceAll(schedulerConf, "interval=1s", "interval=1h")
}

// waits submits a message to one recipient that a refusing sink accepts and two that it
// defers, and waits for that.
func waits(t *testing.T, s *suite.Suite) (id, name string) {
	t.Helper()
	s.Forget()
	submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "ok@sink.example", "one@sink.example", "two@sink.example")
	event(t, s, "deferred", "rcpt", "one@sink.example")
	event(t, s, "deferred", "rcpt", "two@sink.example")
	e := event(t, s, "delivered", "rcpt", "ok@sink.example")
	return e.Get("id"), e.Get("name")
}

// gate stops a sink at one moment until it is opened.
type gate struct {
	at      string
	reached chan struct{} // one for each message that came there
	open    chan struct{}
	once    sync.Once
}

// newGate makes a sink with a gate.
func newGate(t *testing.T, at string) (*peer.Sink, *gate) {
	t.Helper()
	g := &gate{at: at, reached: make(chan struct{}, 10), open: make(chan struct{})}
	sink := newSink(t, &peer.Sink{Stall: g.stall})
	t.Cleanup(g.release) // before the sink's end, which waits for its connections
	return sink, g
}

func (g *gate) stall(at string, _ *peer.Message) {
	if at == g.at {
		g.reached <- struct{}{}
		<-g.open
	}
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

// await waits until a message is at the gate.
func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(patience):
		t.Fatalf("no message has come to %s", g.at)
	}
}

// stalled returns a system with one message that a sink stops.
func stalled(t *testing.T, at string) (*suite.Suite, *peer.Sink, *gate) {
	t.Helper()
	sink, g := newGate(t, at)
	s := start(t, sink, nil)
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
	g.await(t)
	return s, sink, g
}

// confFile returns a file beside zmailer.conf.
func confFile(s *suite.Suite, name string) string {
	return filepath.Join(filepath.Dir(s.Config()), name)
}

// yes calls a command without confirmation.
func yes(t *testing.T, s *suite.Suite, args ...string) string {
	t.Helper()
	return zmctl(t, s, append([]string{args[0], "--yes"}, args[1:]...)...)
}

// balance wants the ledger to agree with the files.
func balance(t *testing.T, s *suite.Suite) {
	t.Helper()
	exits(t, s, 0, "zmctl", "check", "--ledger")
}

// oneOf returns the system's only process of a program.
func oneOf(t *testing.T, s *suite.Suite, program string) suite.Process {
	t.Helper()
	for _, p := range processes(t, s) {
		if p.Name == program {
			return p
		}
	}
	t.Fatalf("no %s runs", program)
	return suite.Process{}
}

// awaitState waits for a state that other systems' processes bring about.
func awaitState(t *testing.T, what string, ok func() bool) {
	t.Helper()
	rig.Await(t, what, ok)
}
