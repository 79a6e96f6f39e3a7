package mailbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/agent"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// tagged are recipients jim+0, jim+1, … as the router writes them, jim himself first.
func tagged(n int) []workspec.Recipient {
	list := []workspec.Recipient{mailTo("jim@example.org")}
	for i := range n - 1 {
		r := mailTo("jim@example.org")
		r.Address = fmt.Sprintf("jim+%d@example.org", i)
		list = append(list, r)
	}
	return list
}

// Atk6
func TestAtk6TagsGetOneCopyOfAMessage(t *testing.T) {
	const n = 1000
	for name, template := range map[string]string{"Maildir": "$MAIL/%u/", "mbox": "$MAIL/%u"} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, template)
			joe := mailTo("joe@example.org")
			got := p.do(p.queue("s@example.org", "Subject: x\n\n", "body\n", append(tagged(n), joe)...))
			assert.Equal(t, len(got), n+1, "answers")
			for _, answer := range got {
				if !strings.HasPrefix(answer, "\tok3 ") {
					t.Fatalf("got %q, want ok3", answer)
				}
			}
			want := top + "Subject: x\n\nbody\n"
			if strings.HasSuffix(template, "/") {
				if got := p.maildir(filepath.Join(p.mail, "jim")); len(got) != 1 || got[0] != want {
					t.Errorf("%d messages, want one: %.300q", len(got), got)
				}
				return
			}
			if got := p.read(filepath.Join(p.mail, "jim")); strings.Count(got, "\nSubject: x\n") != 1 || !strings.Contains(got, want) {
				t.Errorf("got %.500q, want one message", got)
			}
		})
	}
}

// Atk6: what differs in the copies is not made one.
func TestAtk6CopiesThatDifferStayApart(t *testing.T) {
	rcpt := func(host, address string) workspec.Recipient {
		r := mailTo(host)
		r.Address = address
		return r
	}
	for name, tt := range map[string]struct {
		header string
		rcpts  []workspec.Recipient
		ok     int // answers
		copies int
	}{
		"another user":   {"", []workspec.Recipient{mailTo("jim@example.org"), rcpt("joe@example.org", "joe+a@example.org")}, 2, 2},
		"another domain": {"", []workspec.Recipient{mailTo("jim@example.org"), rcpt("jim@example.com", "jim+a@example.com")}, 2, 2},
		"a loop of one":  {"Delivered-To: jim+a@example.org\n", append(tagged(1), rcpt("jim@example.org", "jim+a@example.org")), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u/")
			ok := 0
			for _, answer := range p.do(p.queue("s@example.org", tt.header+"Subject: x\n\n", "body\n", tt.rcpts...)) {
				if strings.HasPrefix(answer, "\tok3 ") {
					ok++
				}
			}
			got := 0
			for _, user := range p.names(p.mail) {
				got += len(p.maildir(filepath.Join(p.mail, user)))
			}
			if ok != tt.ok || got != tt.copies {
				t.Errorf("%d delivered in %d copies, want %d in %d", ok, got, tt.ok, tt.copies)
			}
		})
	}
}

// Atk6: the process or the machine stops before every operation. After the next attempt all
// recipients have the one copy, and no death of a process alone leaves a doubt or a second one.
func TestAtk6CopyForTagsSurvivesEveryCut(t *testing.T) {
	for _, rcpts := range []int{3, 150} {
		t.Run(fmt.Sprint(rcpts), func(t *testing.T) {
			var name string
			EveryCut(t, 8, func(cut func(*cutfs.FS)) *cutfs.FS {
				var disk *cutfs.FS
				disk, name = fillDisk(t, cutfs.New(), true, tagged(rcpts)...)
				return attempt(t, disk, name, Quota{}, cut)
			}, func(where string, proc *cutfs.FS, loss cutfs.Loss) {
				next := proc.Restart(loss)
				before := look(t, next, name)
				if done := tagsOK(t, next, name); done > 0 && before.whole != 1 {
					t.Errorf("%s: %d tags say delivered, and new/ has %d messages", where, done, before.whole)
				}
				attempt(t, next, name, Quota{}, func(*cutfs.FS) {})
				s := look(t, next, name)
				if got := tagsOK(t, next, name); got != rcpts || s.whole != 1 || s.torn != 0 {
					t.Errorf("%s: after the next attempt %d tags say delivered, %d messages in new/, %d in tmp/", where, got, s.whole, s.torn)
				}
				for _, e := range s.history {
					if e.Event == workspec.EventInDoubt && !loss.Power {
						t.Errorf("%s: in doubt, although the name in new/ shows it", where)
					}
				}
			})
		})
	}
}

// tagsOK returns how many recipients are delivered by their tags.
func tagsOK(t *testing.T, disk *cutfs.FS, name string) (n int) {
	t.Helper()
	for _, r := range Parse(t, Read(t, disk, "transport/"+name)).Groups[0].Recipients {
		if r.Tag == workspec.TagOK {
			n++
		}
	}
	return n
}

// Atk6: an attempt for one of the tags alone, the others being held, ended between the copy
// and the tag. The next one, for all of them, finds that copy.
func TestAtk6CopyOfAnotherTagIsFound(t *testing.T) {
	for name, template := range map[string]string{"Maildir": "$MAIL/%u/", "mbox": "$MAIL/%u"} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, template)
			name := p.queue("s@example.org", "Subject: x\n\n", "body\n", tagged(3)...)
			p.agent.Do(p.Context(), taproto.Job{Name: name}, onlyLast{p.mailbox})
			p.Mark(name, 2, workspec.TagBytes(p.Spec(name).Format, workspec.TagToDo))
			box := filepath.Join(p.mail, "jim")
			if strings.HasSuffix(template, "/") {
				// Its reader has seen it.
				for _, file := range p.names(filepath.Join(box, "new")) {
					p.must(os.Rename(filepath.Join(box, "new", file), filepath.Join(box, "cur", file+":2,S")))
				}
			}
			for _, answer := range p.do(name) {
				if !strings.HasPrefix(answer, "\tok3 ") {
					t.Errorf("got %q, want ok3", answer)
				}
			}
			copies := 0
			if strings.HasSuffix(template, "/") {
				copies = len(p.names(filepath.Join(box, "new"))) + len(p.names(filepath.Join(box, "cur")))
			} else {
				copies = strings.Count(p.read(box), "\nSubject: x\n")
			}
			assert.Equal(t, copies, 1, "copies")
		})
	}
}

// onlyLast delivers to the last recipient of a job.
type onlyLast struct{ to agent.Deliverer }

func (o onlyLast) Deliver(ctx context.Context, d *agent.Delivery) {
	all := d.Recipients
	d.Recipients = all[len(all)-1:]
	o.to.Deliver(ctx, d)
	d.Recipients = all
}
