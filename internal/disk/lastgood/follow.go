package lastgood

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
)

// startSuffix marks, behind the path of zmailer.conf, the copy of what it had when the program
// was started.
const startSuffix = " at the start"

// answerSuffix marks, behind the name of the copy of zmailer.conf, what a daemon answered to the
// last request to read it.
const answerSuffix = ".answer"

// Follower is how a daemon goes by zmailer.conf while it runs: it reads the file when it is asked
// to (SIGHUP), takes what a reload applies, and keeps what needs a restart. One goroutine uses it.
type Follower struct {
	program string
	load    func() (*config.Config, error)
	store   *Store // nil: nothing is kept on disk
	log     *slog.Logger

	started, current, next *config.Config
	refused                string          // why the last reading was refused, as it was logged
	before                 map[string]bool // what the store had seen before the last reading
	began                  time.Duration   // when the last reading began, by Now
	publishes              bool            // SubmitFile is written
}

// Follow returns the Follower of a program that is started with settings. store is what Use has
// returned. load reads zmailer.conf again.
func Follow(settings *config.Config, program string, store *Store, log *slog.Logger, load func() (*config.Config, error)) *Follower {
	f := &Follower{program: program, load: load, store: store, log: log, started: settings, current: settings, began: Now()}
	f.note(startSuffix)
	f.note("")
	f.answer(settings, nil)
	return f
}

// Reading returns what reads the zmailer.conf of a program's flags again, for Follow. What load needs of it
// must be right, also what takes effect at the next start alone.
func Reading[T any](c *cli.Context, load func(*config.Config) (T, error)) func() (*config.Config, error) {
	return func() (*config.Config, error) {
		next, err := config.FromCLI(c)
		if err == nil {
			_, err = load(next)
			err = next.Locate(err)
		}
		return next, err
	}
}

// Settle removes copies of files that settings no longer name.
func (f *Follower) Settle() { f.store.Settle() }

// End removes what is noted about files that cannot be used: for a program without which the mail
// system is complete, at its end. The next start notes it again.
func (f *Follower) End() {
	s := f.store
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return // the notes stay until the next start
	}
	for _, e := range list {
		if strings.HasSuffix(e.Name, badSuffix) {
			s.remove(e.Name)
		}
	}
}

// Read reads zmailer.conf again: the settings by which the program is to go on. Those that need a
// restart have the values of the start. Accept, Refuse or Leave follows.
func (f *Follower) Read() (*config.Config, error) {
	f.began = Now()
	f.settle()
	f.before = f.store.rereads()
	next, err := f.load()
	if err == nil && next.Empty() && !f.current.Empty() {
		// The defaults would have mail for all users of a table returned as for no one.
		err = &config.Error{File: next.File, Reason: "it has no settings any more, as a file that is just being written", Remedy: "reload again when it is complete"}
	}
	if err != nil {
		return nil, err // Refuse follows
	}
	f.next = next
	mixed := next.Keeping(f.started, config.ChangeFor(f.program, next.ChangedFrom(f.started)).Restart)
	if f.store != nil {
		f.store.after.Store(int64(mixed.OutageAfter()))
		mixed.SetKeeper(f.store)
	}
	return mixed, nil
}

const (
	// settled is how old the last change of zmailer.conf must be before it is read, so that a file
	// that an editor has truncated and is writing is not taken for whole.
	settled = 100 * time.Millisecond
	// mostSettle bounds the wait for that, in turns.
	mostSettle = 20
)

// settle waits while zmailer.conf is being written.
func (f *Follower) settle() {
	for range mostSettle {
		info, err := os.Stat(f.started.File)
		if err != nil {
			return
		}
		age := time.Since(info.ModTime())
		if age < 0 || age >= settled {
			return
		}
		<-time.After(settled - age)
	}
}

// Accept notes that the program goes by what was read last, and returns for the log what has
// changed since the reading before, and which settings wait for a restart: with those that always
// do, waiting, which cannot be applied this time.
func (f *Follower) Accept(waiting ...string) (attrs []any) {
	if f.next == nil {
		return nil
	}
	change := config.ChangeFor(f.program, f.next.ChangedFrom(f.current))
	pending := append(config.ChangeFor(f.program, f.next.ChangedFrom(f.started)).Restart, waiting...)
	changed := append(slices.Clone(change.Applied), change.Restart...)
	f.current, f.next, f.refused = f.next, nil, ""
	f.note("")
	if f.store != nil {
		f.store.settleBad(f.before)
	}
	if f.publishes {
		f.publish()
	}
	logging.SetLevel(f.log, f.current.String("LOGLEVEL", ""))
	f.answer(f.current, nil, waiting...)
	return []any{"changed", strings.Join(changed, " "), "restart", strings.Join(pending, " ")}
}

// Refuse notes that what was read last cannot be used: the program goes on as before. It logs
// that once, and an alarm is raised until a later reading is accepted.
func (f *Follower) Refuse(err error) {
	f.Leave(err)
	if err.Error() == f.refused {
		return
	}
	f.refused = err.Error()
	if f.store != nil {
		f.store.Bad(f.started.File, err, true)
	}
	for _, err := range config.Errors(err) {
		f.log.Error("conf-refused", "reason", err, "advice", "the settings that were read before stay in use; zmctl check-config names every error")
	}
}

// Leave notes that what was read last is not used because of another file, which has its own alarm.
func (f *Follower) Leave(err error) {
	read := f.next
	f.next = nil
	if f.store != nil {
		f.store.forgets(f.before)
	}
	f.answer(read, err)
}

// answer notes what came of the last reading, for who has asked for it. read is nil if zmailer.conf
// could not be read.
func (f *Follower) answer(read *config.Config, refused error, waiting ...string) {
	if f.store == nil {
		return
	}
	a := Answer{Began: f.began, Waiting: waiting}
	if read != nil {
		a.Sum = SumOf(read)
	}
	if refused != nil {
		a.Refused = refused.Error()
		a.Refused = a.Refused[:min(len(a.Refused), mostBad/2)]
	}
	f.store.answer(name(f.started.File)+answerSuffix, a)
}

// Answer is what a daemon has made of the last request to read zmailer.conf, or of its start.
type Answer struct {
	Began   time.Duration `json:"began"`             // when it began to read, by Now
	Sum     string        `json:"sha256,omitempty"`  // of what it read; "": it could not
	Refused string        `json:"refused,omitempty"` // why it goes on as before
	Waiting []string      `json:"waiting,omitempty"` // settings that a reload applies, but for this time
}

// SumOf returns what Answer.Sum is for a text of zmailer.conf.
func SumOf(c *config.Config) string {
	sum := sha256.Sum256(c.Source())
	return hex.EncodeToString(sum[:])
}

// Now returns the time since the machine was started, which all processes count alike, whatever
// happens to its clock.
func Now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // every kernel has this clock
	return time.Duration(t.Nano())
}

// note saves the settings in use under the name of zmailer.conf with a suffix.
func (f *Follower) note(suffix string) {
	if f.store != nil {
		f.store.Good(f.current.File+suffix, f.current.Source(), uint32(os.Geteuid()), nil)
	}
}

// Settings returns those that the flags of a program name. A process that a daemon has started goes
// by the zmailer.conf that the daemon goes by: what was changed since takes effect at a reload, and
// a file that cannot be used does no harm until then. Root's processes go by the file itself, unless the
// daemon is root, too, and while the file cannot be used by the one with which root could start last.
func Settings(c *cli.Context) (*config.Config, error) {
	now, err := config.FromCLI(c)
	daemon := os.Getenv(config.DaemonVariable)
	if daemon == "" || now == nil || now.File == "" {
		return now, err
	}
	if used := lastOf(c, now.PostOffice(), now.File, daemon); used != nil {
		return used, nil
	}
	// This is another user, who cannot read the daemon's copy, or root, who does not trust it.
	if err != nil {
		if older := lastOf(c, now.PostOffice(), now.File, Root); older != nil {
			return older, nil
		}
	}
	return now, err
}

// Load has load read what a program needs of settings (Settings), and returns the settings that it took.
// The daemon that has started the program may have taken a zmailer.conf, at a SIGHUP, of which it does
// not read all. If load refuses that one, the program goes by the copy in the store of a program, with
// which it could be started last, and the daemon's alarm names the error until the daemon has read
// zmailer.conf again. saves is where a copy is saved for that; nil: this process saves none.
func Load[T any](c *cli.Context, settings *config.Config, program string, saves *Store, log *slog.Logger, load func(*config.Config) (T, error)) (*config.Config, T, error) {
	v, err := load(settings)
	daemon := os.Getenv(config.DaemonVariable)
	if daemon == "" || settings.File == "" {
		return settings, v, err
	}
	if err == nil {
		if saves != nil {
			saves.Good(settings.File, settings.Source(), uint32(os.Geteuid()), nil)
		}
		return settings, v, nil
	}
	older := lastOf(c, settings.PostOffice(), settings.File, program)
	if older == nil {
		return settings, v, err
	}
	older.SetKeeper(settings.Keeper())
	w, werr := load(older)
	if werr != nil {
		return settings, v, err
	}
	reason := settings.Locate(err)
	log.Error("conf-refused", "reason", reason, "advice", "the settings of the last start stay in use; zmctl check-config names every error")
	if s, oerr := Open(settings.PostOffice(), daemon, log); oerr == nil {
		s.Bad(settings.File, reason, true)
		_ = s.Close() // what was written is synced
	}
	return older, w, nil
}

// lastOf returns the settings with which a program of a postoffice could be started last; nil: there
// are none.
func lastOf(c *cli.Context, postoffice, file, program string) *config.Config {
	s, err := Open(postoffice, program, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil
	}
	defer func() { _ = s.Close() }() // nothing was written
	kept := s.lastSettings(file)
	if kept == nil {
		return nil
	}
	older, err := config.FromCopy(c, kept.Text)
	if err != nil || older.PostOffice() != postoffice {
		return nil // an older release's, or a flag is wrong, too
	}
	return older
}

// Accepted returns the settings for a command of an operator: those of zmailer.conf, or, if the file
// cannot be used now, those by which the daemons go on. Then the error is printed once, as a
// warning: mail can be held, watched and stopped while somebody edits the file. Commands that
// apply the file refuse it instead. Who may not read the daemons' copy gets the error.
func Accepted(c *cli.Context) (*config.Config, error) {
	now, err := config.FromCLI(c)
	if err == nil {
		return now, nil
	}
	dir, file, perr := place(c, now)
	if perr != nil {
		return nil, err
	}
	for _, program := range []string{"scheduler", "router", "smtpserver", Root} {
		used := lastOf(c, dir, file, program)
		if used == nil {
			continue // it has never run
		}
		if _, said := c.App.Metadata[saidUnusable]; !said {
			c.App.Metadata[saidUnusable] = true
			for _, err := range append(config.Errors(err), fmt.Errorf("this goes by the zmailer.conf that was read before, by %s; zmctl check-config names every error", program)) {
				fmt.Fprintf(c.App.ErrWriter, "%s: warning: %v\n", c.App.Name, err)
			}
		}
		return used, nil
	}
	return nil, err
}

// place returns where the copies of a zmailer.conf are that cannot be used: in the postoffice that it
// names, or the usual one where nothing of it can be read.
func place(c *cli.Context, now *config.Config) (postoffice, file string, err error) {
	if now != nil {
		return now.PostOffice(), now.File, nil
	}
	file = config.FileOf(c)
	if file == "" {
		return "", "", ErrNotFollowed
	}
	postoffice, err = filepath.Abs(cmp.Or(c.String("postoffice"), config.DefaultPostOffice))
	if err == nil {
		file, err = filepath.Abs(file)
	}
	return postoffice, file, err
}

// saidUnusable is in the App's Metadata once the warning was printed.
const saidUnusable = "zmailer.conf cannot be used"

// Followed is by what versions of zmailer.conf a daemon goes.
type Followed struct {
	Started, Current []byte // when it was started, and now
	Answer           Answer // to the last request to read the file; zero: an older release has noted it
}

// ErrNotFollowed means that a program has saved nothing.
var ErrNotFollowed = errors.New("the program has not noted its settings")

// FollowedBy returns by what zmailer.conf a daemon of a postoffice goes, for comparisons: DAEMONUSER may
// have written it.
func FollowedBy(postoffice, program, file string) (v Followed, err error) {
	s, err := Open(postoffice, program, slog.New(slog.DiscardHandler))
	if err != nil {
		return v, err
	}
	defer func() { _ = s.Close() }() // nothing was written
	started, current := s.Last(file+startSuffix), s.Last(file)
	if started == nil || current == nil {
		return v, ErrNotFollowed
	}
	v.Started, v.Current = started.Text, current.Text
	if b, _, err := readFile(s.fs, s.dir+"/"+name(file)+answerSuffix, mostBad*2); err == nil {
		_ = json.Unmarshal(b, &v.Answer) // a damaged answer counts as no answer
	}
	return v, nil
}
