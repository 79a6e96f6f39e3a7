package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// put changes a file, in the past, and lets a second go by.
func (d *fixture) put(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(d.dir, name)
	assert.Must(t, os.WriteFile(path+".new", []byte(text), 0o644))
	past := d.now.Add(-time.Minute)
	assert.Must(t, os.Chtimes(path+".new", past, past))
	assert.Must(t, os.Rename(path+".new", path))
	d.now = d.now.Add(2 * period)
}

// decision returns what the program decides now; "none": there is none.
func (d *fixture) decision(t testing.TB) string {
	t.Helper()
	prog := d.p.Current()
	if prog == nil {
		return "none"
	}
	defer prog.Release()
	got := assert.Get(d.p.Begin(prog, d.env(), message()).Message(context.Background()))(t)
	return got.Fate.Text
}

func (d *fixture) want(t testing.TB, want string) {
	t.Helper()
	assert.Equal(t, d.decision(t), want, "the answer of the program; log: %s", d.log)
}

func TestChangedProgramIsReadAgain(t *testing.T) {
	d := newFixture(t, nil)
	d.open(t)
	d.want(t, "none")
	d.put(t, File, "def message(m): return defer('one')")
	d.want(t, "one")
	d.put(t, File, "load('lib.star', 'text')\ndef message(m): return defer(text)")
	d.want(t, "one") // what it loads is not there
	d.want(t, "one")
	assert.Equal(t, strings.Count(d.log.String(), "msg=policy-refused"), 1, "refusals in: %s", d.log)
	d.put(t, "lib.star", "text = 'two'\n")
	d.want(t, "two")
	d.put(t, "lib.star", "text = 'three'\n")
	d.want(t, "three")
	d.put(t, "lib.star", "text = \n")
	d.want(t, "three")
	if !strings.Contains(d.log.String(), "lib.star:1:8") {
		t.Errorf("the log does not name the place:\n%s", d.log)
	}
	d.put(t, "lib.star", "text = 'four'\n")
	d.want(t, "four")
	// One that goes away is believed gone at the second look.
	assert.Must(t, os.Remove(filepath.Join(d.dir, File)))
	d.now = d.now.Add(2 * period)
	d.want(t, "four")
	d.now = d.now.Add(2 * period)
	d.want(t, "none")
}

func TestRefusedProgramIsTriedAgain(t *testing.T) {
	d := newFixture(t, map[string]string{File: "def message(m): return defer('old')"})
	d.open(t)
	d.put(t, File, "T = table('t')\ndef message(m): return defer(T('k'))")
	d.want(t, "old")
	d.put(t, "t", "k value\n") // no file of the program
	d.now = d.now.Add(again)
	d.want(t, "value")
	d.put(t, "t", "k another\n")
	d.want(t, "another")
}

func TestHalfWrittenProgramIsNotRead(t *testing.T) {
	d := newFixture(t, map[string]string{File: "def message(m): return defer('old')"})
	d.open(t)
	d.put(t, File, "def message(m): return defer('half")
	now := d.now
	assert.Must(t, os.Chtimes(filepath.Join(d.dir, File), now, now.Add(-settled/2)))
	d.want(t, "old")
	d.put(t, File, "def message(m): return defer('whole')")
	d.want(t, "whole")
	if strings.Contains(d.log.String(), "policy-refused") {
		t.Errorf("half of it was read:\n%s", d.log)
	}
}

func TestProgramThatEverybodyMayWriteIsRefused(t *testing.T) {
	d := newFixture(t, map[string]string{File: "def message(m): pass"})
	assert.Must(t, os.Chmod(filepath.Join(d.dir, File), 0o666))
	if _, err := New(d.config()); err == nil || !strings.Contains(err.Error(), "may be written by everybody") {
		t.Errorf("got %v", err)
	}
	assert.Must(t, os.Remove(filepath.Join(d.dir, File)))
	assert.Must(t, os.Mkdir(filepath.Join(d.dir, File), 0o755))
	if _, err := New(d.config()); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("got %v", err)
	}
}

// Workers use one program while it is replaced; its tables are closed behind the last.
func TestProgramIsReplacedUnderItsUsers(t *testing.T) {
	d := newFixture(t, map[string]string{File: "T = table('t')\ndef message(m): return defer(T('k') + ' ' + str(len(m.recipients)))", "t": "k a\n"})
	var mu sync.Mutex
	c := d.config()
	c.Now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return d.now
	}
	p, err := New(c)
	assert.Must(t, err)
	d.p = p
	stop := make(chan struct{})
	var users sync.WaitGroup
	for range 2 {
		users.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				prog := p.Current()
				got, err := p.Begin(prog, d.env(), message()).Message(context.Background())
				if err != nil || got.Fate.Text != "a 2" {
					t.Errorf("got %q, %v", got.Fate.Text, err)
				}
				assert.NoError(t, prog.Release())
			}
		})
	}
	for range 8 {
		mu.Lock()
		d.put(t, File, "T = table('t')\ndef message(m): return defer(T('k') + ' ' + str(len(m.recipients)))")
		mu.Unlock()
		prog := p.Current()
		assert.NoError(t, prog.Release())
	}
	close(stop)
	users.Wait()
	last := p.cur
	if got := last.refs.Load(); got != 1 {
		t.Errorf("%d users are left", got-1)
	}
	assert.NoError(t, p.Close())
	if last.refs.Load() != 0 {
		t.Error("the program is still in use")
	}
}

// What fails on all mail is found before any comes.
func TestCheckTriesTheProgram(t *testing.T) {
	tests := map[string]struct {
		program string
		want    string
	}{
		"none":              {"", ""},
		"good":              {"D = table('db:x.db')\ndef recipient(m, r):\n    if rate('x', 0, '1h'): return drop()\n    return route('smtp!' + r.domain)", "x.db"},
		"null sender":       {"def message(m):\n    return set_sender(m.sender)", "a sample of mail from <> shows"},
		"no login":          {"def message(m):\n    if rate(m.login, 1, '1h'): return drop()", "rate: for parameter key: got NoneType, want string, as a sample of mail from <a@example.org> shows"},
		"in another":        {"def f(r):\n    return r.nosuch\ndef recipient(m, r):\n    return f(r)", "router.star:2:"},
		"returns a string":  {"def recipient(m, r):\n    return str(r)", "returned a value of type string"},
		"no client":         {"def recipient(m, r):\n    if not in_network(m.client, '10.0.0.0/8') and resolve(r.address) and is_local(r.address): return drop()", ""},
		"large mail":        {"def message(m):\n    if m.size > 20000000: return reject('5.3.4', '')", "the sender is to learn why, as a sample of mail from <a@example.org> shows"},
		"nothing is logged": {"def message(m): log('x')", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newFixture(t, nil)
			if tt.program != "" {
				d.put(t, File, tt.program)
			}
			present, err := Check(d.config())
			if tt.want == "" {
				if err != nil || present != (tt.program != "") {
					t.Errorf("got %v, %v", present, err)
				}
			} else if bad := (*config.Error)(nil); err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &bad) {
				t.Errorf("got %v, want a *config.Error with %q", err, tt.want)
			}
			if d.log.String() != "" {
				t.Errorf("log: %s", d.log)
			}
		})
	}
}
