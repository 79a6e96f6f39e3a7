package lastgood

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// TestMain is also a program that finds a policy service away, and answers a line on its input with
// the same again.
func TestMain(m *testing.M) {
	dir := os.Getenv("LASTGOOD_TEST_AWAY")
	if dir == "" {
		os.Exit(m.Run())
	}
	s, err := Open(dir, "smtpserver", slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	for err == nil {
		s.Away(service, time.Unix(1_700_000_000, 0), errors.New("connection refused"), "start it")
		fmt.Println("away")
		_, err = in.ReadString('\n')
	}
}

const service = "policy:127.0.0.1:1"

// finder starts a process that finds the service away.
func finder(t *testing.T, dir string) (again, kill func()) {
	t.Helper()
	self := assert.Get(os.Executable())(t)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "LASTGOOD_TEST_AWAY="+dir)
	in, out := assert.Get(cmd.StdinPipe())(t), assert.Get(cmd.StdoutPipe())(t)
	assert.Must(t, cmd.Start())
	r := bufio.NewReader(out)
	line := func() { t.Helper(); assert.Equal(t, assert.Get(r.ReadString('\n'))(t), "away\n", "answer") }
	line()
	kill = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(kill)
	return func() { t.Helper(); assert.Get(io.WriteString(in, "\n"))(t); line() }, kill
}

// Op4: that a server gives no answer is known as long as the process that asks it runs: no alarm is
// left behind by one that was killed. A process that takes over has its own.
func TestOp4AlarmAboutAServerEndsWithItsProcess(t *testing.T) {
	dir := t.TempDir()
	expect := func(what string, n int) {
		t.Helper()
		list := findings(t, dir)
		assert.Equal(t, len(list), n, "%s: findings", what)
		for _, f := range list {
			want := Finding{Program: "smtpserver", Path: service, Since: f.Since, Reason: "connection refused", Away: true, Remedy: "start it"}
			assert.Equal(t, f, want, "%s", what)
			assert.Equal(t, f.Since.Unix(), 1_700_000_000, "%s: since", what)
		}
	}
	again, kill := finder(t, dir)
	expect("it runs", 1)
	again()
	expect("noted again", 1)
	kill()
	expect("killed", 0)

	_, first := finder(t, dir)
	other, second := finder(t, dir)
	first()
	expect("of two processes one was killed", 1)
	other()
	second()
	expect("both were killed", 0)

	// Another process gets an answer, and the one that had none finds the same again later.
	again, _ = finder(t, dir)
	s := assert.Get(Open(dir, "smtpserver", slog.New(slog.DiscardHandler)))(t)
	config.NewOutage(s, config.Backend{Name: service}).Answers()
	expect("it answers another process", 0)
	again()
	expect("but not this one", 1)
}

// Op4: a reload begins no outage anew, and one that names it no more ends it.
func TestOp4OutageOutlivesAReload(t *testing.T) {
	site := newSite(t, "ALARMS=backend=1h\n")
	f := site.follow("smtpserver")
	assert.Equal(t, f.store.OutageAfter(), time.Hour, "limit")
	reload := func(conf, what string) {
		t.Helper()
		site.write(conf)
		assert.Get(f.Read())(t)
		if what != "" {
			f.store.Names(what)
		}
		f.Accept()
	}
	began := time.Unix(1_700_000_000, 0)
	f.store.Away(service, began, errors.New("first"), "")
	reload("ALARMS=backend=1m\n", service)
	assert.Equal(t, f.store.OutageAfter(), time.Minute, "limit")
	f.store.Away(service, began.Add(time.Hour), errors.New("second"), "")
	list := findings(t, site.dir)
	if len(list) != 1 || list[0].Reason != "second" || !list[0].Since.Equal(began) {
		t.Errorf("got %+v", list)
	}
	reload("ALARMS=off\n", "")
	assert.Equal(t, len(findings(t, site.dir)), 0, "findings")
	if n := f.store.OutageAfter(); n >= 0 {
		t.Errorf("limit %v", n)
	}
}
