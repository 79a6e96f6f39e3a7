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
	"zmailer/internal/run/assert"

	"zmailer/internal/postoffice"
)

// A message that never comes to the scheduler, or whose end was not heard, ends the
// telling too, and nothing is said that is not known.
func TestFollowingEndsWhereTheMessageEnds(t *testing.T) {
	const goneWords = "no longer in the queue: delivered, reported to its sender, discarded or removed"
	for name, c := range map[string]struct {
		to     string // where the message is: "" nowhere, I its inode number
		copied string // and a copy
		events string // that were heard
		deaf   bool   // the scheduler is not heard
		want   string // what is said last
		within time.Duration
	}{
		"frozen":                {to: "freezer/I.spam", want: "frozen (spam): it waits for the postmaster in freezer/I.spam"},
		"frozen, unheard":       {to: "freezer/I.spam", deaf: true, want: "frozen (spam): it waits for the postmaster in freezer/I.spam"},
		"set aside":             {to: "postman/I", want: "it cannot be routed: it waits for the postmaster in postman/I"},
		"discarded":             {want: goneWords, within: 2 * lastEvents},
		"gone, unheard":         {deaf: true, want: goneWords, within: scanPause},
		"gone, a copy is kept":  {copied: "postman/I_undeliverable", want: goneWords, within: 2 * lastEvents},
		"its end was lost":      {events: `{"event":"lost","count":7}`, want: goneWords, within: scanPause},
		"its end was heard":     {events: `{"event":"finished","id":"ID"}`, want: "finished"},
		"frozen, of the queue":  {to: "freezer/I.person", events: `{"event":"frozen","id":"ID","who":"root"}`, want: "frozen (person): it waits for the postmaster in freezer/I.person"},
		"another's end, frozen": {to: "freezer/I.x", events: `{"event":"finished","id":"S1A"}`, want: "frozen (x): it waits for the postmaster in freezer/I.x"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, disk := newPostOffice(t)
			po := assert.Get(postoffice.Open(postoffice.Config{FS: disk}))(t)
			draft := assert.Get(po.Submissions.NewDraft("submit"))(t)
			a := assert.Get(draft.Commit())(t)
			fill := strings.NewReplacer("/I", fmt.Sprintf("/%d", a.ID.Ino), "ID", a.ID.String()).Replace
			if c.copied != "" {
				assert.Must(t, os.Link(filepath.Join(dir, a.Name), filepath.Join(dir, fill(c.copied))))
			}
			if c.to == "" {
				assert.Must(t, os.Remove(filepath.Join(dir, a.Name)))
			} else {
				assert.Must(t, os.Rename(filepath.Join(dir, a.Name), filepath.Join(dir, fill(c.to))))
			}
			synctest.Test(t, func(t *testing.T) {
				out := &bytes.Buffer{}
				s := &submission{Config: Config{Verbose: true, Err: out}, dir: postoffice.Router}
				var l *listener
				if !c.deaf {
					l = &listener{stop: func() {}, more: make(chan struct{}, 1)}
					if c.events != "" {
						l.heard(fill(c.events))
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				began := time.Now()
				s.follow(ctx, l, "test", po, a)
				if took := time.Since(began); took > c.within {
					t.Errorf("it took %v, want %v at most", took, c.within)
				}
				if want := "submit: " + fill(c.want) + "\n"; !strings.HasSuffix(out.String(), want) {
					t.Errorf("said %q, want %q at the end", out, want)
				}
			})
		})
	}
}

// The scheduler tells of a message that is gone a little later.
func TestFollowingHearsTheEndOfAMessageThatIsGone(t *testing.T) {
	dir, disk := newPostOffice(t)
	po := assert.Get(postoffice.Open(postoffice.Config{FS: disk}))(t)
	draft := assert.Get(po.Submissions.NewDraft("submit"))(t)
	a := assert.Get(draft.Commit())(t)
	assert.Must(t, os.Remove(filepath.Join(dir, a.Name)))
	synctest.Test(t, func(t *testing.T) {
		out := &bytes.Buffer{}
		s := &submission{Config: Config{Verbose: true, Err: out}, dir: postoffice.Router}
		l := &listener{stop: func() {}, more: make(chan struct{}, 1)}
		time.AfterFunc(lastEvents/2, func() { l.heard(`{"event":"finished","id":"` + a.ID.String() + `"}`) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s.follow(ctx, l, "", po, a)
		if got := out.String(); got != "submit: finished\n" {
			t.Errorf("said %q, want its end alone", got)
		}
	})
}

func TestOneRecipientIsNotSeveral(t *testing.T) {
	for n, want := range map[int]string{0: "0 recipients", 1: "1 recipient", 4: "4 recipients"} {
		assert.Equal(t, recipients(n), want)
	}
}
