package router

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// S13: however often a message is routed, what is put on is put on once, and is the same.
func TestFieldsArePutOnOnceHoweverOftenAMessageIsRouted(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "members")
	now := time.Now()
	o := newOffice(t, map[string]string{
		"aliases":      "team: :include:" + list + "\n",
		"header-rules": "local add X-Origin inside\n",
		"masquerade":   "q@example.net: other@example.com\n",
	}, func(c *Config) { c.Now = func() time.Time { return now } })
	a := o.submit("from <q@example.net>\nto <team@example.org>\nenv-end\nFrom: q@example.net\nBcc: x@y\nSubject: x\n\nbody\n")
	before, err := os.ReadFile(filepath.Join(o.dir, a.Name))
	assert.Must(t, err)
	// Deferred and resubmitted, and the claim of a router that died, in turns.
	for try := range 3 {
		now = now.Add(time.Hour)
		o.route()
		o.expect(fmt.Sprint("deferred ", try), map[string]int{"deferred": 1})
		names, err := o.po.Aside.ListDeferred()
		if err != nil || len(names) != 1 {
			t.Fatalf("got %q, %v", names, err)
		}
		assert.Get(o.po.Aside.Resubmit(names[0]))(t)
		o.leave(a, 7)
		assert.Must(t, o.r.Recover())
	}
	assert.Must(t, os.WriteFile(list, []byte("bond\n"), 0o644))
	now = now.Add(time.Hour)
	routed := o.route()
	if len(routed) != 1 {
		t.Fatalf("got %d messages", len(routed))
	}
	m := routed[0]
	id := postoffice.Accepted(a).ID
	date := id.Time().Format("Mon, 2 Jan 2006 15:04:05 -0700")
	want := fmt.Sprintf("Received: by mx.example.org (from userid %d)\n\tid %s; %s\nX-Origin: inside\nDate: %s\nMessage-ID: <%s@mx.example.org>\nFrom: other@example.com\nSubject: x\n",
		os.Geteuid(), id, date, date, id)
	assert.Equal(t, m.header(), want, "header")
	if string(m.message) != string(before) {
		t.Errorf("message file: got %q, want it as it was, %q", m.message, before)
	}
}
