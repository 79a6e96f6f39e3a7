package table

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/wire/socketmap"
)

// short is a time limit for lookups that are to run into it.
const short = 150 * time.Millisecond

// server is a real socketmap server, whose answers a function writes.
type server struct {
	net.Listener
	source string
	asked  atomic.Int64 // connections

	mu      sync.Mutex
	open    []net.Conn
	running sync.WaitGroup
}

// serve starts a server on a Unix socket; each connection is handle's.
func serve(t *testing.T, path string, handle func(n int64, c net.Conn)) *server {
	t.Helper()
	l, err := net.Listen("unix", path)
	assert.Must(t, err)
	s := &server{Listener: l, source: "socket:unix:" + path}
	s.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := s.asked.Add(1)
			s.mu.Lock()
			s.open = append(s.open, c)
			s.mu.Unlock()
			s.running.Go(func() {
				defer c.Close()
				handle(n, c)
			})
		}
	})
	t.Cleanup(s.kill)
	return s
}

// kill ends a server with all its connections.
func (s *server) kill() {
	s.Close()
	s.mu.Lock()
	for _, c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// answering is a server of aliases that knows bond.
func answering(_ int64, c net.Conn) {
	_ = socketmap.Serve(c, c, func(name, key string) socketmap.Reply {
		switch {
		case name != "aliases":
			return socketmap.Reply{Status: socketmap.Perm, Text: "no map " + name}
		case key == "bond":
			return socketmap.Reply{Status: socketmap.OK, Text: "jane, joe"}
		case key == "down":
			return socketmap.Reply{Status: socketmap.Temp, Text: "the database is away"}
		}
		return socketmap.Reply{Status: socketmap.NotFound}
	})
}

// raw returns a server that answers requests with the same bytes, the first alone unless hang
// is set.
func raw(text string, hang bool) func(int64, net.Conn) {
	return func(_ int64, c net.Conn) {
		in := bufio.NewReader(c)
		for {
			if _, err := socketmap.Read(in); err != nil {
				return
			}
			if _, err := io.WriteString(c, text); err != nil || !hang {
				return
			}
		}
	}
}

func TestServerIsAskedAndItsAnswersAreTaken(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "s"), answering)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answering(0, c)
		}
	}()
	for _, source := range []string{s.source, s.source + ":aliases", "socket:inet:" + l.Addr().String(), "socket:inet:" + l.Addr().String() + ":aliases"} {
		k := openAs(t, source, Options{Name: "aliases"})
		v, ok, err := k.Lookup(t.Context(), "bond")
		if want := (Value{"jane, joe", Nobody, source}); v != want || !ok || err != nil {
			t.Errorf("%s: got %+v, %v, %v, want %+v", source, v, ok, err, want)
		}
		assert.Equal(t, says(k, "q"), "none", source)
	}
	k := openAs(t, s.source+":users", Options{Name: "aliases"})
	if _, _, err := k.Lookup(t.Context(), "bond"); err == nil || !strings.Contains(err.Error(), "PERM no map users") {
		t.Errorf("unknown map: got %v", err)
	}
}

// M10: whatever a server does but answer, the answer is unknown.
func TestServerThatDoesNotAnswerIsNeverANo(t *testing.T) {
	tests := map[string]struct {
		handle func(int64, net.Conn) // nil: nothing listens
		want   string
	}{
		"dead":                     {nil, "no such file"},
		"ends at once":             {func(int64, net.Conn) {}, "EOF|reset|broken pipe"},
		"ends without an answer":   {raw("", false), "EOF"},
		"ends in the length":       {raw("1", false), "EOF"},
		"ends in the answer":       {raw("9:NOTF", false), "EOF"},
		"ends before the comma":    {raw("9:NOTFOUND ", false), "EOF"},
		"hangs":                    {raw("", true), "no answer within"},
		"hangs in the answer":      {raw("9:NOTFOUND ", true), "no answer within"},
		"babbles":                  {raw("hello, what may I do for you?", true), "not the socketmap protocol"},
		"babbles without end":      {babble, "not the socketmap protocol"},
		"an unknown word":          {raw("5:MAYBE,", true), "not the socketmap protocol"},
		"two answers":              {raw("9:NOTFOUND ,9:NOTFOUND ,", true), "more than one answer"},
		"an answer of a gigabyte":  {raw("1000000000:NOTFOUND", true), "longer than"},
		"says that it is temporal": {raw("9:TEMP down,", true), "TEMP down"},
		"says that it has no time": {raw("8:TIMEOUT ,", true), "TIMEOUT"},
		"says that it never will":  {raw("7:PERM no,", true), "PERM no"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "s")
			if tt.handle != nil {
				serve(t, path, tt.handle)
			}
			k := openAs(t, "socket:unix:"+path, Options{Name: "aliases", Timeout: short, Keep: time.Hour})
			for range 4 { // also while it is left alone, and whatever is remembered
				_, ok, err := k.Lookup(context.Background(), "bond")
				if err == nil || ok || !strings.HasPrefix(err.Error(), "socket:unix:"+path+": ") {
					t.Fatalf("got %v, %v, want an error that names the source", ok, err)
				}
				// A slow machine may meet its limit before it meets the trouble.
				if !matches(err.Error(), tt.want+"|asked again in|no answer within") {
					t.Errorf("got %v, want %q", err, tt.want)
				}
			}
		})
	}
}

// matches reports whether a text holds one of the parts that bars are between.
func matches(text, parts string) bool {
	for part := range strings.SplitSeq(parts, "|") {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

func babble(_ int64, c net.Conn) {
	for {
		if _, err := io.WriteString(c, "9:NOTFOUND 9:NOTFOUND "); err != nil {
			return
		}
	}
}

// An answer that comes late, or twice, must not be taken for that of the next question.
func TestLateAnswerIsNoAnswerToTheNextQuestion(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, filepath.Join(t.TempDir(), "s"), func(n int64, c net.Conn) {
		if n > 1 {
			answering(n, c)
			return
		}
		in := bufio.NewReader(c)
		if _, err := socketmap.Read(in); err != nil {
			return
		}
		// The first is answered well, and once more without a request.
		_ = socketmap.Write(c, "NOTFOUND ")
		_ = socketmap.Write(c, "NOTFOUND ")
		close(release)
		_, _ = io.Copy(io.Discard, c)
	})
	k := openAs(t, s.source, Options{Name: "aliases"})
	if got := says(k, "x"); got != "none" && got != "error" {
		t.Errorf("got %q", got)
	}
	<-release
	assert.Equal(t, says(k, "bond"), "jane, joe")
}

func TestServerThatComesBackIsUsedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	var mu sync.Mutex
	clock := time.Now()
	var log bytes.Buffer
	k := openAs(t, "socket:unix:"+path, Options{
		Name: "aliases", Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return clock },
	})
	advance := func(d time.Duration) { mu.Lock(); clock = clock.Add(d); mu.Unlock() }
	for range 5 {
		if got := says(k, "bond"); got != "error" {
			t.Fatalf("down: got %q", got)
		}
		advance(lastPause)
	}
	s := serve(t, path, answering)
	assert.Equal(t, says(k, "bond")+says(k, "q"), "jane, joenone", "up")
	// Restarted between two questions: the first of the new one does not suffer.
	s.kill()
	s2 := serve(t, path, answering)
	assert.Equal(t, says(k, "bond"), "jane, joe", "restarted")
	assert.Equal(t, s2.asked.Load(), 1, "connections of the new server")
	for _, event := range []string{"source-down", "source-up"} {
		assert.Equal(t, strings.Count(log.String(), event), 1, "times %s is in: %s", event, log.String())
	}
}

// A source that is down costs no time while it is left alone.
func TestFailingServerIsLeftAloneForAWhile(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "s"), raw("", false))
	clock := time.Now()
	k := openAs(t, s.source, Options{Name: "aliases", Now: func() time.Time { return clock }})
	for range 100 {
		if got := says(k, "x"); got != "error" {
			t.Fatalf("got %q", got)
		}
	}
	assert.Equal(t, s.asked.Load(), 2, "questions at one moment")
	clock = clock.Add(firstPause)
	says(k, "x")
	assert.Equal(t, s.asked.Load(), 3, "questions after the pause")
}

func TestCallerThatGoesAwayGetsItsOwnReason(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "s"), raw("", true))
	k := openAs(t, s.source, Options{Name: "aliases", Timeout: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, _, err := k.Lookup(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestManyAskAtOnceOverFewConnections(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "s"), func(_ int64, c net.Conn) {
		_ = socketmap.Serve(c, c, func(_, key string) socketmap.Reply {
			return socketmap.Reply{Status: socketmap.OK, Text: key + "!"}
		})
	})
	k := openAs(t, s.source, Options{Name: "aliases", Timeout: time.Minute})
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			assert.Equal(t, says(k, fmt.Sprint(i)), fmt.Sprint(i)+"!")
		})
	}
	all.Wait()
	// More than socketConnections are opened where a lookup has waited for one.
	if got := s.asked.Load(); got > DefaultParallel {
		t.Errorf("%d connections, want %d at most", got, DefaultParallel)
	}
}

func TestAnswersAreRememberedAndFailuresAreNot(t *testing.T) {
	var asked atomic.Int64
	down := atomic.Bool{}
	s := serve(t, filepath.Join(t.TempDir(), "s"), func(_ int64, c net.Conn) {
		_ = socketmap.Serve(c, c, func(_, key string) socketmap.Reply {
			asked.Add(1)
			switch {
			case down.Load():
				return socketmap.Reply{Status: socketmap.Temp}
			case key == "a":
				return socketmap.Reply{Status: socketmap.OK, Text: "b"}
			}
			return socketmap.Reply{Status: socketmap.NotFound}
		})
	})
	clock := time.Now()
	k := openAs(t, s.source, Options{Name: "aliases", Keep: 5 * time.Second, Now: func() time.Time { return clock }})
	for range 3 {
		if got := says(k, "a") + says(k, "x"); got != "bnone" {
			t.Fatalf("got %q", got)
		}
	}
	assert.Equal(t, asked.Load(), 2, "questions")
	down.Store(true)
	clock = clock.Add(5*time.Second - 1)
	assert.Equal(t, says(k, "a")+says(k, "x")+says(k, "new"), "bnoneerror", "down, remembered")
	clock = clock.Add(1)
	assert.Equal(t, says(k, "a")+says(k, "x"), "errorerror", "down, forgotten")
	down.Store(false)
	assert.Equal(t, says(k, "a")+says(k, "x")+says(k, "new"), "bnonenone", "up")
	for i := range 2 * cacheSize {
		says(k, fmt.Sprint(i))
	}
	if n := k.(*cached).answers.Len(); n > cacheSize {
		t.Errorf("%d answers are remembered, want %d at most", n, cacheSize)
	}
}

func TestSourceThatCannotBeIsRefused(t *testing.T) {
	dir := t.TempDir()
	assert.Must(t, os.WriteFile(filepath.Join(dir, "bad"), []byte("database = x\nqeury = SELECT 1\n"), 0o600))
	for source, want := range map[string]string{
		"nis:aliases":             `"nis" is no kind of source`,
		"hash:/etc/aliases":       "no type in front: /etc/aliases",
		"pcre:/etc/access":        "regexp:/etc/access",
		"db:":                     "no path",
		"exec:":                   "no program",
		"exec:/no/such/program x": "cannot be run",
		"exec:" + dir:             "cannot be run",
		"socket:/run/x":           "socket:unix:PATH",
		"socket:unix:run/x":       "path from the root",
		"socket:inet:host":        "HOST:PORT",
		"socket:inet::25":         "HOST:PORT",
		"sqlite:" + dir + "/none": "cannot be read",
		"sqlite:" + dir + "/bad":  "bad:2: qeury is no setting",
		"ldap:" + dir + "/bad":    "bad:1: database is no setting",
		"file:" + dir + "/none":   "cannot be read",
	} {
		k, err := Open(source, Options{Name: "aliases", Dir: dir})
		if bad := (*config.Error)(nil); !errors.As(err, &bad) || !strings.Contains(err.Error(), want) || k != nil {
			t.Errorf("%s: got %v, want a *config.Error with %q", source, err, want)
		}
	}
}

func TestSettingIsPartedAtBlanksOutsideQuotes(t *testing.T) {
	for setting, want := range map[string]string{
		"":                                     "",
		" aliases  db:x.db ":                   "aliases|db:x.db",
		"a 'exec:/x --y z'\tsocket:w":          "a|exec:/x --y z|socket:w",
		`"exec:/x 'a'" socket:inet:[::1]:25:m`: "exec:/x 'a'|socket:inet:[::1]:25:m",
	} {
		got, err := Split(setting)
		if strings.Join(got, "|") != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", setting, got, err, want)
		}
	}
	if _, err := Split("a 'b"); err == nil || !strings.Contains(err.Error(), "no closing '") {
		t.Errorf("open quote: got %v", err)
	}
	for source, want := range map[string]string{
		"aliases": "file /etc/z/aliases", "/a:b": "file /a:b", "db:x.db": "db /etc/z/x.db", "exec:bin/x -y": "exec /etc/z/bin/x -y",
		"socket:inet:[::1]:25:m": "socket inet:[::1]:25:m",
	} {
		s, err := Parse(source, "/etc/z")
		if got := s.Scheme + " " + s.Rest; got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", source, got, err, want)
		}
	}
	if a, err := parseSocket("inet:[::1]:25:m"); a != (socketAddress{"tcp", "[::1]:25", "m"}) || err != nil {
		t.Errorf("got %+v, %v", a, err)
	}
}

// notes is a config.Keeper that counts.
type notes struct {
	config.Keeper
	bad, good int
}

func (n *notes) Good(string, []byte, uint32, error) { n.good++ }
func (n *notes) Bad(string, error, bool)            { n.bad++ }
func (n *notes) Names(string)                       {}
func (n *notes) OutageAfter() time.Duration         { return 0 }

func (n *notes) Attach(*exec.Cmd, string) (func(), error) { return func() {}, nil }
func (n *notes) Away(string, time.Time, error, string)    { n.bad++ }

func TestSourceThatDoesNotAnswerRaisesOneAlarm(t *testing.T) {
	dir := t.TempDir()
	answer, n := filepath.Join(dir, "answer"), &notes{}
	assert.Must(t, os.WriteFile(filepath.Join(dir, "program"), []byte("#!/bin/sh\nhead -c 1 >/dev/null\ncat '"+answer+"'\n"), 0o755))
	k := assert.Get(Open("exec:"+dir+"/program", Options{Name: "aliases", Dir: dir, Keeper: n}))(t)
	defer k.Close()
	for _, step := range []struct {
		text      string
		bad, good int
	}{
		{"11:TEMP broken,", 1, 0}, {"11:TEMP broken,", 1, 0}, {"9:NOTFOUND ,", 1, 1}, {"4:OK x,", 1, 1}, {"12:TIMEOUT late,", 2, 1}, {"4:OK x,", 2, 2},
	} {
		assert.Must(t, os.WriteFile(answer, []byte(step.text), 0o600))
		_, _, _ = k.Lookup(context.Background(), "key")
		if n.bad != step.bad || n.good != step.good {
			t.Errorf("%s: raised %d and cleared %d times, want %d and %d", step.text, n.bad, n.good, step.bad, step.good)
		}
	}
}
