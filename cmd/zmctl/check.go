package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "explain every file of the postoffice and what is wrong with it",
		UsageText: "zmctl check [--problems] [--json]",
		Description: `Goes through every directory and says of each file which state it is in, who holds it
and whether that process lives, what happens next, and what is wrong. It only reads.

    zmctl check --problems

Exit codes: 0 all is as it should be; 1 warnings: a person may want to look, or a daemon
that does not run must be started; 2 errors: a file that nothing will take care of by
itself, or that cannot be looked at; 64 bad arguments; 78 no postoffice.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "problems", Usage: "print warnings and errors only"},
			&cli.BoolFlag{Name: "json", Usage: "print a JSON array"},
		},
		Action: runCheck,
	}
}

// severity is how bad a finding is; its number is the exit code.
type severity int

const (
	fine severity = iota
	warning
	wrong
)

func (v severity) String() string { return [...]string{"ok", "warning", "error"}[v] }

// MarshalText makes JSON hold the word.
func (v severity) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// finding is what check says of one file or directory.
type finding struct {
	File     string   `json:"file"`
	Severity severity `json:"severity"`
	State    string   `json:"state"`
	Text     string   `json:"text"` // what it is and what happens next
}

func runCheck(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	x := &checker{spool: newSpool(po, time.Now())}
	x.run()
	worst, shown := fine, []finding{}
	counts := [3]int{}
	for _, f := range x.findings {
		worst = max(worst, f.Severity)
		counts[f.Severity]++
		if f.Severity > fine || !c.Bool("problems") {
			shown = append(shown, f)
		}
	}
	if c.Bool("json") {
		err = printJSON(c.App.Writer, shown)
	} else {
		err = printFindings(c.App.Writer, shown, counts)
	}
	if err != nil || worst == fine {
		return err
	}
	return cli.Exit("", int(worst))
}

func printFindings(w io.Writer, list []finding, counts [3]int) error {
	var errs []error
	for _, f := range list {
		_, err := fmt.Fprintf(w, "%-7s  %s: %s\n         %s\n", f.Severity, clean(f.File), f.State, clean(f.Text))
		errs = append(errs, err)
	}
	_, err := fmt.Fprintf(w, "%d ok, %s, %s\n", counts[fine], count(counts[warning], "warning"), count(counts[wrong], "error"))
	return errors.Join(append(errs, err)...)
}

// checker collects findings.
type checker struct {
	*spool
	findings []finding
	reports  map[string]string // file in public/ → specification that records it
}

func (x *checker) say(name string, v severity, state string, text ...string) {
	x.findings = append(x.findings, finding{name, v, state, strings.Join(text, " ")})
}

func (x *checker) run() {
	x.daemons()
	// The specifications first: they tell which files in public/ are reports.
	x.reports = map[string]string{}
	x.queue()
	x.each(postoffice.Public, x.public)
	x.each(postoffice.Router, x.router)
	for _, dir := range []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		x.each(dir, x.aside)
	}
	x.owned()
}

// each looks at every file of a directory.
func (x *checker) each(dir string, look func(f file)) {
	files, err := x.list(dir)
	if err != nil {
		x.say(dir, wrong, "unreadable", err.Error())
	}
	for _, f := range files {
		look(f)
	}
}

// daemons warns when nobody is there to move mail on.
func (x *checker) daemons() {
	for _, role := range []string{"router", "scheduler"} {
		if x.runs(role) {
			x.say(role, fine, "running", "It lives.")
		} else {
			x.say(role, warning, "not running", "Nothing moves on without it; zmctl run starts the daemons.")
		}
	}
}

// owned looks at owners/.
func (x *checker) owned() {
	x.each(postoffice.Owners, func(f file) {
		n, ok := postoffice.ParseName(f.Name)
		if !ok || n.Owner != 0 || n.Ino > postoffice.MaxOwner || !f.Info.Mode.IsRegular() {
			x.say(f.path(), warning, "unknown", "No process of ours makes such a name; remove it.")
			return
		}
		o := x.owner(int(n.Ino))
		if o.Alive {
			x.say(f.path(), fine, "alive", "It is the number of "+o.String()+".")
			return
		}
		x.say(f.path(), fine, "dead", "It was the number of "+o.String()+". The number is not given out again while the file is there;",
			"when no name and no lock bears it any more, the file may be removed.")
	})
}

// public looks at a file that is being written.
func (x *checker) public(f file) {
	k := x.kind(f)
	spec, isReport := x.reports[f.Name]
	switch {
	case k.state == "":
		x.say(f.path(), warning, "unknown", "Not a regular file: nothing takes it up. Remove it.")
	case isReport && k.state == stateWriting:
		x.say(f.path(), fine, "prepared report", "It belongs to "+spec+" and is submitted when its record there is safe.")
	case k.state == stateAccepted:
		x.message(f, k)
	default:
		x.unfinished(f)
	}
}

// draftGrace is how long a submission may take before a file without a known writer
// is taken for a left one.
const draftGrace = time.Hour

func (x *checker) unfinished(f file) {
	age := x.now.Sub(f.Info.ModTime)
	if pid, held := x.holder(f); held {
		x.say(f.path(), fine, stateWriting, fmt.Sprintf("It is being written by pid %d.", pid))
		return
	}
	if age < draftGrace {
		x.say(f.path(), fine, stateWriting, "It was written "+span(age)+" ago and is not complete; its submitter has not been told yes.")
		return
	}
	x.say(f.path(), warning, stateWriting, "It was last written "+span(age)+" ago and is not complete. Its submitter was never told yes; remove it.")
}

// router looks at a file in router/.
func (x *checker) router(f file) {
	k := x.kind(f)
	switch {
	case k.work:
		x.work(f, k.name)
	case k.state == "":
		x.say(f.path(), warning, "unknown", "Routers take only regular files whose name is a number. Remove it, or submit it.")
	default:
		x.message(f, k)
	}
}

// work looks at router/..I-P.
func (x *checker) work(f file, n postoffice.Name) {
	o := x.owner(n.Owner)
	switch {
	case o.Alive:
		x.say(f.path(), fine, "work file", "It is being written by "+o.String()+".")
	case x.exists(postoffice.Router + "/" + n.String()):
		x.say(f.path(), warning, "work file", "Its writer is dead; it is removed when the message is given back to router/.")
	default:
		x.say(f.path(), warning, "work file", "Its writer is dead. The next look of a router puts it in place if it is whole and its message is in queue/, else removes it.")
	}
}

// message looks at a message file outside of queue/.
func (x *checker) message(f file, k kind) {
	m, err := x.loadKind(f, k)
	if errors.Is(err, errMoved) {
		return
	}
	if err != nil {
		x.say(f.path(), wrong, k.state, err.Error())
		return
	}
	v := fine
	switch {
	case m.Problem != "":
		v = warning
	case k.state == stateClaimed && !m.Owner.Alive:
		v = warning
	}
	text := []string{m.ID + ", " + span(x.now.Sub(m.Since)) + " old."}
	if m.Problem != "" {
		text = append(text, "Wrong: "+m.Problem+".")
	}
	if f.Dir == postoffice.Router && f.Info.Ino != k.name.Ino {
		v = max(v, warning)
		text = append(text, fmt.Sprintf("Its inode number is %d: it was copied or restored. A router gives it the right name.", f.Info.Ino))
	}
	x.say(f.path(), v, k.state, append(text, x.next(m)...)...)
}

// aside looks at a file in deferred/, freezer/ or postman/.
func (x *checker) aside(f file) {
	k := x.kind(f)
	if k.state == "" {
		x.say(f.path(), warning, "unknown", "No name that is made here; nothing takes it up. Remove it, or submit it.")
		return
	}
	m, err := x.loadKind(f, k)
	if errors.Is(err, errMoved) {
		return
	}
	if err != nil {
		x.say(f.path(), wrong, k.state, err.Error())
		return
	}
	v := fine
	if k.state == stateDeferred || k.state == stateSetAside {
		v = warning
	}
	text := []string{m.ID + ", " + span(x.now.Sub(m.Since)) + " old."}
	if m.Problem != "" {
		text = append(text, "Wrong: "+m.Problem+".")
		if k.state == stateFrozen {
			v = warning
		}
	}
	x.say(f.path(), v, k.state, append(text, x.next(m)...)...)
}
