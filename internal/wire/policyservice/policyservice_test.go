package policyservice

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// serve answers each request with what answer writes; false ends the connection.
func serve(t testing.TB, answer func(w io.Writer, n int) bool) (Endpoint, *atomic.Int32) {
	t.Helper()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	var conns, requests atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					if line == "\n" && !answer(c, int(requests.Add(1))) {
						return
					}
				}
			}()
		}
	}()
	return Endpoint{"tcp", l.Addr().String()}, &conns
}

var question = []Attr{{"request", "smtpd_access_policy"}, {"sender", "a@b.test\naction=OK\n\n"}}

func TestConnectionsAreUsedAgain(t *testing.T) {
	at, conns := serve(t, func(w io.Writer, n int) bool {
		fmt.Fprintf(w, "other=x\naction=DUNNO %d\n\n", n)
		return true
	})
	c := New(at, time.Second)
	defer c.Close()
	for i := range 10 {
		got := assert.Get(c.Ask(context.Background(), question))(t)
		assert.Equal(t, got, fmt.Sprintf("DUNNO %d", i+1))
	}
	assert.Equal(t, conns.Load(), 1)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := c.Ask(context.Background(), question); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := conns.Load(); n > 21 {
		t.Errorf("%d connections", n)
	}
}

// A service closes connections that are idle, and is restarted: neither is an error.
func TestClosedConnectionIsNoFailure(t *testing.T) {
	at, conns := serve(t, func(w io.Writer, n int) bool {
		fmt.Fprint(w, "action=OK\n\n")
		return false
	})
	c := New(at, 5*time.Second)
	defer c.Close()
	for range 3 {
		assert.Equal(t, assert.Get(c.Ask(context.Background(), question))(t), "OK")
	}
	if conns.Load() < 3 {
		t.Errorf("%d connections", conns.Load())
	}
}

// What is no answer is an error, within a bound of time and memory.
func TestUnusableAnswersAreErrors(t *testing.T) {
	for name, answer := range map[string]string{
		"garbage":         "hello\n\n",
		"no action":       "result=OK\n\n",
		"empty":           "\n",
		"a million lines": strings.Repeat("x=y\n", 1000000),
		"an endless line": "action=" + strings.Repeat("x", 10<<20),
		"NULs":            strings.Repeat("\x00", 1<<20),
		"cut":             "action=OK\n",
	} {
		t.Run(name, func(t *testing.T) {
			at, _ := serve(t, func(w io.Writer, n int) bool {
				_, _ = io.WriteString(w, answer) // we close before the end
				return false
			})
			c := New(at, 3*time.Second)
			defer c.Close()
			if got, err := c.Ask(context.Background(), question); err == nil {
				t.Errorf("got %.60q", got)
			}
		})
	}
}

// A service that hangs costs one request its time; the next ones are answered at once until
// it is tried again, and then it is used.
func TestServiceThatHangsIsLeftAloneForAWhile(t *testing.T) {
	var hang atomic.Bool
	hang.Store(true)
	release := make(chan struct{})
	at, _ := serve(t, func(w io.Writer, n int) bool {
		if hang.Load() {
			<-release
			return false
		}
		fmt.Fprint(w, "action=OK\n\n")
		return true
	})
	c := New(at, 200*time.Millisecond)
	defer c.Close()
	defer close(release)
	began := time.Now()
	_, err := c.Ask(context.Background(), question)
	if err == nil || time.Since(began) < 200*time.Millisecond {
		t.Fatalf("got %v after %v", err, time.Since(began))
	}
	began = time.Now()
	for range 1000 {
		if _, again := c.Ask(context.Background(), question); again == nil {
			t.Fatal("no error")
		}
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("1000 requests took %v", d)
	}
	hang.Store(false)
	c.mu.Lock()
	c.until = time.Now().Add(-time.Second)
	c.mu.Unlock()
	assert.Equal(t, assert.Get(c.Ask(context.Background(), question))(t), "OK")
}

// The session's end ends its request, and says nothing about the service.
func TestEndOfTheSessionIsNoFailureOfTheService(t *testing.T) {
	asked := make(chan struct{})
	at, _ := serve(t, func(w io.Writer, n int) bool {
		if n == 1 {
			close(asked)
			return true
		}
		fmt.Fprint(w, "action=OK\n\n")
		return true
	})
	c := New(at, time.Minute)
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-asked; cancel() }()
	if _, err := c.Ask(ctx, question); err == nil {
		t.Error("no error")
	}
	assert.Equal(t, assert.Get(c.Ask(context.Background(), question))(t), "OK")
}

func TestServiceThatIsNotThereIsAnError(t *testing.T) {
	c := New(Endpoint{"unix", "/nonexistent/socket"}, 3*time.Second)
	if _, err := c.Ask(context.Background(), question); err == nil || errors.Is(err, errReply) {
		t.Errorf("got %v", err)
	}
}

// No value can add a line to a request.
func TestValuesHaveNoLineEnds(t *testing.T) {
	got := string(encode(question))
	assert.Equal(t, got, "request=smtpd_access_policy\nsender=a@b.test?action=OK??\n\n")
}

func TestEndpointsAreThoseOfPostfix(t *testing.T) {
	for text, want := range map[string]string{"inet:127.0.0.1:10023": "tcp 127.0.0.1:10023", "inet:10023": "tcp 127.0.0.1:10023", "inet:[::1]:1": "tcp [::1]:1", "unix:/run/p": "unix /run/p",
		"unix:private/p": "", "inet:": "", "tcp:1": "", "": "", "inet:host:": ""} {
		e, err := Parse(text)
		if got := e.Network + " " + e.Addr; err == nil && got != want || err != nil && want != "" {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}
