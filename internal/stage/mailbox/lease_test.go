package mailbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/lease/leasetest"
	"zmailer/internal/workspec"
)

// C4: the deadline passes before the job, before the mark, after the mark, and after the delivery,
// with each kind of store. What is in the store, and what the machine does that serves the
// postoffice next.
func TestC4DeadlineAroundADelivery(t *testing.T) {
	for name, c := range map[string]struct {
		looks   int64 // at the deadline that find a lease: at the job, before the mark, before the delivery
		answers int
		marked  bool
		stored  int
	}{
		"before the job":      {looks: 0},
		"before the mark":     {looks: 1},
		"after the mark":      {looks: 2, marked: true},
		"after the delivery":  {looks: 3, marked: true, stored: 1, answers: 1},
		"after everything is": {looks: 100, marked: true, stored: 1, answers: 1},
	} {
		for kind, to := range map[string]func(p *post, store string) workspec.Recipient{
			"mbox":    func(_ *post, store string) workspec.Recipient { return fileTo(store) },
			"Maildir": func(_ *post, store string) workspec.Recipient { return fileTo(store + "/") },
			"program": func(_ *post, store string) workspec.Recipient { return programTo("echo once >> "+store, runner(), "") },
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				p := newPost(t, "$MAIL/%u")
				dir := openDir(t)
				store := filepath.Join(dir, "store")
				stored := func() int {
					if info, err := os.Stat(store); err != nil {
						return 0
					} else if info.IsDir() {
						return len(p.names(store + "/new"))
					}
					text, n := p.read(store), 0
					for _, word := range []string{"Received: here", "once\n"} {
						n += strings.Count(text, word)
					}
					return n
				}
				p.agent.Lease = leasetest.New(t).Expiring(c.looks)
				id := p.queue("s@example.org", "Subject: x\n\n", "body\n", to(p, store))
				before := p.Text(id)
				assert.Equal(t, len(p.do(id)), max(c.answers, 1), "answers, or a resync")
				assert.Equal(t, stored(), c.stored, "deliveries")
				if c.looks == 0 {
					assert.Equal(t, p.Text(id), before, "specification")
				}
				sent := slices.ContainsFunc(p.Spec(id).History, func(e workspec.Event) bool { return e.Event == workspec.EventSent })
				assert.Equal(t, sent, c.marked, "mark")
				tag := string(workspec.TagOK)
				if c.stored == 0 {
					if tag = string(workspec.TagLocked); c.looks == 0 {
						tag = string(workspec.TagToDo)
					}
				}
				assert.Equal(t, p.Tags(id), tag, "tag")
				if c.stored > 0 {
					return
				}
				// The agent of the next machine. Our owner number is dead for it: here, because it is
				// the only agent of its process.
				p.agent.Lease = nil
				p.one(p.do(id), "\tok3 ")
				assert.Equal(t, stored(), 1, "deliveries at the end")
			})
		}
	}
}
