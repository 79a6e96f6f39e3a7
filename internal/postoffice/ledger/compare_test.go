package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// spool is a postoffice with messages in many states and a journal beside it.
type spool struct {
	t   *testing.T
	po  *postoffice.PostOffice
	dir string
	j   *Journal
}

func newSpool(t *testing.T) *spool {
	po, dir := realOffice(t)
	j := New(po, testConfig("router"))
	t.Cleanup(j.Close)
	return &spool{t, po, dir, j}
}

// file makes a message for so many recipients; %d in its name is its inode number.
func (s *spool) file(name string, recipients int) postoffice.SpoolID {
	s.t.Helper()
	text := "external\nfrom <a@b>\n" + strings.Repeat("to <c@d>\n", recipients) + "env-end\nSubject: x\n\nx\n"
	m := makeFile(s.t, s.po, "public/tmp", text)
	if strings.Contains(name, "%d") {
		name = fmt.Sprintf(name, m.Ino)
	}
	assert.Must(s.t, os.Rename(filepath.Join(s.dir, "public/tmp"), filepath.Join(s.dir, name)))
	return m
}

// queued makes a message in queue/ with its specification; tags are those of its
// recipients.
func (s *spool) queued(tags string) postoffice.SpoolID {
	s.t.Helper()
	m := s.file("queue/%d-7", len(tags))
	var b bytes.Buffer
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: fmt.Sprintf("%d-7", m.Ino), BodyOffset: 1})
	w.Group(workspec.Sender{Channel: "error", Host: "-", Address: "<>", Privilege: "0"},
		func() (list []workspec.Recipient) {
			for _, tag := range tags {
				list = append(list, workspec.Recipient{Tag: workspec.Tag(tag), Channel: "smtp", Host: "d", Address: "c@d", Privilege: "0"})
			}
			return list
		}(), []byte("Subject: x\n"))
	assert.Must(s.t, w.Close())
	makeFile(s.t, s.po, fmt.Sprintf("transport/%d-7", m.Ino), b.String())
	return m
}

func (s *spool) compare(looks int) *Balance {
	s.t.Helper()
	b, err := Compare(context.Background(), s.po, Patience{Looks: looks, Pause: time.Millisecond})
	assert.Must(s.t, err)
	s.adds(b)
	return b
}

// adds wants both sides of the equation to be the same but for the difference.
func (s *spool) adds(b *Balance) {
	s.t.Helper()
	left := b.Accepted + b.Added + b.Found + b.NotEntered.Recipients
	right := b.Total() + b.Moving.Recipients + b.Difference.Recipients
	leftM := b.Messages.Accepted + b.Messages.Found + b.NotEntered.Messages
	rightM := b.Messages.Done + b.Messages.Gone + b.Messages.Unknown + b.Moving.Messages + b.Difference.Messages
	for _, list := range []map[string]Count{b.Queued, b.Held} {
		for _, c := range list {
			right += c.Recipients
			rightM += c.Messages
		}
	}
	if left != right || leftM != rightM {
		s.t.Errorf("the table does not add up: recipients %d and %d, messages %d and %d: %+v", left, right, leftM, rightM, b)
	}
}

// A18 K7: a message in any state that a healthy postoffice has is on both sides.
func TestEveryStateBalances(t *testing.T) {
	for name, make := range map[string]func(s *spool){
		"an empty postoffice":      func(*spool) {},
		"in public/, to be taken":  func(s *spool) { s.file("public/smtp.1.x.y", 2) },
		"from submit, in router/":  func(s *spool) { s.file("router/%d", 2) },
		"from the server":          func(s *spool) { s.j.Accepting().In(s.file("router/%d", 2), 2) },
		"claimed":                  func(s *spool) { s.j.Accepting().In(s.file("router/%d-7", 2), 2) },
		"entered before hand-over": func(s *spool) { s.j.Routed(s.file("router/%d-7", 2), 9, true) },
		"queued":                   func(s *spool) { s.j.Routed(s.queued("+- "), 3, false) },
		"queued in a hash directory": func(s *spool) {
			m := s.queued("  ")
			s.j.Routed(m, 2, false)
			dir := postoffice.HashDir(m.Ino, 2)
			for _, top := range []string{"queue/", "transport/"} {
				assert.Must(s.t, os.MkdirAll(filepath.Join(s.dir, top+dir), 0o755))
				name := fmt.Sprintf("%d-7", m.Ino)
				assert.Must(s.t, os.Rename(filepath.Join(s.dir, top+name), filepath.Join(s.dir, top+dir, name)))
			}
		},
		"finishing, both files there": func(s *spool) {
			m := s.queued("+-")
			s.j.Routed(m, 2, false)
			s.j.Done(m, Outcomes{Delivered: 1, Failed: 1})
		},
		"finished": func(s *spool) {
			s.j.Routed(id(77, 1), 2, false)
			s.j.Done(id(77, 1), Outcomes{Delivered: 1, Expired: 1})
		},
		"deferred":                  func(s *spool) { s.j.Accepting().In(s.file("deferred/%d.users", 2), 2) },
		"deferred, from submit":     func(s *spool) { s.file("deferred/%d.users", 2) },
		"frozen":                    func(s *spool) { s.j.Accepting().In(s.file("freezer/%d.policy", 2), 2) },
		"the only copy":             func(s *spool) { s.j.Accepting().In(s.file("postman/%d", 2), 2) },
		"a copy for the postmaster": func(s *spool) { s.file("postman/%d_header", 2) },
		"a draft": func(s *spool) {
			s.file("public/x", 2)
			assert.Must(s.t, os.Chmod(filepath.Join(s.dir, "public/x"), 0o600))
		},
		"accepted, and in quarantine/":    func(s *spool) { s.j.Accepting().In(s.file("quarantine/router.%d.why", 2), 2) },
		"never accepted, in quarantine/":  func(s *spool) { s.file("quarantine/public.x.incomplete", 2) },
		"taken away with zmctl, unrouted": func(s *spool) { m := s.file("router/%d", 2); s.removed(m, "router"); s.j.Accepting().In(m, 2) },
		"and entered so":                  func(s *spool) { m := s.file("router/%d", 2); s.removed(m, "router"); s.j.Gone(m, 2, ByPerson) },
		"queued, and its copy removed": func(s *spool) {
			m := s.queued("  ")
			s.j.Routed(m, 2, false)
			assert.Must(s.t, os.Link(filepath.Join(s.dir, fmt.Sprintf("queue/%d-7", m.Ino)), filepath.Join(s.dir, "removed", m.String()+".postman.header")))
			assert.Must(s.t, os.Link(filepath.Join(s.dir, fmt.Sprintf("queue/%d-7", m.Ino)), filepath.Join(s.dir, "quarantine/postman.x.copy")))
		},
		"and put back": func(s *spool) { s.j.Gone(s.file("router/%d", 2), 2, ByPerson) },
		"removed by zmctl, routed": func(s *spool) {
			m := s.file("queue/%d-7", 2)
			s.removed(m, "queue")
			s.j.Routed(m, 2, false)
			s.j.Done(m, Outcomes{Delivered: 1, Removed: 1})
		},
		"and put back into queue/": func(s *spool) { s.j.Done(s.queued("+ "), Outcomes{Delivered: 1, Removed: 1}) },
		"touched in queue/": func(s *spool) {
			m := s.queued("  ")
			s.j.Routed(m, 2, false)
			s.touch(fmt.Sprintf("queue/%d-7", m.Ino))
		},
		"touched in router/": func(s *spool) {
			m := s.file("router/%d", 2)
			s.j.Accepting().In(m, 2)
			s.touch(fmt.Sprint("router/", m.Ino))
		},
		"restored from a copy into router/": func(s *spool) {
			m := s.file("router/%d", 2)
			s.j.Accepting().In(m, 2)
			s.file(fmt.Sprint("router/", m.Ino), 2)
		},
		"restored, times kept": func(s *spool) {
			m := s.queued("  ")
			s.j.Routed(m, 2, false)
			name := fmt.Sprintf("queue/%d-7", m.Ino)
			s.file("queue/tmp", 2)
			assert.Must(s.t, os.Chtimes(filepath.Join(s.dir, "queue/tmp"), m.Time(), m.Time()))
			assert.Must(s.t, os.Rename(filepath.Join(s.dir, "queue/tmp"), filepath.Join(s.dir, name)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			make(s)
			if b := s.compare(1); len(b.Wrong) > 0 || b.Difference != (Count{}) || b.Moving != (Count{}) {
				t.Errorf("got %+v", b)
			}
		})
	}
}

func (s *spool) removed(m postoffice.SpoolID, last string) {
	s.t.Helper()
	from := fmt.Sprint(last, "/", m.Ino)
	if last == "queue" {
		from += "-7"
	}
	assert.Must(s.t, os.Rename(filepath.Join(s.dir, from), filepath.Join(s.dir, "removed", m.String()+"."+last)))
}

func (s *spool) touch(name string) {
	s.t.Helper()
	later := time.Now().Add(time.Minute)
	assert.Must(s.t, os.Chtimes(filepath.Join(s.dir, name), later, later))
}

// A18: what is on one side alone is named, with what both sides say of it.
func TestEveryImbalanceIsNamed(t *testing.T) {
	for name, tt := range map[string]struct {
		make       func(s *spool) postoffice.SpoolID
		kind       Kind
		difference Count
	}{
		"both files removed": {func(s *spool) postoffice.SpoolID { s.j.Routed(id(77, 1), 3, false); return id(77, 1) }, Missing, Count{3, 1}},
		"removed from router/": {func(s *spool) postoffice.SpoolID {
			s.j.Accepting().In(id(77, 1), 2)
			return id(77, 1)
		}, Missing, Count{2, 1}},
		"removed, and its number given to a submission": {func(s *spool) postoffice.SpoolID {
			m := s.file("router/%d", 2)
			assert.Must(s.t, os.WriteFile(filepath.Join(s.dir, fmt.Sprint("router/", m.Ino)), []byte("to <c@d>\nenv-end\n\n"), 0o700))
			s.j.Accepting().In(id(m.Ino, 1), 2)
			return id(m.Ino, 1)
		}, Missing, Count{2, 1}},
		"the specification alone is left": {func(s *spool) postoffice.SpoolID {
			m := s.queued("+ ")
			s.j.Routed(m, 2, false)
			assert.Must(s.t, os.Remove(filepath.Join(s.dir, fmt.Sprintf("queue/%d-7", m.Ino))))
			return m
		}, Missing, Count{2, 1}},
		"moved out of the postoffice and in again": {func(s *spool) postoffice.SpoolID {
			m := s.queued("  ")
			s.j.Routed(m, 2, false)
			s.j.Gone(m, 2, "vanished")
			return m
		}, Returned, Count{-2, -1}},
		"ended, and in router/ again": {func(s *spool) postoffice.SpoolID {
			m := s.file("router/%d", 2)
			s.j.Done(m, Outcomes{Delivered: 2})
			return m
		}, Returned, Count{-2, -1}},
		"copied into queue/ and transport/": {func(s *spool) postoffice.SpoolID { return s.queued("   ") }, DiskOnly, Count{-3, -1}},
		"in queue/ without specification":   {func(s *spool) postoffice.SpoolID { return s.file("queue/%d-7", 2) }, DiskOnly, Count{-2, -1}},
		"ended with a recipient less": {func(s *spool) postoffice.SpoolID {
			s.j.Routed(id(77, 1), 3, false)
			s.j.Done(id(77, 1), Outcomes{Delivered: 2})
			return id(77, 1)
		}, Uneven, Count{1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			s.j.Routed(s.queued("  "), 2, false) // another one, as it should be
			m := tt.make(s)
			b := s.compare(2)
			if len(b.Wrong) != 1 || b.Wrong[0].ID != m || b.Wrong[0].Kind != tt.kind || b.Difference != tt.difference {
				t.Errorf("got %+v, want %s of %s", b, tt.kind, m)
			}
			if w := b.Wrong; len(w) == 1 && (w[0].Ledger == "" || w[0].Disk == "") {
				t.Errorf("it does not tell what both sides say: %+v", w)
			}
		})
	}
}

// A18: what is wrong at one look and not at the next is called moving, not wrong.
func TestWhatComesAndGoesIsLookedAtAgain(t *testing.T) {
	s := newSpool(t)
	s.j.Routed(id(77, 1), 3, false) // its files are gone, and its end is not entered yet
	looks := 0
	b, err := Compare(context.Background(), s.po, Patience{Looks: 9, Pause: time.Millisecond, between: func() {
		looks++
		s.j.Done(id(77, 1), Outcomes{Delivered: 3})
		s.j.Routed(id(uint64(77+looks), 1), 2, false)
	}})
	assert.Must(t, err)
	s.adds(b)
	if looks != 1 || len(b.Wrong) > 0 || b.Delivered != 3 || b.Moving != (Count{2, 1}) {
		t.Errorf("after %d looks: %+v", looks, b)
	}
}

// Power loss: what the disk contradicts is entered in columns of its own, once; a kill
// of every process explains nothing.
func TestOnlyAPowerLossExplainsWhatIsMissing(t *testing.T) {
	for name, tt := range map[string]struct {
		boot           string
		close          bool
		found, unknown int64
		wrong          int
	}{
		"power loss":                        {"boot-2", false, 2, 3, 0},
		"killed and started again":          {"boot-1", false, 0, 0, 2},
		"closed in order, machine rebooted": {"boot-2", true, 0, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			if got, err := s.j.Settle(context.Background(), Patience{Looks: 2}); err != nil || got != (Settled{Why: "start"}) {
				t.Fatalf("first start: got %+v, %v", got, err)
			}
			s.j.Routed(id(77, 1), 3, false)
			s.queued("+ ")
			s.j.Routed(s.queued("  "), 2, false)
			if tt.close {
				s.j.Close()
			}
			c := testConfig("scheduler")
			c.Boot = func() string { return tt.boot }
			next := New(s.po, c)
			defer next.Close()
			for range 2 {
				_, err := next.Settle(context.Background(), Patience{Looks: 2})
				assert.Must(t, err)
			}
			b := s.compare(2)
			if b.Found != tt.found || b.Unknown != tt.unknown || len(b.Wrong) != tt.wrong {
				t.Errorf("got %+v", b)
			}
			if got := strings.Count(text(t, s.po, "journal"), "unknown"); int64(3*got) != tt.unknown {
				t.Errorf("%d lines say unknown", got)
			}
		})
	}
}

// A postoffice with mail gets a ledger: the mail is found, and nothing is wrong.
func TestNewLedgerFindsTheMailThatIsThere(t *testing.T) {
	s := newSpool(t)
	s.queued("+ ")
	s.file("deferred/%d.users", 2)
	got, err := s.j.Settle(context.Background(), Patience{Looks: 2})
	assert.Must(t, err)
	assert.Equal(t, got, Settled{Why: "start", Found: 1})
	if b := s.compare(1); b.Found != 2 || len(b.Wrong) > 0 {
		t.Errorf("got %+v", b)
	}
}

// Only what is missing or uneven can be called gone: not what is on the disk, nor what
// the ledger and the disk agree about.
func TestPersonExplainsWhatIsMissing(t *testing.T) {
	s := newSpool(t)
	s.j.Routed(id(77, 1), 3, false)
	s.j.Routed(id(78, 1), 3, false)
	s.j.Done(id(78, 1), Outcomes{Delivered: 2})
	s.j.Accepting().In(id(80, 1), 1)
	s.j.Routed(id(80, 1), 1, true)
	s.j.Done(id(80, 1), Outcomes{Delivered: 2})
	waits, unknown := s.queued("+ "), s.queued("  ")
	s.j.Routed(waits, 2, false)
	found := s.compare(1)
	for _, m := range []postoffice.SpoolID{id(77, 1), id(78, 1), id(80, 1)} {
		assert.Must(t, s.j.Explain(found, m))
	}
	for m, want := range map[postoffice.SpoolID]error{id(79, 1): ErrNotOpen, waits: ErrNotOpen, unknown: ErrOnDisk} {
		if err := s.j.Explain(found, m); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", m, err, want)
		}
	}
	b := s.compare(1)
	if b.Gone != 4 || b.Delivered != 4 || b.Added != 1 || len(b.Wrong) != 1 || b.Wrong[0].ID != unknown {
		t.Errorf("got %+v", b)
	}
	if err := s.j.Explain(b, id(77, 1)); !errors.Is(err, ErrNotOpen) {
		t.Errorf("again: got %v", err)
	}
}
