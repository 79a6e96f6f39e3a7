package crash

import (
	"io"
	"os"
	"path"
	"slices"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// promises looks at a disk after a loss of power, before anybody starts.
func (r *run) promises(name string, disk *cutfs.FS, w *world) {
	r.t.Helper()
	states := r.states(disk)
	for key, attempt := range w.waiting {
		s, there := states[key]
		// A5: who waits, waits because it is written down: the attempt survives. Where
		// names keep no order and are not synced, the message may be back in router/,
		// with its whole specification to be written again.
		if r.v.model != cutfs.Loose && (!there || s.attempt < attempt) {
			r.t.Errorf("%s: %s was left to wait after attempt %d, the disk says %+v", name, key, attempt, s)
		}
	}
	for d, others := range w.beside {
		// The trap "delivered mark saved after the retry time": where a deferral is on
		// the disk, the deliveries of the same attempt are. The second attempt writes
		// into a file that the first has synced.
		if s := states[d.key]; s.attempt >= d.attempt {
			for _, other := range others {
				if o := states[other]; !o.delivered {
					r.t.Errorf("%s: %s has the time after attempt %d on the disk and %s no mark that it was delivered", name, d.key, d.attempt, other)
				}
			}
		}
	}
}

// state is what a specification says of a recipient.
type state struct {
	delivered bool
	attempt   int // of the last deferral
}

// states reads every specification that has its message beside it, by
// subject/recipient.
func (r *run) states(disk *cutfs.FS) map[string]state {
	r.t.Helper()
	states := map[string]state{}
	messages := map[string]bool{} // a change of hash depth may be half done
	for _, name := range r.names(disk, postoffice.Queue) {
		messages[path.Base(name)] = true
	}
	for _, name := range r.names(disk, postoffice.Transport) {
		if !messages[path.Base(name)] {
			continue
		}
		raw := r.read(disk, name)
		spec, err := workspec.Parse(raw)
		if err != nil || !spec.Complete {
			continue
		}
		for _, g := range spec.Groups {
			subject := lastSubject(string(raw[g.HeaderOffset:g.HeaderEnd]))
			for _, rcpt := range g.Recipients {
				s := state{delivered: rcpt.Tag == workspec.TagOK}
				for i := range spec.History {
					e := &spec.History[i]
					if e.Event == workspec.EventDeferred && slices.ContainsFunc(slices.Collect(spec.About(e)), func(r *workspec.Recipient) bool { return r.Offset == rcpt.Offset }) {
						s.attempt++
					}
				}
				states[subject+"/"+rcpt.Address] = s
			}
		}
	}
	return states
}

func (r *run) read(disk *cutfs.FS, name string) []byte {
	r.t.Helper()
	f, err := disk.Open(name, os.O_RDONLY, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}
