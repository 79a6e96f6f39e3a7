// Package load sends small messages of every kind through a system and keeps an
// account of each: what its submitter was told, what must come of it, and what did.
// Whoever kills the programs, makes calls fail or fills disks compares in this way.
//
// It owns the sink that plays the other hosts, and the tables of the system that it
// prepares. Each try to submit has a token of its own, which stands in the message, in
// its addresses where there is a choice, and in the report of its failure: so a try
// that was refused and yet arrives differs from the next one.
package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Kind is what a message is to go through.
type Kind string

// Kinds of messages.
const (
	Relay  Kind = "relay"  // to the sink
	Local  Kind = "local"  // to a Maildir
	Mbox   Kind = "mbox"   // by an alias to an mbox file
	Three  Kind = "three"  // by an alias to a Maildir, an mbox file and the sink
	Later  Kind = "later"  // the sink defers it once
	Fail   Kind = "fail"   // the sink refuses it: a report
	NoUser Kind = "nouser" // to an unknown user: a report by the scheduler alone
	Null   Kind = "null"   // of the null sender, refused: no report
	Mixed  Kind = "mixed"  // to three at the sink, which takes, defers and refuses; by submit
)

// Long goes to three at the sink, which defers each three times, with replies so long that
// the scheduler summarises the message's history; by submit. It takes more attempts than
// any other message, so a round has one only if the load's Extra says so.
const Long Kind = "long"

// Kinds that a system has use for whose configuration Remember has prepared. What is learned of
// them is kept on disk. They come by SMTP.
const (
	Greylisted Kind = "greylisted" // deferred once by the greylist, then to a Maildir
	Verified   Kind = "verified"   // the sink is asked for its recipient first
)

// Held is from a sender that an operator has suspended: Operate offers it.
const Held Kind = "held"

// Kinds returns all others.
func Kinds() []Kind { return []Kind{Relay, Local, Mbox, Three, Later, Fail, NoUser, Null, Mixed} }

// Ways of submission.
const (
	BySMTP   = "smtp"
	BySubmit = "submit" // as the user that runs the load, root as a rule
	ByUser   = "user"   // by submit as nobody, whose messages a router picks up in public/
)

// nobody is the uid of a user who has no rights.
const nobody = 65534

// Fate is what a submitter was told.
type Fate string

// Fates.
const (
	Accepted Fate = "accepted" // 250, exit code 0
	Refused  Fate = "refused"  // 4xx, exit code 75: it must not arrive
	Denied   Fate = "denied"   // 5xx, another exit code: no local fault may lead to that
	Unsure   Fate = "unsure"   // no answer: it may arrive
)

// Try is one message that was offered once.
type Try struct {
	Token string
	Kind  Kind
	By    string
	Round int // whatever the caller counts
	Fate  Fate
	Said  string    // the answer
	Heard time.Time // when the answer came
}

func (t *Try) String() string {
	return fmt.Sprintf("%s message %s by %s, round %d, %s %q", t.Kind, t.Token, t.By, t.Round, t.Fate, t.Said)
}

// Load is the traffic of one system.
type Load struct {
	Suite *suite.Suite
	Sink  *peer.Sink
	// Size is about how long a body is, bytes. 0: some hundred.
	Size int
	// Pad is how long headers are at most, bytes; each message's is of another length.
	Pad int
	// Extra are kinds of messages that a round has beside those of Kinds.
	Extra []Kind
	// Ways of submission, which messages take in turn; nil: all.
	Ways []string
	// StartSubmit starts submit: an injector's Start. nil: cmd.Start.
	StartSubmit func(cmd *exec.Cmd) error
	// StartOperator starts what Operate calls; nil: cmd.Start.
	StartOperator func(cmd *exec.Cmd) error

	mu      sync.Mutex
	tries   []*Try
	resumed map[int]time.Time // when the operator began to resume Held mail, by round
}

// Prepare makes a load for a system that is not initialized yet: it sets users and
// tables, and starts the sink.
func Prepare(s *suite.Suite) (*Load, error) {
	l := &Load{Suite: s, Sink: &peer.Sink{Rcpt: answer}}
	if err := l.Sink.Start(); err != nil {
		return nil, err
	}
	if err := reachable(s.Bin, s.Dir); err != nil {
		l.Close()
		return nil, err
	}
	s.Users = []string{"alice", "bob"}
	if s.Hostname == "" {
		s.Hostname = "mta.example"
	}
	files := map[string]string{
		"routes":         ". smtp!" + l.Sink.RouteHost() + "\n",
		"aliases":        "nobody: bob\nbox: " + l.Box() + "\nthree: alice, " + l.Box() + ", three@sink.example\n",
		"scheduler.conf": SchedulerConf,
	}
	for name, text := range s.Files {
		files[name] = text
	}
	s.Files = files
	// Mail to unknown users is to be accepted and reported (NoUser).
	settings := map[string]string{"RCPTCHECK": "untrusted"}
	maps.Copy(settings, s.Settings)
	s.Settings = settings
	return l, os.MkdirAll(filepath.Dir(l.Box()), 0o755)
}

// reachable lets other users search temporary directories: submit runs as one of them.
func reachable(dirs ...string) error {
	for _, dir := range dirs {
		for ; strings.HasPrefix(dir, filepath.Clean(os.TempDir())+"/"); dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if errors.Is(err, os.ErrNotExist) {
				continue // it is made as the umask has it
			}
			if err == nil && info.Mode()&0o001 == 0 {
				err = os.Chmod(dir, info.Mode().Perm()|0o011)
			}
			if err != nil {
				return fmt.Errorf("open a directory to other users: %w", err)
			}
		}
	}
	return nil
}

// SchedulerConf tries again soon and keeps agents with several slots.
const SchedulerConf = `PARAM global-report-interval=1s
*/*
	interval=1s retries="1 1 2 3" expiry=1h maxta=20 maxring=50 maxthr=20
smtp/*
	command="ta-smtp --slots=8 $channel"
local/*
file/*
	command="ta-mailbox --slots=4 $channel"
`

// SoonConf is SchedulerConf for a load with Long messages: every attempt comes after a
// second.
func SoonConf() string {
	return strings.Replace(SchedulerConf, `retries="1 1 2 3"`, `retries="1"`, 1)
}

// Summarises reports whether a step, by its class of object, is one that only the history of
// a Long message leads to.
func Summarises(class string) bool { return strings.Contains(class, "transport/.copy.") }

// How often, and with how many bytes, the sink defers a recipient of a Long message: three
// recipients' replies are a history of more than 32 kB, of which the middle third says
// nothing new.
const (
	longAttempts = 3
	longReply    = 3900 // one line of a reply, of which ta-smtp reads 4096 bytes
)

// answer returns the sink's word on a recipient.
func answer(address string, attempt int) string {
	kind, _, _ := strings.Cut(address, ".")
	switch {
	case kind == string(Fail), kind == string(Null), kind == mixedFail:
		return "550 5.1.1 no such user"
	case (kind == string(Later) || kind == mixedLater) && attempt == 1:
		return "451 4.2.1 later"
	case (kind == string(Long) || kind == longSecond || kind == longThird) && attempt <= longAttempts:
		return "451 4.2.1 <" + address + "> later " + strings.Repeat("x", longReply)
	}
	return ""
}

// Box returns the mbox file.
func (l *Load) Box() string { return filepath.Join(l.Suite.Dir, "stores", "box") }

// Close ends the sink.
func (l *Load) Close() { l.Sink.Close() }

// Tries returns what was offered so far.
func (l *Load) Tries() []Try {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Try, len(l.tries))
	for i, t := range l.tries {
		list[i] = *t
	}
	return list
}

// Round has one message of each kind accepted, all at once, each offered until it is.
// They come by SMTP, by submit and by a user's submit in turn.
func (l *Load) Round(ctx context.Context, round int) error {
	return l.Send(ctx, round, append(Kinds(), l.Extra...)...)
}

// Send is Round for some kinds. A kind may stand there more than once.
func (l *Load) Send(ctx context.Context, round int, kinds ...Kind) error {
	errs := make([]error, len(kinds))
	var wg sync.WaitGroup
	for i, kind := range kinds {
		ways := l.Ways
		if ways == nil {
			ways = []string{BySMTP, BySubmit, ByUser}
		}
		by := ways[(i+round)%len(ways)]
		switch {
		case (kind == Mixed || kind == Long) && by == BySMTP, kind == Null && by == ByUser: // a user has no null sender
			by = BySubmit
		case kind == Greylisted, kind == Verified:
			by = BySMTP
		}
		wg.Go(func() { errs[i] = l.untilAccepted(ctx, round, kind, by) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *Load) untilAccepted(ctx context.Context, round int, kind Kind, by string) error {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		t := l.Offer(ctx, round, kind, by)
		if t.Fate == Accepted {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%v: %w", &t, context.Cause(ctx))
		}
	}
}

// Offer offers one message once.
func (l *Load) Offer(ctx context.Context, round int, kind Kind, by string) Try {
	t := &Try{Kind: kind, By: by, Round: round, Fate: Unsure}
	l.mu.Lock()
	t.Token = fmt.Sprintf("t%06dt", len(l.tries)+1)
	l.tries = append(l.tries, t)
	l.mu.Unlock()
	var fate Fate
	var said string
	var heard time.Time
	if by == BySMTP {
		fate, said, heard = l.bySMTP(ctx, kind, round, t.Token)
	} else {
		fate, said = l.bySubmit(ctx, kind, by, round, t.Token)
		heard = time.Now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Fate, t.Said, t.Heard = fate, strings.TrimSpace(said), heard
	return *t
}
