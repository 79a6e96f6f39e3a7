package router

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// What takes long holds up nobody: while one message stands still, in the middle of being
// routed, another one comes and is routed.
func TestMessageThatTakesLongHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "members")
	assert.Must(t, os.WriteFile(list, []byte("a@example.net\n"), 0o600))
	settled := time.Now().Add(-time.Hour)
	assert.Must(t, os.Chtimes(list, settled, settled))
	var many strings.Builder
	for i := range manyRecipients + 1 {
		fmt.Fprintf(&many, "to <a%d@example.net>\n", i)
	}
	for name, text := range map[string]string{
		"many recipients": "from <bond@example.org>\n" + many.String() + "env-end\nSubject: x\n\nx\n",
		"a large header":  "from <bond@example.org>\nto <a@example.net>\nenv-end\nX-Large: " + strings.Repeat("x", largeHeader) + "\n\nx\n",
		"a list's file":   plain("team@example.org"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{"aliases": "team: :include:" + list + "\n"}, func(c *Config) { c.Poll = time.Hour })
			o.start(t, o.r)
			o.log.Await(t, "msg=started")
			passed := make(chan struct{})
			o.disk.On(faultfs.Create, "router/..*", 1, func(string) error {
				defer close(passed)
				other := o.submit(plain("other@example.net"))
				o.log.Await(t, "msg=routed", "id="+other.ID.String())
				return nil
			})
			a := o.submit(text)
			<-passed
			o.log.Await(t, "msg=routed", "id="+a.ID.String())
			o.expect("in the end", map[string]int{"queue": 2, "transport": 2})
		})
	}
}

// Many messages that wait are routed side by side.
func TestWaitingMessagesAreRoutedByAllWorkers(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) { c.Poll = time.Hour })
	const messages = 2 * manyWaiting
	for i := range messages {
		o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
	}
	passed := make(chan struct{})
	o.disk.On(faultfs.Create, "router/..*", 1, func(string) error {
		defer close(passed)
		// The first one ends when most others have: those that are left are not many.
		o.log.AwaitCount(t, messages-manyWaiting, "msg=routed")
		return nil
	})
	o.start(t, o.r)
	<-passed
	o.log.AwaitCount(t, messages, "msg=routed")
	o.expect("in the end", map[string]int{"queue": messages, "transport": messages})
}

// A worker that is done while the one who leads waits for hints has that one go on: what
// failed is tried again in time, and what has to run alone begins.
func TestOutcomeInterruptsTheOneWhoWaits(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	hints := newScripted()
	d := newDispatcher(o.r, hints)
	d.running = 1
	d.wake = alarm{}
	if !d.rest() {
		t.Fatal("something is to be settled")
	}
	waits := make(chan []watch.Hint)
	go func() { waits <- hints.Await(time.Time{}) }()
	d.report(jobResult{"1", postoffice.ErrGone})
	if got := <-waits; got != nil {
		t.Errorf("got %v, want nothing", got)
	}
	d.rested()
	if d.settle(); d.running != 0 {
		t.Errorf("running: got %d, want 0", d.running)
	}
	// No task waits: it is settled before the next rest.
	d.running = 1
	d.report(jobResult{"2", postoffice.ErrGone})
	if d.rest() {
		t.Error("it would wait although a message was reported")
	}
}
