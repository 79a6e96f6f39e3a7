package router

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// start serves in the background until the test ends or stop is called; stop
// returns when all has ended.
func (o *office) start(t *testing.T, r *Router) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.rounds(ctx, filepath.Join(o.dir, postoffice.Router))
	}()
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

func TestHintedMessageIsRoutedWithoutALookAtTheDirectory(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) { c.Poll = time.Hour })
	looks := o.disk.On(faultfs.ReadDir, postoffice.Router, faultfs.Always, func(string) error { return nil })
	o.submit(plain("first@example.net"))
	o.start(t, o.r)
	// What was there before the start is found by the first look.
	o.log.Await(t, "msg=routed")
	before := looks.Hits()
	for i := range 20 {
		o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
		o.log.AwaitCount(t, 2+i, "msg=routed")
	}
	if got := looks.Hits(); got != before {
		t.Errorf("looks at router/: got %d more, want none", got-before)
	}
	o.expect("in the end", map[string]int{"queue": 21, "transport": 21})
}

// M9, the router's side
func TestMessageWithoutAHintIsFoundByThePeriodicLook(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	hints := newScripted()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		newDispatcher(o.r, hints).run(ctx)
	}()
	hints.c <- watch.Hint{}
	o.submit(plain("a@example.net"))
	hints.c <- watch.Hint{}
	o.log.Await(t, "msg=routed")
	hints.c <- watch.Hint{Dir: "router", Name: "123456789"} // gone again
	cancel()
	<-ended
	o.logged(0, "level=ERROR")
}

// A17
func TestStoppingRouterFinishesTheMessageItHas(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	var stop func()
	ready, stopped := make(chan struct{}), make(chan struct{})
	o.disk.On(faultfs.Create, "router/..*", 1, func(string) error {
		<-ready
		go func() {
			stop()
			close(stopped)
		}()
		return nil
	})
	o.submit(plain("a@example.net"))
	stop = o.start(t, o.r)
	close(ready)
	<-stopped
	o.expect("stopped", map[string]int{"queue": 1, "transport": 1})
	o.logged(1, "msg=stopped")
}

// K12
func TestFullDiskIsSaidOnceAndEndsByItself(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	full := o.disk.Fail(faultfs.Create, "router/..*", unix.ENOSPC, 2)
	for i := range 5 {
		o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
	}
	o.start(t, o.r)
	o.log.AwaitCount(t, 5, "msg=routed")
	o.log.Await(t, "msg=storage-recovered")
	assert.Equal(t, full.Hits(), 2, "failures")
	o.logged(1, "msg=storage-trouble", "no space left")
	o.expect("in the end", map[string]int{"queue": 5, "transport": 5})
}

func TestPauseDoublesUpToAMinute(t *testing.T) {
	var p pause
	now := time.Unix(1000, 0)
	var got []string
	for range 8 {
		p.longer(now)
		p.longer(now.Add(p.length / 2)) // failed while the pause had begun
		got = append(got, p.length.String())
		now = p.until
	}
	if want := "[1s 2s 4s 8s 16s 32s 1m0s 1m0s]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestOneBadMessageDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	now := time.Unix(2e9, 0)
	o := newOffice(t, nil, func(c *Config) { c.Now = func() time.Time { return now } })
	bad := o.submit(plain("bad@example.net"))
	o.disk.Fail(faultfs.Read, bad.Name+"-*", unix.EIO, faultfs.Always)
	d := newDispatcher(o.r, nil)
	attempts := 0
	for range 10 * 60 {
		d.scan()
		for d.classes.waiting() > 0 && !now.Before(d.pause.until) {
			name := d.classes[0].queue[0].name
			d.classes[0].queue = d.classes[0].queue[1:]
			if name == filepath.Base(bad.Name) {
				attempts++
			}
			d.routed(jobResult{name, o.r.RouteOne(name)})
		}
		now = now.Add(time.Second)
		if now.Unix()%60 == 0 {
			o.submit(plain("good@example.net"))
		}
	}
	// 1+2+4+...+60+60 seconds: some fifteen attempts in ten minutes.
	if attempts < 5 || attempts > 20 {
		t.Errorf("attempts: got %d, want them further and further slow", attempts)
	}
	o.expect("in the end", map[string]int{"router": 1, "queue": 10, "transport": 10})
}

// A message that two routers cannot route is in the other one's hands at half of all
// looks; that is no reason to begin with the shortest pause again.
func TestPauseOfABadMessageOutlivesItsAbsence(t *testing.T) {
	t.Parallel()
	now := time.Unix(2e9, 0)
	o := newOffice(t, nil, func(c *Config) { c.Now = func() time.Time { return now } })
	bad := o.submit(plain("bad@example.net"))
	name := filepath.Base(bad.Name)
	d := newDispatcher(o.r, nil)
	for range 4 {
		d.routed(jobResult{name, unix.EACCES})
		claim := assert.Get(o.po.Router.Claim(o.r.owner, name))(t)
		d.scan() // another router has it
		assert.Must(t, claim.Release())
		now = d.later[name].until
	}
	assert.Equal(t, d.later[name].length, 8*time.Second, "pause after four failures")
	o.logged(1, "msg=not-routed")
	assert.Must(t, os.Remove(filepath.Join(o.dir, bad.Name)))
	now = now.Add(2 * longest)
	if d.scan(); len(d.later) != 0 {
		t.Errorf("remembered after it is gone: %v", d.later)
	}
}

func TestOnceRoutesWhatIsThere(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	for i := range 3 {
		o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
	}
	assert.Must(t, os.WriteFile(filepath.Join(o.dir, "public", "x"), []byte(plain("left@example.net")), 0o700))
	c := o.config()
	c.Once = true
	assert.Must(t, Run(t.Context(), c))
	o.expect("once", map[string]int{"queue": 4, "transport": 4})
	o.logged(1, "msg=picked-up", "uid=65534")
	// Its own owner's file is gone; the office's router has one.
	if got := o.names("owners"); len(got) != 1 {
		t.Errorf("owners: got %q, want one", got)
	}
}
