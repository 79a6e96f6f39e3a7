// Package miltertest is a mail filter for tests, made with go-milter's server side:
//
//	f := (&miltertest.Filter{At: map[string]milter.Response{"rcpt bad@example.org": milter.RespReject}}).Serve(t)
//	... connect to f.Address ...
//	f.Heard() // "connect ...", "helo ...", "mail ...", "rcpt ...", ...
//
// It owns nothing. Diagnostics: there are none of its own.
package miltertest

import (
	"bytes"
	"fmt"
	"net"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-milter"

	"zmailer/internal/run/assert"
)

// Filter accepts everything unless a test sets an answer.
type Filter struct {
	Address  string                     // set by Serve
	Protocol milter.OptProtocol         // what it does not want to see or to answer
	At       map[string]milter.Response // answers by step, and by "step argument"
	// End answers the end of a message in place of At["body"]; the test may ask for changes.
	End func(*milter.Modifier) (milter.Response, error)
	// Macros are names of macros by step, whose values Heard has behind the argument.
	Macros map[string]string

	mu    sync.Mutex
	heard []string
	body  bytes.Buffer
	conns []net.Conn
}

// Serve serves on loopback until the test ends.
func (f *Filter) Serve(t testing.TB) *Filter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	return f.ServeOn(t, l)
}

// ServeOn is Serve on a listener.
func (f *Filter) ServeOn(t testing.TB, l net.Listener) *Filter {
	f.Address = l.Addr().String()
	server := &milter.Server{NewMilter: func() milter.Milter { return f }, Protocol: f.Protocol,
		Actions: milter.OptAddHeader | milter.OptChangeHeader | milter.OptChangeBody | milter.OptAddRcpt |
			milter.OptRemoveRcpt | milter.OptQuarantine | milter.OptChangeFrom}
	done := make(chan error, 1)
	go func() { done <- server.Serve(keeper{l, f}) }()
	t.Cleanup(func() {
		// The library closes the listener twice.
		_ = l.Close()
		<-done
	})
	return f
}

// keeper keeps the connections that it accepts.
type keeper struct {
	net.Listener
	f *Filter
}

// Accept implements net.Listener.
func (k keeper) Accept() (net.Conn, error) {
	c, err := k.Listener.Accept()
	if err == nil {
		k.f.mu.Lock()
		defer k.f.mu.Unlock()
		k.f.conns = append(k.f.conns, c)
	}
	return c, err
}

// Disconnect closes the connections so far, as a filter that is restarted does.
func (f *Filter) Disconnect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}

// Accept takes all answers back.
func (f *Filter) Accept() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.At = nil
}

// Heard returns the steps since the last call, with their arguments.
func (f *Filter) Heard() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.heard
	f.heard = nil
	return h
}

func (f *Filter) step(step, arg string, m *milter.Modifier) (milter.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	note := step
	if arg != "" {
		note += " " + arg
	}
	if macro := f.Macros[step]; macro != "" {
		note += " " + m.Macros[macro]
	}
	f.heard = append(f.heard, note)
	for _, key := range []string{step + " " + arg, step} {
		if r := f.At[key]; r != nil {
			return r, nil
		}
	}
	return milter.RespContinue, nil
}

// Connect implements milter.Milter.
func (f *Filter) Connect(host, family string, _ uint16, addr net.IP, m *milter.Modifier) (milter.Response, error) {
	return f.step("connect", fmt.Sprintf("%s %s %v", host, family, addr), m)
}

// Helo implements milter.Milter.
func (f *Filter) Helo(name string, m *milter.Modifier) (milter.Response, error) {
	return f.step("helo", name, m)
}

// MailFrom implements milter.Milter.
func (f *Filter) MailFrom(from string, m *milter.Modifier) (milter.Response, error) {
	return f.step("mail", from, m)
}

// RcptTo implements milter.Milter.
func (f *Filter) RcptTo(to string, m *milter.Modifier) (milter.Response, error) {
	return f.step("rcpt", to, m)
}

// Header implements milter.Milter.
func (f *Filter) Header(name, value string, m *milter.Modifier) (milter.Response, error) {
	return f.step("header", name+":"+value, m)
}

// Headers implements milter.Milter.
func (f *Filter) Headers(_ textproto.MIMEHeader, m *milter.Modifier) (milter.Response, error) {
	return f.step("headers", "", m)
}

// BodyChunk implements milter.Milter.
func (f *Filter) BodyChunk(b []byte, _ *milter.Modifier) (milter.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.body.Write(b)
	switch r := f.At["chunk"]; {
	case f.Protocol&milter.OptNoBodyReply != 0:
		return nil, nil
	case r != nil:
		return r, nil
	}
	return milter.RespContinue, nil
}

// Body implements milter.Milter.
func (f *Filter) Body(m *milter.Modifier) (milter.Response, error) {
	f.mu.Lock()
	body := strings.TrimRight(f.body.String(), "\r\n")
	f.body.Reset()
	f.mu.Unlock()
	r, err := f.step("body", body, m)
	if f.End != nil {
		return f.End(m)
	}
	return r, err
}

// Abort implements milter.Milter.
func (f *Filter) Abort(m *milter.Modifier) error {
	_, err := f.step("abort", "", m)
	return err
}
