package kill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// Touch is a system call of a program on a name, with what differs from one message to
// the next left out: of inject's classes, in public/ and in hidden names with the word
// that they begin with. What is outside of the postoffice and the mailboxes keeps its path.
type Touch struct {
	Program, Call string
	Name          string // one of two that a rename or link has
	// Makes: it may create the name: open with O_CREAT, the new name of a rename or link.
	Makes bool
}

func (t Touch) String() string { return fmt.Sprintf("%s %s %s", t.Program, t.Call, t.Name) }

// Tracer has programs of one system run under strace and collects what they touch: every
// call that opens, makes, renames, links, locks or removes a name.
type Tracer struct {
	Dir     string // for strace's files
	Classes inject.Classes
	files   atomic.Int64
}

// NewTracer returns a tracer of a system's programs.
func NewTracer(s *suite.Suite, dir string) *Tracer {
	return &Tracer{Dir: dir, Classes: classes(s)}
}

// Start starts a command under strace; it is a suite's Launch.
func (t *Tracer) Start(cmd *exec.Cmd) error {
	traceable(cmd, filepath.Join(t.Dir, fmt.Sprintf("strace.%d", t.files.Add(1))), touching()...)
	return cmd.Start()
}

// Trace has a system of this package's do rounds of mail of every kind, and its programs'
// calls traced.
func Trace(ctx context.Context, bin, dir string) (*Tracer, error) {
	s, l, err := prepared(bin, dir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	t := NewTracer(s, dir)
	s.Launch = func(cmd *exec.Cmd) error { fast(cmd); return t.Start(cmd) }
	l.StartSubmit, l.StartOperator = t.Start, t.Start
	if err := s.Start(); err != nil {
		return nil, err
	}
	defer s.Kill()
	for n := range 2 {
		if n == 1 {
			l.Extra = []load.Kind{load.Long}
		}
		err = errors.Join(err, runRound(ctx, s, l, n))
	}
	return t, errors.Join(err, l.Keep(ctx, firstExtra), drain(ctx, s), s.Stop())
}

// Touched returns what the programs have touched, when they have ended.
func (t *Tracer) Touched() ([]Touch, error) {
	seen := map[Touch]bool{}
	for n := range t.files.Load() {
		f, err := os.Open(filepath.Join(t.Dir, fmt.Sprintf("strace.%d", n+1)))
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			for _, touch := range parseTouches(lines.Text(), t.Classes) {
				seen[touch] = true
			}
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, err
		}
	}
	var list []Touch
	for touch := range seen {
		list = append(list, touch)
	}
	slices.SortFunc(list, func(a, b Touch) int { return strings.Compare(a.Name+" "+a.String(), b.Name+" "+b.String()) })
	return list, nil
}

// touching are calls on names that change no state by themselves, or none of ours uses yet.
func touching() []string {
	return []string{"open", "openat2", "creat", "bind", "connect", "chmod", "chown", "lchown", "rename", "link", "symlink", "unlink", "mkdir", "rmdir", "mknod"}
}

// parseTouches reads a line of strace's output; see parseCall. A call with a descriptor
// alone touches the name that was opened, but for flock, which others see.
func parseTouches(line string, c inject.Classes) (list []Touch) {
	line = strings.TrimSuffix(strings.TrimSpace(line), "<unfinished ...>")
	_, rest, ok1 := strings.Cut(line, "<")
	program, rest, ok2 := strings.Cut(rest, "> ")
	call, rest, ok3 := strings.Cut(rest, "(")
	if !ok1 || !ok2 || !ok3 || strings.ContainsAny(call, "<? ") {
		return nil
	}
	args := arguments(rest)
	var names []string
	switch {
	case slices.Contains([]string{"write", "writev", "pwrite64", "pwritev", "sendto", "sendmsg"}, call):
		return nil // into what was opened
	case call == "flock" && len(args) > 0:
		names = []string{described(args[0])}
	case call == "bind" || call == "connect":
		if _, path, ok := strings.Cut(rest, "sun_path="); ok {
			name := quoted(path)
			if rest, ok := strings.CutPrefix(name, "/proc/self/fd/"); ok {
				// A descriptor of the postoffice's: paths of sockets are short.
				name = filepath.Join(c.PostOffice, filepath.Base(rest))
			}
			names = []string{name}
		}
	default:
		names = paths(args)
	}
	for i, name := range names {
		if name == "" || name[0] != '/' || strings.HasPrefix(name, "/proc/") || strings.HasPrefix(name, "/sys/") || strings.HasPrefix(name, "/dev/") {
			continue // no other user makes names there
		}
		makes := strings.Contains(rest, "O_CREAT") || strings.Contains(rest, "O_TMPFILE") || strings.HasPrefix(call, "mk") || call == "bind" ||
			call == "symlinkat" || i == 1 && (strings.HasPrefix(call, "rename") || strings.HasPrefix(call, "link"))
		list = append(list, Touch{Program: program, Call: call, Name: touchedName(c, name), Makes: makes})
	}
	return list
}

var (
	word   = regexp.MustCompile(`^([a-z]+)\..*`)
	pickup = regexp.MustCompile(`^(router\d*)/\.pickup\..*`)
)

// touchedName returns the class of a path.
func touchedName(c inject.Classes, path string) string {
	class := c.Of(path)
	if class == "unnamed" || class == "socket" || class == "pipe" {
		return class
	}
	rel, below := strings.CutPrefix(strings.TrimSuffix(path, " (deleted)"), c.PostOffice+"/")
	if !below {
		return class
	}
	if m := pickup.FindStringSubmatch(rel); m != nil {
		return m[1] + "/.pickup.I.T"
	}
	if name, ok := strings.CutPrefix(rel, "public/"); ok {
		switch m := word.FindStringSubmatch(name); {
		case m != nil:
			return "public/" + m[1] + ".T"
		case name != "" && name[0] >= '0' && name[0] <= '9':
			return "public/N"
		}
	}
	return class
}
