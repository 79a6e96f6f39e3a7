package submit

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// accept submits an empty message to a postoffice of its own.
func accept(t *testing.T) (string, *postoffice.PostOffice, postoffice.Accepted) {
	t.Helper()
	dir, disk := newPostOffice(t)
	po := assert.Get(postoffice.Open(postoffice.Config{FS: disk}))(t)
	draft := assert.Get(po.Submissions.NewDraft("submit"))(t)
	return dir, po, assert.Get(draft.Commit())(t)
}

// followed follows a message for an hour at most, and returns the last line and the time.
func followed(t *testing.T, l *listener, po *postoffice.PostOffice, a postoffice.Accepted) (string, time.Duration) {
	out := &bytes.Buffer{}
	s := &submission{Config: Config{Verbose: true, Err: out}, dir: postoffice.Router}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	began := time.Now()
	s.follow(ctx, l, "test", po, a)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return lines[len(lines)-1], time.Since(began)
}

// A message that never comes to the scheduler, or whose last event was lost, ends the
// report too: it names the file where the message waits, if there is one.
func TestFollowingEndsWhereTheMessageEnds(t *testing.T) {
	for name, c := range map[string]struct {
		to     string // where the message is: "" nowhere, I its inode number
		copied string // and a copy
		events string // of the scheduler
		deaf   bool   // there are no events
		want   string // in the last line
		within time.Duration
	}{
		"frozen":                {to: "freezer/I.spam", want: "freezer/I.spam"},
		"frozen, no events":     {to: "freezer/I.spam", deaf: true, want: "freezer/I.spam"},
		"set aside":             {to: "postman/I", want: "postman/I"},
		"discarded":             {within: 2 * lastEvents},
		"gone, no events":       {deaf: true, within: scanPause},
		"gone, a copy is kept":  {copied: "postman/I_undeliverable", within: 2 * lastEvents},
		"its end was lost":      {events: `{"event":"lost","count":7}`, within: scanPause},
		"its end":               {events: `{"event":"finished","id":"ID"}`, want: "finished"},
		"frozen in the queue":   {to: "freezer/I.person", events: `{"event":"frozen","id":"ID","who":"root"}`, want: "freezer/I.person"},
		"another's end, frozen": {to: "freezer/I.x", events: `{"event":"finished","id":"S1A"}`, want: "freezer/I.x"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, po, a := accept(t)
			fill := strings.NewReplacer("/I", fmt.Sprintf("/%d", a.ID.Ino), "ID", a.ID.String()).Replace
			file := filepath.Join(dir, a.Name)
			if c.copied != "" {
				assert.Must(t, os.Link(file, filepath.Join(dir, fill(c.copied))))
			}
			if c.to == "" {
				assert.Must(t, os.Remove(file))
			} else {
				assert.Must(t, os.Rename(file, filepath.Join(dir, fill(c.to))))
			}
			synctest.Test(t, func(t *testing.T) {
				var l *listener
				if !c.deaf {
					l = &listener{stop: func() {}, more: make(chan struct{}, 1)}
					if c.events != "" {
						l.heard(fill(c.events))
					}
				}
				last, took := followed(t, l, po, a)
				if took > c.within {
					t.Errorf("it took %v, want %v at most", took, c.within)
				}
				assert.Contains(t, last, fill(c.want))
				assert.Equal(t, strings.Contains(last, "/"), strings.Contains(c.want, "/"), "a file in %q", last)
			})
		})
	}
}

// The scheduler's last event about a message comes a little after its file is gone.
func TestFollowingHearsTheEndOfAMessageThatIsGone(t *testing.T) {
	dir, po, a := accept(t)
	assert.Must(t, os.Remove(filepath.Join(dir, a.Name)))
	synctest.Test(t, func(t *testing.T) {
		l := &listener{stop: func() {}, more: make(chan struct{}, 1)}
		time.AfterFunc(lastEvents/2, func() { l.heard(`{"event":"finished","id":"` + a.ID.String() + `"}`) })
		last, _ := followed(t, l, po, a)
		assert.Contains(t, last, "finished")
	})
}
