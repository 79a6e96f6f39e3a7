package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

func TestLockNamesItsOwnerWhileDelivering(t *testing.T) { // M18
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""}, rcpt{"smtp", "h", "b@h", ""})
	s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
		for _, r := range s.Spec(name).Groups[0].Recipients {
			if r.Tag != workspec.TagLocked || r.Owner != s.agent.Owner.Number() {
				t.Errorf("got tag %q of owner %d, want ~ of %d", r.Tag, r.Owner, s.agent.Owner.Number())
			}
		}
		d.Done(d.Recipients[0], ok)
		d.Done(d.Recipients[1], later)
	}))
	for i, r := range s.Spec(name).Groups[0].Recipients {
		if want := []workspec.Tag{workspec.TagOK, workspec.TagToDo}[i]; r.Tag != want || r.Owner != 0 {
			t.Errorf("after: got tag %q of owner %d, want %q of no owner", r.Tag, r.Owner, want)
		}
	}
}

func TestLockOfLiveOwnerIsLeftAlone(t *testing.T) { // M18, K9
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""}, rcpt{"smtp", "h", "b@h", ""})
	other := s.owner()
	s.Mark(name, 0, workspec.LockBytes(other.Number()))
	got := s.do(name, "h", give(ok))
	if strings.Count(got, "\tok3 ") != 1 || !strings.HasSuffix(got, "\n#resync "+name+"\n") {
		t.Errorf("got %q, want one ok3 and then a resync", got)
	}
	assert.Equal(t, s.Tags(name), "~+", "tags")
	assert.Equal(t, s.Spec(name).Groups[0].Recipients[0].Owner, other.Number(), "owner")
	// It dies: its lock has no living owner, and its file stays.
	assert.Must(t, other.Release())
	assert.Must(t, os.WriteFile(filepath.Join(s.Dir, "owners", strconv.Itoa(other.Number())), nil, 0o644))
	s.do(name, "h", give(ok))
	assert.Equal(t, s.Tags(name), "++", "after its death: tags")
}

// A crash may leave the first bytes of a lock: they must not be taken for another
// owner, who may live.
func TestTornLockHasNoOwner(t *testing.T) { // M18
	for n := 1; n < 7; n++ {
		s := newSpool(t)
		name := s.queue(rcpt{"smtp", "h", "a@h", ""})
		// Of 111111 every start is the number of a process that is likely to live.
		s.Mark(name, 0, workspec.LockBytes(111111)[:n])
		got := s.do(name, "h", give(ok))
		if !strings.Contains(got, "\tok3 ") || s.Tags(name) != "+" {
			t.Errorf("first %d bytes: got %q and tags %q, want it delivered", n, got, s.Tags(name))
		}
	}
}

// Where locks were set, a loss of power may bring one back, and a fault may leave one:
// the owner's file stays to say that it is dead.
func TestOwnerOfLocksStaysKnown(t *testing.T) { // M18
	for name, c := range map[string]struct {
		jobs, faultFrom int // writes of tags that work
		tags            string
		stays           bool
	}{
		"no delivery":            {0, 9, "", false},
		"deferred":               {1, 9, "", true},
		"lock not given back":    {1, 1, "~", true},
		"not even the lock made": {1, 0, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			spec := s.queue(rcpt{"smtp", "h", "a@h", ""})
			writes := 0
			s.fs.failing(func(op, _ string) error {
				if op == "writeat" {
					if writes++; writes > c.faultFrom {
						return unix.EIO
					}
				}
				return nil
			})
			for range c.jobs {
				s.do(spec, "h", give(later))
			}
			s.fs.failing(nil)
			assert.Must(t, s.agent.Release())
			_, err := os.Stat(filepath.Join(s.Dir, "owners", strconv.Itoa(s.agent.Owner.Number())))
			if got := strings.TrimSpace(s.Tags(spec)); got != c.tags || (err == nil) != c.stays {
				t.Errorf("got tag %q and owner's file %v, want %q and there %v", got, err, c.tags, c.stays)
			}
			if alive, err := s.agent.PostOffice.Owners.Alive(s.agent.Owner.Number()); c.stays && (alive || err != nil) {
				t.Errorf("its owner is alive: %v, %v", alive, err)
			}
		})
	}
}

// What a dead agent did between "sent" and the tag is unknown: it is recorded,
// logged, and delivered again. What it did not send is no doubt.
func TestTakeOverRecordsDoubt(t *testing.T) { // M18
	const dead = 999998
	sent := func(recipient int64, attrs ...workspec.Attr) workspec.Event {
		return workspec.Event{Time: testTime, Recipient: recipient, Event: workspec.EventSent,
			Attrs: append([]workspec.Attr{{Key: "owner", Value: strconv.Itoa(dead)}}, attrs...)}
	}
	released := func(recipient int64) workspec.Event {
		return workspec.Event{Time: testTime, Recipient: recipient, Event: workspec.EventUnlocked,
			Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(dead)}}}
	}
	const mine, others = -1, -2 // stand for the recipients' offsets
	for name, c := range map[string]struct {
		locked  bool
		history []workspec.Event
		doubt   bool
	}{
		"never sent":                {locked: true},
		"sent to all it had locked": {locked: true, history: []workspec.Event{sent(0)}, doubt: true},
		"sent to this one":          {locked: true, history: []workspec.Event{sent(mine)}, doubt: true},
		"sent to another":           {locked: true, history: []workspec.Event{sent(others)}},
		"sent, then refused and retried": {locked: true, history: []workspec.Event{sent(0),
			workspec.DeferredEvent(testTime, mine, 1, testTime, later.Code, "451")}},
		"sent, doubted before": {locked: true, history: []workspec.Event{sent(mine), {Time: testTime, Recipient: mine, Event: workspec.EventInDoubt}}},
		"sent, released, and put off by the scheduler": {history: []workspec.Event{sent(0), released(mine),
			workspec.DeferredEvent(testTime, mine, 1, testTime, later.Code, "the transport agent ended without an answer")}, doubt: true},
		"sent and released":     {history: []workspec.Event{sent(0), released(mine)}, doubt: true},
		"sent, all released":    {history: []workspec.Event{sent(mine), released(0)}, doubt: true},
		"released, not sent":    {history: []workspec.Event{released(mine)}},
		"sent for others, open": {history: []workspec.Event{sent(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file := s.queue(rcpt{"smtp", "h", "a@h", ""}, rcpt{"smtp", "other", "b@other", ""})
			rs := s.Spec(file).Groups[0].Recipients
			if c.locked {
				s.Mark(file, 0, workspec.LockBytes(dead))
			}
			for _, e := range c.history {
				switch e.Recipient {
				case mine:
					e.Recipient = rs[0].Offset
				case others:
					e.Recipient = rs[1].Offset
				}
				s.Event(file, e)
			}
			got := s.do(file, "h", give(ok))
			if !strings.Contains(got, "\tok3 ") || s.Tags(file) != "+ " {
				t.Errorf("got %q and tags %q, want it delivered", got, s.Tags(file))
			}
			doubts := 0
			for _, e := range s.Spec(file).History[len(c.history):] {
				if e.Event == workspec.EventInDoubt && e.Recipient == rs[0].Offset && e.Get("owner") == strconv.Itoa(dead) {
					doubts++
				}
			}
			assert.Equal(t, doubts, map[bool]int{true: 1}[c.doubt], "in-doubt events")
			assert.Equal(t, strings.Contains(s.log.String(), "msg=in-doubt"), c.doubt, "in the log")
		})
	}
}

func TestSentNamesWhoIsInDoubt(t *testing.T) {
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""}, rcpt{"smtp", "h", "b@h", ""}, rcpt{"smtp", "h", "c@h", ""})
	rs := s.Spec(name).Groups[0].Recipients
	s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
		d.Done(d.Recipients[0], noUser)
		for _, rcpts := range [][]*Recipient{d.Recipients, d.Recipients[2:], d.Recipients[:1]} {
			assert.NoError(t, d.SentTo(rcpts))
		}
	}))
	h := s.Spec(name).History
	if len(h) != 2 {
		t.Fatalf("got %d events, want 2: the last has no recipient to name", len(h))
	}
	want := strconv.FormatInt(rs[1].Offset, 10) + "," + strconv.FormatInt(rs[2].Offset, 10)
	if h[0].Recipient != 0 || h[0].Get("rcpts") != want || h[0].Get("owner") != strconv.Itoa(s.agent.Owner.Number()) {
		t.Errorf("for two: got %+v, want rcpts=%s", h[0], want)
	}
	if h[1].Recipient != rs[2].Offset || !h[1].Time.Equal(testTime) {
		t.Errorf("for one: got %+v, want recipient %d", h[1], rs[2].Offset)
	}
}

// Other slots of the same owner have sent as well, to recipients of other hosts, and have
// said where. One delivery to many, which lists no one where that does not matter, must not
// hide that from a Deliverer that settles by it.
func TestSentToManyKeepsOtherSlotsPlaces(t *testing.T) {
	s := newSpool(t)
	s.agent.Settles = true
	rcpts := []rcpt{{"local", "joe@h", "joe@h", ""}}
	for i := range maxListed + 50 {
		rcpts = append(rcpts, rcpt{"local", "jim@h", fmt.Sprintf("jim+%d@h", i), ""})
	}
	name := s.queue(rcpts...)
	at := func(place string) workspec.Attr { return workspec.Attr{Key: "at", Value: place} }
	s.do(name, "joe@h", deliverFunc(func(_ context.Context, d *Delivery) {
		assert.NoError(t, d.SentTo(d.Recipients, at("joe's")))
		s.do(name, "jim@h", deliverFunc(func(_ context.Context, d *Delivery) {
			assert.NoError(t, d.SentTo(d.Recipients, at("jim's")))
			doubts := s.Spec(name).Doubts()
			list := s.Spec(name).Groups[0].Recipients
			for i := range list {
				r, want := &list[i], "jim's"
				if i == 0 {
					want = "joe's"
				}
				if e := doubts.Sent(r); e == nil || e.Get("at") != want {
					t.Fatalf("recipient %d: got %+v, want %s place", i, e, want)
				}
			}
		}))
	}))
}

func TestUnusableFileIsAnsweredByResync(t *testing.T) { // K10, M17
	for name, c := range map[string]struct {
		spoil func(s *spool, name string)
		log   string
	}{
		"specification gone": {func(s *spool, name string) { os.Remove(s.Path(name)) }, postoffice.ErrGone.Error()},
		"message gone":       {func(s *spool, name string) { os.Remove(s.Dir + "/queue/" + name) }, postoffice.ErrGone.Error()},
		"not a specification": {func(s *spool, name string) { os.WriteFile(s.Path(name), []byte("r\n"), 0o600) },
			"work specification, byte 0"},
		"unknown format bits": {func(s *spool, name string) {
			os.WriteFile(s.Path(name), []byte(strings.Replace(s.Text(name), "@ 0x00000007", "@ 0x00000087", 1)), 0o600)
		}, "unknown format bits"},
		"cut short": {func(s *spool, name string) { os.Truncate(s.Path(name), 100) }, "did not finish it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file := s.queue(rcpt{"smtp", "h", "a@h", ""})
			c.spoil(s, file)
			before, _ := os.ReadFile(s.Path(file))
			got := s.do(file, "h", deliverFunc(func(context.Context, *Delivery) { t.Error("delivered") }))
			assert.Equal(t, got, "#resync "+file+"\n")
			assert.Contains(t, s.log.String(), c.log, "log")
			if after, _ := os.ReadFile(s.Path(file)); string(after) != string(before) {
				t.Errorf("the file was touched: got %q, want %q", after, before)
			}
		})
	}
}

func TestNameOutsideTransportIsRefused(t *testing.T) {
	s := newSpool(t)
	for _, name := range []string{"../queue/1", "/etc/passwd", "A/../../x", ""} {
		assert.Equal(t, s.do(name, "h", give(ok)), "#resync "+name+"\n", name)
	}
	for _, op := range s.fs.taken() {
		if strings.Contains(op, "..") || strings.Contains(op, "passwd") {
			t.Errorf("got operation %q", op)
		}
	}
}

func TestBodyOffsetBeyondTheMessageDefers(t *testing.T) {
	s := newSpool(t)
	name, _ := s.message("Subject: x\n\n", "body\n")
	s.specify(name, 10000, "X: y\n", rcpt{"smtp", "h", "a@h", ""})
	got := s.do(name, "h", give(ok))
	if !strings.Contains(got, "\tdeferred ") || !strings.Contains(got, "body at byte 10000") || s.Tags(name) != " " {
		t.Errorf("got %q and tags %q, want a deferral that says why", got, s.Tags(name))
	}
}

func TestOnlyRecipientsOfChannelAndHostAreTaken(t *testing.T) {
	rcpts := []rcpt{{"smtp", "h", "a@h", ""}, {"smtp", "other", "b@other", ""}, {"hold", "h", "c@h", ""}, {"local", "H", "d@H", ""}}
	for name, c := range map[string]struct {
		host string
		tags string
	}{
		"one host, in any case": {"h", "+  +"},
		"any host":              {"", "++ +"},
		"no such host":          {"x", "    "},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file := s.queue(rcpts...)
			s.do(file, c.host, give(ok))
			assert.Equal(t, s.Tags(file), c.tags, "tags")
		})
	}
}

// Header block, the empty line if the message has one, body: byte for byte.
func TestHeaderAndBodyAreTheMessagesBytes(t *testing.T) { // M31
	big := strings.Repeat("0123456789abcdef\n", 20000)
	for name, c := range map[string]struct {
		header, body string // of the message file; the header with its empty line
		want         string
	}{
		"a body":                      {"Subject: x\n\n", "body\n", "\nbody\n"},
		"an empty body":               {"Subject: x\n\n", "", "\n"},
		"no empty line":               {"Subject: x\n", "", ""},
		"one byte":                    {"Subject: x\n\n", "x", "\nx"},
		"an empty line to begin with": {"Subject: x\n\n", "\nx\n", "\n\nx\n"},
		"no headers":                  {"\n", "x\n", "\nx\n"},
		"NUL and 8 bit":               {"Subject: x\n\n", "\x00\xff\r\n\x00", "\n\x00\xff\r\n\x00"},
		"larger than any buffer":      {"Subject: x\n\n", big, "\n" + big},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file, body := s.message(c.header, c.body)
			header := "Received: here\nSubject: " + strings.Repeat("x", 200<<10) + "\n"
			s.specify(file, body, header, rcpt{"smtp", "h", "a@h", ""})
			s.do(file, "h", deliverFunc(func(_ context.Context, d *Delivery) {
				if got := string(d.Header(d.Recipients[0].Group)); got != header {
					t.Errorf("header: got %d bytes %.60q, want %d", len(got), got, len(header))
				}
				for range 2 { // each from the start
					got, err := io.ReadAll(d.Body())
					if err != nil || string(got) != c.want {
						t.Errorf("body: got %d bytes %.60q, %v, want %d bytes", len(got), got, err, len(c.want))
					}
					assert.Equal(t, d.BodySize(), int64(len(c.want)), "size")
				}
				info, err := os.Stat(s.Dir + "/queue/" + file)
				if err != nil || d.ID().Time() != info.ModTime() || d.Size != info.Size() || !strings.HasPrefix(file, strconv.FormatUint(d.ID().Ino, 10)) {
					t.Errorf("message: got ID %v, size %d; want those of %s", d.ID(), d.Size, file)
				}
				d.Done(d.Recipients[0], ok)
			}))
			assert.Equal(t, s.Tags(file), "+", "tags")
		})
	}
}

// The agent opens NAME in transport/ and the message beside it in queue/, and at
// every hash depth.
func TestHashedNamesAreFound(t *testing.T) { // M31, M21
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""})
	for _, top := range []string{"queue", "transport"} {
		assert.Must(t, os.MkdirAll(s.Dir+"/"+top+"/D/Q", 0o755))
		assert.Must(t, os.Rename(s.Dir+"/"+top+"/"+name, s.Dir+"/"+top+"/D/Q/"+name))
	}
	s.fs.taken()
	got := s.do("D/Q/"+name, "h", give(ok))
	number, _, _ := strings.Cut(name, "-")
	if !strings.HasPrefix(got, number+"/") || s.Tags("D/Q/"+name) != "+" {
		t.Errorf("got %q, want it delivered", got)
	}
	ops := strings.Join(s.fs.taken(), "\n")
	if !strings.Contains(ops, "open transport/D/Q/"+name+"\n") || !strings.Contains(ops, "open queue/D/Q/"+name+"\n") {
		t.Errorf("got operations:\n%s", ops)
	}
}

func TestFormatWithoutOwnersIsLockedByOneByte(t *testing.T) {
	s := newSpool(t)
	name, body := s.message("Subject: x\n\n", "body\n")
	text := "@ 0x00000004\ni " + name + "\no " + strconv.FormatInt(body, 10) + "\ns local s s@example.org 1\nr smtp h a@h 65534\nm\nX: y\n\n"
	assert.Must(t, os.WriteFile(s.Path(name), []byte(text), 0o600))
	s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
		assert.Equal(t, s.Text(name), strings.Replace(text, "\nr smtp", "\nr~smtp", 1), "while delivering")
		d.Done(d.Recipients[0], ok)
	}))
	assert.Equal(t, s.Text(name), strings.Replace(text, "\nr smtp", "\nr+smtp", 1))
}

// A reader that looks while locks and tags are written sees whole fields only.
func TestReaderSeesWholeTags(t *testing.T) { // M18
	s := newSpool(t)
	var rcpts []rcpt
	for range 50 {
		rcpts = append(rcpts, rcpt{"smtp", "h", "a@h", ""})
	}
	name := s.queue(rcpts...)
	done := make(chan string)
	go func() { done <- s.do(name, "h", give(ok)) }()
	deadline := time.After(20 * time.Second)
	for {
		spec := s.Spec(name)
		for _, r := range spec.Groups[0].Recipients {
			// Without the flock a reader may catch the seven bytes half copied: then the
			// lock has no owner, and an agent that acts on it reads again under the flock.
			if r.Tag == workspec.TagLocked && r.Owner != 0 && r.Owner != s.agent.Owner.Number() {
				t.Fatalf("got a lock of owner %d, want %d", r.Owner, s.agent.Owner.Number())
			}
		}
		select {
		case got := <-done:
			assert.Equal(t, strings.Count(got, "\tok3 "), 50, "ok3")
			return
		case <-deadline:
			t.Fatal("the job does not end")
		default:
		}
	}
}
