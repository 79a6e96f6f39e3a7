package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
)

// user is the uid of who submits in these tests.
const user = 54321

// spool is a postoffice on a disk in memory.
type testSpool struct {
	t    *testing.T
	disk *cutfs.FS
	*PostOffice
}

func newSpool(t *testing.T) *testSpool {
	t.Helper()
	disk := cutfs.New()
	assert.Must(t, Init(disk))
	return openSpool(t, disk)
}

func openSpool(t *testing.T, disk *cutfs.FS) *testSpool {
	t.Helper()
	p := assert.Get(Open(Config{FS: disk}))(t)
	return &testSpool{t, disk, p}
}

// as returns the postoffice as another user's process has it.
func (s *testSpool) as(uid uint32) *testSpool {
	s.t.Helper()
	disk := s.disk.Process()
	disk.SetUID(uid)
	p := assert.Get(Open(Config{FS: disk, Submits: true}))(s.t)
	return &testSpool{s.t, disk, p}
}

func (s *testSpool) write(name, text string, mode fs.FileMode) durable.File {
	s.t.Helper()
	f, err := s.disk.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.WriteString(f, text)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	assert.Must(s.t, err)
	return f
}

func (s *testSpool) names(dir string) string {
	s.t.Helper()
	entries := assert.Get(s.disk.ReadDir(dir))(s.t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return strings.Join(names, " ")
}

func (s *testSpool) text(name string) string {
	s.t.Helper()
	b := assert.Get(s.readAll(name))(s.t)
	return string(b)
}

// collect picks up everything that is there and returns the first error.
func (s *testSpool) collect() (err error) {
	list, err := s.Submissions.List()
	for _, m := range list {
		if _, perr := s.Submissions.PickUp(m.Name); err == nil {
			err = perr
		}
	}
	return err
}

// Sec8: what a user has submitted is copied into a file of the daemons, which names the
// user; his own file goes, and a descriptor that he has kept open reaches nothing.
func TestSec8SubmittedMessageIsCopied(t *testing.T) {
	s := newSpool(t)
	u := s.as(user)
	d := assert.Get(u.Submissions.NewDraft("submit"))(t)
	held := assert.Get(u.disk.Open(d.name, os.O_RDWR, 0))(t)
	const said = "submitter 0 S1A1\nexternal\nto <a@b.example>\nenv-end\n\nbody\n"
	assert.Get(io.WriteString(d, said))(t)
	a := assert.Get(d.Commit())(t)
	if !strings.HasPrefix(a.Name, Public+"/") || s.names(Router) != "" {
		t.Fatalf("a user's message is in %s, router/ has %q", a.Name, s.names(Router))
	}
	done := assert.Get(s.Submissions.PickUp(a.Name))(t)
	if done.UID != user || done.Was != a.ID || s.names(Public) != "" {
		t.Errorf("got %+v, public/ has %q", done, s.names(Public))
	}
	assert.Get(held.WriteAt([]byte("changed"), int64(octetsLine)))(t)
	text := s.text(done.Accepted.Name)
	assert.Equal(t, text[octetsLine:], fmt.Sprintf("submitter %d %s\n%s", user, a.ID, said))
	info, err := s.disk.Stat(done.Accepted.Name)
	if err != nil || s.checkTrust(done.Accepted.Name, info) != nil || info.Ino == a.ID.Ino {
		t.Errorf("the copy is %+v, %v", info, err)
	}
	// A second look does nothing.
	if _, err := s.Submissions.PickUp(a.Name); !errors.Is(err, ErrGone) {
		t.Errorf("again: %v, want ErrGone", err)
	}
}

// Sec8: pickup is killed, and the power is lost, between any two operations; the next
// pickup is killed as well. The message is there once and whole.
func TestSec8MessageIsThereOnceWhereverPickupIsCut(t *testing.T) {
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose} {
		t.Run(model.String(), func(t *testing.T) {
			begin := func() *testSpool {
				disk := cutfs.New()
				disk.SetModel(model)
				assert.Must(t, Init(disk))
				s := openPickup(t, disk, model)
				u := s.as(user)
				d, err := u.Submissions.NewDraft("submit")
				if err == nil {
					_, err = io.WriteString(d, "to <a@b.example>\nenv-end\n\nbody\n")
				}
				if err == nil {
					_, err = d.Commit()
				}
				assert.Must(t, err)
				return s
			}
			for first, cut := 0, true; cut; first++ {
				s := begin()
				s.disk.CutAfter(first)
				_ = pickupPass(s) // dies
				cut = s.disk.Dead()
				s.disk.Kill()
				for _, loss := range s.disk.Losses() {
					for second, again := 0, true; again; second++ {
						next := openPickup(t, s.disk.Restart(loss), model)
						next.disk.CutAfter(second)
						_ = pickupPass(next)
						again = next.disk.Dead()
						next.disk.Kill()
						what := fmt.Sprintf("cut after %d, %v, and after %d", first, loss, second)
						checkPickedUp(t, what, openPickup(t, next.disk.Restart(cutfs.KeepAll()), model))
					}
				}
			}
		})
	}
}

func openPickup(t *testing.T, disk *cutfs.FS, model cutfs.Model) *testSpool {
	t.Helper()
	p := assert.Get(Open(Config{FS: disk, Strict: model != cutfs.Journal}))(t)
	return &testSpool{t, disk, p}
}

// pickupPass is what a router does at its start.
func pickupPass(s *testSpool) error {
	_, err := s.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()})
	return errors.Join(err, s.collect())
}

func checkPickedUp(t *testing.T, what string, s *testSpool) {
	t.Helper()
	if err := pickupPass(s); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	list, err := s.Router.List(false, time.Now())
	if err != nil || len(list) != 1 || s.names(Public) != "" || strings.Contains(s.names(Router), pickupPrefix) {
		t.Errorf("%s: got %v, %v; public/ has %q, router/ %q", what, list, err, s.names(Public), s.names(Router))
		return
	}
	if text := s.text(Router + "/" + list[0].Name); !strings.HasSuffix(text, "to <a@b.example>\nenv-end\n\nbody\n") {
		t.Errorf("%s: got %q", what, text)
	}
}

// Sec8: what a user can put into public/ and is no message of his.
func TestSec8WhatIsNoMessageIsNotCopied(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	at := func(name string) string { return path.Join(dir, Public, name) }
	write := func(name string, mode fs.FileMode) {
		t.Helper()
		assert.Must(t, errors.Join(os.WriteFile(at(name), []byte("to a\n\n"), 0o600), os.Chmod(at(name), mode)))
	}
	write("101", 0o700)
	assert.Must(t, errors.Join(os.Link(at("101"), at("102")), os.Symlink("/etc/passwd", at("103")), unix.Mkfifo(at("104"), 0o700)))
	for _, name := range []string{"101", "102", "103", "104"} {
		disbelief := (*UntrustedError)(nil)
		if _, err := p.Submissions.PickUp(Public + "/" + name); !errors.As(err, &disbelief) {
			t.Errorf("%s: got %v, want a *DisbeliefError", name, err)
		}
	}
	list, err := p.Router.List(false, time.Now())
	if err != nil || len(list) != 0 {
		t.Errorf("router/ has %v, %v", list, err)
	}
	incomplete := (*IncompleteError)(nil)
	assert.Must(t, os.WriteFile(at("105"), []byte("comment octets 0000000000000999\nto a\n"), 0o700))
	if _, err := p.Submissions.PickUp(Public + "/105"); !errors.As(err, &incomplete) {
		t.Errorf("incomplete: got %v", err)
	}
}

// Sec8: the file changes while it is copied, and the disk is full: the file stays and is
// copied later.
func TestSec8CopyThatFailsLeavesTheSubmission(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   faultfs.Op
		do   func(user durable.File) error
		want error
	}{
		{"full disk", faultfs.Write, func(durable.File) error { return unix.ENOSPC }, unix.ENOSPC},
		{"failing sync", faultfs.Sync, func(durable.File) error { return unix.EIO }, unix.EIO},
		{"grows", faultfs.Write, func(f durable.File) error { _, err := f.Append([]byte("more")); return err }, ErrUnsettled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSpool(t)
			// As another program writes it: its size stands nowhere.
			f := s.as(user).write(Public+"/4711", "to <a@b.example>\nenv-end\n\n"+strings.Repeat("body\n", 3*draftBuffer), 0o700)
			faults := faultfs.New(s.disk)
			p := assert.Get(Open(Config{FS: faults}))(t)
			faults.On(tt.at, Router+"/.pickup.*", 1, func(string) error { return tt.do(f) })
			if _, err := p.Submissions.PickUp(Public + "/4711"); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			assert.Equal(t, s.names(Router), "", "router/")
			if _, err := p.Submissions.PickUp(Public + "/4711"); err != nil {
				t.Errorf("the next time: %v", err)
			}
			if s.names(Public) != "" || s.names(Router) == "" {
				t.Errorf("public/ has %q, router/ %q", s.names(Public), s.names(Router))
			}
		})
	}
}

// Sec8: each operation of pickup fails, and what is done about that fails too: the message
// is there once and whole after the next look, and another user's is picked up meanwhile.
func TestSec8FailingPickupLosesAndRepeatsNothing(t *testing.T) {
	const (
		user4711 = Public + "/4711"
		copies   = Router + "/" + pickupPrefix + "*"
	)
	for _, tt := range []struct {
		at   faultfs.Op
		name string
		err  error
	}{
		{faultfs.Open, user4711, unix.EMFILE},
		{faultfs.Stat, user4711, unix.EIO},
		{faultfs.Read, user4711, unix.EIO},
		{faultfs.Create, copies, unix.ENOSPC},
		{faultfs.Flock, copies, unix.EIO},
		{faultfs.Write, copies, unix.ENOSPC},
		{faultfs.WriteAt, copies, unix.EIO},
		{faultfs.Chmod, copies, unix.EIO},
		{faultfs.Sync, copies, unix.EIO},
		{faultfs.Stat, copies, unix.EIO},
		{faultfs.SyncDir, Router, unix.EIO},
		{faultfs.Remove, user4711, unix.EIO},
		{faultfs.SyncDir, Public, unix.EIO},
		{faultfs.Rename, copies, unix.EIO},
	} {
		for _, stuck := range []bool{false, true} {
			what := fmt.Sprintf("%s of %s: %v", tt.at, tt.name, tt.err)
			if stuck {
				what += ", and the copy cannot be removed"
			}
			t.Run(what, func(t *testing.T) {
				s := newSpool(t)
				faults := faultfs.New(s.disk)
				p := assert.Get(Open(Config{FS: faults, Strict: true}))(t)
				s.PostOffice = p
				s.as(user).write(user4711, "to <a@b.example>\nenv-end\n\n"+strings.Repeat("line\n", 3*draftBuffer/5)+"to <a@b.example>\nenv-end\n\nbody\n", 0o700)
				rule := faults.Fail(tt.at, tt.name, tt.err, 1)
				var removal *faultfs.Rule
				if stuck {
					removal = faults.Fail(faultfs.Remove, copies, tt.err, faultfs.Always)
				}
				if _, err := p.Submissions.PickUp(user4711); !errors.Is(err, tt.err) || rule.Hits() != 1 {
					t.Errorf("got %v, %d hits", err, rule.Hits())
				}
				s.as(user+1).write(Public+"/4712", "to <c@d.example>\n\n", 0o700)
				other, err := p.Submissions.PickUp(Public + "/4712")
				if err != nil {
					t.Errorf("another user's message: %v", err)
				}
				assert.Must(t, p.remove(other.Name))
				if stuck {
					// As long as it cannot be removed it is an error that is logged.
					_, _ = p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()})
					removal.End()
				}
				checkPickedUp(t, what, s)
			})
		}
	}
}

// Sec1: a file that has the name of a claim's work file is not written to, whoever has made
// it.
func TestSec1WorkFileIsAlwaysANewOne(t *testing.T) {
	s := newSpool(t)
	submit(t, s.PostOffice, "to a\n\n")
	owner := assert.Get(s.Owners.Take("router"))(t)
	c := assert.Get(s.Router.Claim(owner, s.names(Router)))(t)
	planted := s.as(user).write(c.work(), "", 0o666)
	work(t, c, "s x\nz\n")
	b := make([]byte, 1)
	if n, err := planted.ReadAt(b, 0); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the planted file has %q, %v", b[:n], err)
	}
	if info, err := s.disk.Stat(c.work()); err != nil || info.UID == user {
		t.Errorf("the work file is %+v, %v", info, err)
	}
}

// Sec2: a complete work file of another user, or one with a second name, is no
// specification. The message is routed again.
func TestSec2ForeignWorkFileIsNotBelieved(t *testing.T) {
	for _, tt := range []struct {
		name string
		uid  uint32
		link bool
	}{{"of another user", user, false}, {"with a second name", 0, true}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSpool(t)
			submit(t, s.PostOffice, "to a\n\n")
			owner := assert.Get(s.Owners.Take("router"))(t)
			c := assert.Get(s.Router.Claim(owner, s.names(Router)))(t)
			toQueue(t, s.PostOffice, c)
			who := s
			if tt.uid != 0 {
				who = s.as(tt.uid)
			}
			who.write(c.work(), "s x\nr file.0 - /root/.ssh/authorized_keys 0\nz\n", 0o600)
			if tt.link {
				assert.Must(t, s.disk.Link(c.work(), Public+"/second"))
			}
			c.Close()
			die(t, owner)
			for range 2 {
				assert.Get(s.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()}))(t)
				assert.Get(s.Queue.Recover(time.Now().Add(time.Hour)))(t)
			}
			assert.Equal(t, s.names(Transport)+s.names(Queue), "", "transport/ and queue/")
			if s.names(Router) == "" || !strings.Contains(s.names(Quarantine), "foreign") {
				t.Errorf("router/ has %q, quarantine/ %q", s.names(Router), s.names(Quarantine))
			}
		})
	}
}

// Sec2: a message in queue/ without a specification does not wait until a router has put
// away a foreign work file of its name.
func TestSec2ForeignWorkFileDelaysNothing(t *testing.T) {
	s := newSpool(t)
	submit(t, s.PostOffice, "to a\n\n")
	owner := assert.Get(s.Owners.Take("router"))(t)
	c := assert.Get(s.Router.Claim(owner, s.names(Router)))(t)
	toQueue(t, s.PostOffice, c)
	s.as(user).write(c.work(), "s x\nz\n", 0o600)
	c.Close()
	die(t, owner)
	assert.Get(s.Queue.Recover(time.Now()))(t)
	assert.Equal(t, s.names(Queue), "", "queue/")
}

// Sec2: a specification of another owner is not opened.
func TestSec2ForeignSpecificationIsNotBelieved(t *testing.T) {
	s := newSpool(t)
	s.as(user).write(Transport+"/4711-5", "s x\nz\n", 0o600)
	disbelief := (*UntrustedError)(nil)
	if _, err := s.Queue.Open("4711-5"); !errors.As(err, &disbelief) || disbelief.UID != user {
		t.Errorf("got %v, want a *DisbeliefError", err)
	}
}

// Sec3: an incomplete work file beside a message that has its specification is no reason
// to route the message again.
func TestSec3IncompleteWorkFileDoesNotRouteAgain(t *testing.T) {
	s := newSpool(t)
	submit(t, s.PostOffice, "to a\n\n")
	owner := assert.Get(s.Owners.Take("router"))(t)
	c := assert.Get(s.Router.Claim(owner, s.names(Router)))(t)
	work(t, c, "s x\nz\n")
	left := c.work()
	rel := assert.Get(c.HandOver())(t)
	s.write(left, "s x\n", 0o600)
	die(t, owner)
	for range 2 {
		assert.Get(s.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()}))(t)
	}
	if s.names(Router) != "" || s.names(Queue) != rel || s.names(Transport) != rel {
		t.Errorf("router/ has %q, queue/ %q, transport/ %q", s.names(Router), s.names(Queue), s.names(Transport))
	}
}

// Sec4: a name that is taken costs another name and no acceptance; the message is claimed
// and handed over under that.
func TestSec4OccupiedNamesRefuseNothing(t *testing.T) {
	s := newSpool(t)
	for n := range 200 { // the inode numbers to come
		s.write(fmt.Sprintf("%s/%d", Router, 50+n), "", 0o600)
	}
	occupied := len(strings.Fields(s.names(Router)))
	a := submit(t, s.PostOffice, "to a\n\n")
	if got := len(strings.Fields(s.names(Router))); got != occupied+1 {
		t.Fatalf("router/ has %d names, want %d", got, occupied+1)
	}
	owner := assert.Get(s.Owners.Take("router"))(t)
	c := assert.Get(s.Router.Claim(owner, path.Base(a.Name)))(t)
	work(t, c, "s x\nz\n")
	handOver(t, c)
}

// Sec4: what is left in queue/ or transport/ under a message's number costs it another name.
func TestSec4NamesFurtherOnThatAreOccupiedCostAnotherName(t *testing.T) {
	for _, dir := range []string{Queue, Transport} {
		t.Run(dir, func(t *testing.T) {
			s := newSpool(t)
			a := submit(t, s.PostOffice, "to a\n\n")
			owner := assert.Get(s.Owners.Take("router"))(t)
			c := assert.Get(s.Router.Claim(owner, path.Base(a.Name)))(t)
			left := dir + "/" + c.Name()
			s.write(left, "somebody's", 0o600)
			work(t, c, "s x\nz\n")
			if _, err := c.HandOver(); !errors.Is(err, ErrOccupied) {
				t.Fatalf("hand over: %v", err)
			}
			assert.Must(t, c.Release())
			list, err := s.Router.List(false, time.Now())
			if err != nil || len(list) != 1 {
				t.Fatalf("router/ has %v, %v", list, err)
			}
			c, err = s.Router.Claim(owner, list[0].Name)
			assert.Must(t, err)
			assert.Equal(t, c.ID, a.ID, "its spool ID")
			work(t, c, "s x\nz\n")
			rel := assert.Get(c.HandOver())(t)
			if n, ok := ParseName(rel); !ok || !IsRandom(n.Ino) {
				t.Errorf("it is %s", rel)
			}
			assert.Equal(t, s.text(left), "somebody's", left)
		})
	}
}

// Sec4: ROUTERMODE=shared: what users put into router/ is picked up, and the daemons' own
// directory is another one.
func TestSec4SharedRouterDirectoryIsAnInbox(t *testing.T) {
	disk := cutfs.New()
	assert.Must(t, errors.Join(Init(disk), disk.Mkdir(Router0, modeOfRouterDir)))
	s := openSpool(t, disk)
	own := submit(t, s.PostOffice, "to a\n\n")
	if path.Dir(own.Name) != Router0 {
		t.Errorf("a daemon's message is %s", own.Name)
	}
	s.as(user).write(Router+"/4711", "to <a@b.example>\n\nbody\n", 0o600)
	s.write(Router+"/4712", "external\nto <a@b.example>\n\nbody\n", 0o600) // root's, or a link to root's
	assert.Must(t, s.collect())
	list, err := s.Router.List(false, time.Now())
	if err != nil || len(list) != 3 || s.names(Router) != "" {
		t.Fatalf("got %v, %v; router/ has %q", list, err, s.names(Router))
	}
	uids := map[string]int{}
	for _, m := range list {
		uids[strings.Fields(s.text(RouterPath(m.Name))[octetsLine:] + " -")[1]]++
	}
	if uids[fmt.Sprint(user)] != 1 || uids[fmt.Sprint(UnknownUser)] != 1 {
		t.Errorf("submitters: %v", uids)
	}
}

// Sec1: the directories are closed to users, those of a postoffice that an earlier version
// made too.
func TestSec1DirectoriesAreClosedAtTheStart(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, os.Mkdir(path.Join(dir, "router2"), 0o700))
	for _, name := range append(Directories(), "router2") {
		assert.Must(t, os.Chmod(path.Join(dir, name), 0o777|fs.ModeSticky))
	}
	assert.Get(p.Secure())(t)
	for _, name := range append(Directories(), "router2") {
		info := assert.Get(os.Stat(path.Join(dir, name)))(t)
		if name == Public {
			if info.Mode().Perm() != 0o733 || info.Mode()&fs.ModeSticky == 0 {
				t.Errorf("public/ is %s", info.Mode())
			}
			continue
		}
		others := fs.FileMode(0)
		if name == Suspended {
			others = 0o001 // submit reads a file there
		}
		if info.Mode().Perm()&0o007 != others {
			t.Errorf("%s/ is %s: others can use it", name, info.Mode())
		}
	}
}

// Sec8: a file that is larger than is allowed, of whose size most may be holes, is not
// copied, and is copied when it is allowed; what an earlier version left in router/ is
// of any size.
func TestSec8SubmissionThatIsTooLargeIsNotCopied(t *testing.T) {
	s := newSpool(t)
	text := "to <a@b.example>\nenv-end\n\n" + strings.Repeat("body\n", 100)
	s.as(user).write(Public+"/4711", text, 0o700)
	s.as(user).write(Router+"/4712", text, 0o700)
	p := assert.Get(Open(Config{FS: s.disk}))(t)
	p.Submissions.Limit(int64(len(text)) - 1)
	large := (*TooLargeError)(nil)
	if _, err := p.Submissions.PickUp(Public + "/4711"); !errors.As(err, &large) || large.Size != int64(len(text)) || large.UID != user {
		t.Errorf("got %v, want a *TooLargeError with size %d and uid %d", err, len(text), user)
	}
	if got := s.names(Public); got == "" {
		t.Error("the file is gone")
	}
	if _, err := p.Submissions.PickUp(Router + "/4712"); err != nil {
		t.Errorf("in router/: %v", err)
	}
	p.Submissions.Limit(int64(len(text)))
	if _, err := p.Submissions.PickUp(Public + "/4711"); err != nil {
		t.Errorf("when it is allowed: %v", err)
	}
}

// Sec2: what a user has made in router/ while that was open, and is no file, is put away
// when a router recovers; what the daemons' user has put there stays.
func TestSec2ForeignNamesInRouterArePutAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make other users' files")
	}
	p, dir := newPostOffice(t, 0)
	at := func(name string) string { return path.Join(dir, Router, name) }
	assert.Must(t, errors.Join(os.Symlink("/etc/passwd", at("1")), unix.Mkfifo(at("2"), 0o600), os.Mkdir(at("3"), 0o700), os.Mkdir(at("4"), 0o700)))
	for _, name := range []string{"1", "2", "3"} {
		assert.Must(t, os.Lchown(at(name), 4711, 4711))
	}
	done := assert.Get(p.Router.Recover(RouterRecovery{Complete: func([]byte) bool { return false }, Now: time.Now()}))(t)
	for _, r := range done {
		if r.Action != Quarantined {
			t.Errorf("got %+v", r)
		}
	}
	if list, err := os.ReadDir(path.Join(dir, Router)); err != nil || len(list) != 1 || list[0].Name() != "4" || len(done) != 3 {
		t.Errorf("router/ has %v, %v; recovery did %v", list, err, done)
	}
}
