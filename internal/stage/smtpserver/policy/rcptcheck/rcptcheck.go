// Package rcptcheck asks the router whether a recipient exists, before mail for it is
// accepted. One child process, router --verify, serves all sessions; it is started at the
// first question and killed when it does not answer (docs/access.md).
//
// It owns the child and a memory of its answers; nothing of it survives a crash. A child
// whose server is killed finds the end of its input and ends.
//
// Diagnostics: an error of Check means that the answer is not known now: the program cannot
// be started, has ended, does not answer in time, or cannot ask a table. It is never
// "no such user".
package rcptcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/run/memo"
)

// Options say which program to ask and how long its answers are kept.
type Options struct {
	Program []string // with its arguments; nil: router --verify, beside this program
	Env     []string // of it, beside PATH, HOME, TZ and LANG
	// Greeting is the first line that it writes, and Mode the flag that names it in errors; "":
	// those of router --verify.
	Greeting, Mode string
	// Attach gives the program what it inherits beside that; nil: nothing (keys.Client.Attach).
	Attach func(*exec.Cmd) (done func(), err error)
	Time   time.Duration // for one answer; 0: DefaultTime
	Keep   time.Duration // how long an answer is kept; that a recipient is unknown, a tenth of it
	Now    func() time.Time
	Log    *slog.Logger
	Keeper config.Keeper // of the alarm about the program; may be nil
}

// AlarmName is what the alarm about the program is about.
const AlarmName = "rcpt-check"

// Defaults of Options.
const (
	DefaultTime = 5 * time.Second
	DefaultKeep = 10 * time.Minute
)

// unknownPart is how much shorter an unknown recipient is kept: a new mailbox is to get mail
// soon.
const unknownPart = 10

// maxKept is how many answers are kept, of either kind.
const maxKept = 20000

// Answer is the router's answer about a recipient.
type Answer struct {
	Known bool
	Code  status.Code // why not
	Text  string      // the same in words
	// Next is where its mail goes first; the zero value: that is not known. Verify: it is to be
	// asked whether it knows the recipient.
	Next   NextHop
	Verify bool
}

// NextHop is where the mail of a recipient goes, as the router has it.
type NextHop struct {
	Channel, Host, User string
	// Foreign: a client has chosen it, by a sender or recipient in a domain that is not ours.
	Foreign bool
}

// Checker asks. Many goroutines may use it.
type Checker struct {
	o     Options
	away  *config.Outage
	known *memo.Memo[Answer] // apart from none, so that guessed addresses do not drop them
	none  *memo.Memo[Answer]

	mu     sync.Mutex
	child  *child // nil: none runs
	closed bool
	next   uint64    // number of the next question
	fails  int       // failures since the last answer
	again  time.Time // no child is started before
	last   error     // the last failure

	// generation is that of the router's tables when it was asked last, at looked: answers are
	// kept under it, so that they end when a table changes. keep is how long they count.
	generation string
	looked     time.Time
	keep       time.Duration
}

// period is how often the router is asked whether its tables have changed, at most.
const period = time.Second

// New makes a checker. Nothing is started yet.
func New(o Options) (*Checker, error) {
	if o.Time <= 0 {
		o.Time = DefaultTime
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Greeting, o.Mode = cmp.Or(o.Greeting, greeting), cmp.Or(o.Mode, "--verify")
	if len(o.Program) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the program router: %w", err)
		}
		o.Program = []string{filepath.Join(filepath.Dir(self), "router"), "--verify"}
	}
	away := config.NewOutage(o.Keeper, config.Backend{Name: AlarmName, Remedy: "see rcpt-check-trouble and the router's errors in the log"})
	return &Checker{o: o, away: away, known: memo.New[Answer](maxKept), none: memo.New[Answer](maxKept)}, nil
}

// Check asks about a recipient of mail from a sender.
func (c *Checker) Check(ctx context.Context, from, to address.Mailbox) (Answer, error) {
	now := c.o.Now()
	generation, keep := c.current(ctx, now)
	key := generation + " " + to.String()
	for _, kept := range []*memo.Memo[Answer]{c.known, c.none} {
		if a, ok := kept.Get(key, now); ok {
			return a, nil
		}
	}
	word, a, err := c.ask(ctx, from, to)
	if err != nil {
		return Answer{}, err
	}
	switch word {
	case "known", "verify":
		c.known.Put(key, a, now, keep)
	case "unknown":
		c.none.Put(key, a, now, min(c.o.Keep/unknownPart, keep))
	}
	return a, nil
}

// current returns the generation of the router's tables, a second old at most, and how long its
// answers count. While the router does not answer the last one stays: what it knew was right.
func (c *Checker) current(ctx context.Context, now time.Time) (string, time.Duration) {
	if c.o.Keep <= 0 {
		return "", 0
	}
	c.mu.Lock()
	generation, keep := c.generation, c.keep
	age := now.Sub(c.looked)
	ask := c.generation == "" || age < 0 || age >= period
	if ask {
		c.looked = now // the others go on with the last one
	}
	c.mu.Unlock()
	if !ask {
		return generation, keep
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.Time)
	defer cancel()
	line, err := c.once(ctx, "generation")
	var name string
	var bound int64
	if err == nil {
		_, err = fmt.Sscanf(line, "generation - %s %d", &name, &bound)
	}
	if err != nil {
		return generation, keep
	}
	keep = c.o.Keep
	if bound > 0 {
		keep = min(keep, time.Duration(bound))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation, c.keep = name, keep
	return name, keep
}

// ask asks the child. One that ends while it is asked is started once more.
func (c *Checker) ask(ctx context.Context, from, to address.Mailbox) (string, Answer, error) {
	question := address.EncodeXText("<"+from.String()+">") + " " + address.EncodeXText(to.String())
	line, err := c.line(ctx, question)
	if err != nil {
		return "", Answer{}, err
	}
	return parseAnswer(line)
}

// Content asks what router.star decides about a message: head is its envelope and its header as
// its message file begins with them, size that of its content. Known: it is not rejected.
func (c *Checker) Content(ctx context.Context, head []byte, size int64) (Answer, error) {
	line, err := c.line(ctx, fmt.Sprintf("message %d %d\n%s", len(head), size, head))
	if err != nil {
		return Answer{}, err
	}
	_, a, err := parseAnswer(line)
	return a, err
}

// line asks the child, and one that is started for that if it ends.
func (c *Checker) line(ctx context.Context, question string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Time)
	defer cancel()
	line, err := c.once(ctx, question)
	if errors.Is(err, errEnded) && ctx.Err() == nil {
		line, err = c.once(ctx, question)
	}
	return line, err
}

// once asks one child.
func (c *Checker) once(ctx context.Context, question string) (string, error) {
	k, id, err := c.take()
	if err != nil {
		c.away.Failed(err)
		return "", err
	}
	line, err := k.ask(ctx, id, question)
	c.away.Note(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.fails, c.last = 0, nil
		return line, nil
	}
	if k.dead() && c.child == k {
		c.child = nil
		c.failed(err)
	}
	return "", err
}

// How long a program that keeps failing is left alone: nothing after the first two
// failures, which one question may meet, then twice as long each time.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// failed notes a failure. c.mu is held.
func (c *Checker) failed(err error) {
	c.last = err
	if c.fails++; c.fails > 2 {
		c.again = c.o.Now().Add(min(firstPause<<min(c.fails-3, 10), lastPause))
	}
}

// take returns the child, started if there is none, and a number for a question.
func (c *Checker) take() (*child, uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, 0, os.ErrClosed
	}
	c.next++
	if c.child != nil && !c.child.dead() {
		return c.child, c.next, nil
	}
	if left := c.again.Sub(c.o.Now()); left > 0 && left <= lastPause {
		return nil, 0, fmt.Errorf("%s: asked again in %v: %w", c.o.Program[0], left.Round(time.Millisecond), c.last)
	}
	k, err := start(&c.o)
	if err != nil {
		c.failed(err)
		return nil, 0, err
	}
	c.child = k
	return k, c.next, nil
}

// Close ends the child.
func (c *Checker) Close() {
	c.mu.Lock()
	k := c.child
	c.child, c.closed = nil, true
	c.mu.Unlock()
	if k != nil {
		k.end()
	}
}

// parseAnswer reads "WORD CODE TEXT".
func parseAnswer(line string) (word string, a Answer, err error) {
	word, rest, _ := strings.Cut(line, " ")
	code, text, _ := strings.Cut(rest, " ")
	switch word {
	case "known", "verify":
		f := strings.Fields(text)
		if word == "known" && len(f) == 0 {
			return word, Answer{Known: true}, nil
		}
		if len(f) != 3 {
			return "", Answer{}, fmt.Errorf("the router's answer %.80q has no next hop", line)
		}
		host, err := address.DecodeXText(f[1])
		user, uerr := address.DecodeXText(f[2])
		return word, Answer{Known: true, Next: NextHop{Channel: f[0], Host: host, User: user}, Verify: word == "verify"}, errors.Join(err, uerr)
	case "unknown", "refused":
		s, ok := status.Parse(code)
		if !ok || s.Class != 5 {
			return "", Answer{}, fmt.Errorf("the router's answer %.80q has no code", line)
		}
		return word, Answer{Code: s, Text: strings.TrimSpace(text)}, nil
	case "trouble":
		return "", Answer{}, fmt.Errorf("the router has no answer now: %s", text)
	}
	return "", Answer{}, fmt.Errorf("the router answers %.80q", line)
}
