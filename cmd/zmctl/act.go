package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// act is one use of a verb. It looks at a message, notes it in its order, acts, and
// forgets it: its memory does not grow with the mail.
type act struct {
	c     *cli.Context
	v     *verb
	po    *postoffice.PostOffice
	out   *stream
	sel   selector.Selector
	named bool // messages by their IDs and nothing else
	keep  time.Duration
	now   time.Time
	until time.Time
	order *postoffice.OperationFile // nil until there is something to do
	met   map[string]bool       // of those named
	made  map[string]bool       // copies that reroute made: they are not to be met
	sum   actSum
	next  []*view.Message // looked at, not acted on
	// journal is where what is put away is entered; nil: nothing was.
	journal *ledger.Journal
	away    map[string]bool // directories out of which messages were put away, not synced yet

	// Of an act on what is put aside in one directory; nil of any other.
	from     *aside
	pace     *pace
	progress *progress
	expected int // messages, if a person was asked about them
}

// actSum is what was done, or would be.
type actSum struct {
	messages, recipients, busy, wrong int
	errs                              []error
}

const (
	// actChunk is how many messages are noted in an order file at a time.
	actChunk = 64
	// dryShown is how many messages a dry run shows.
	dryShown = 10
	// errorsTold is how many troubles are told one by one.
	errorsTold = 20
)

func (v *verb) run(c *cli.Context) error {
	sel, named, err := v.chosen(c)
	if err != nil {
		return err
	}
	if sel.Empty() {
		what := "a spool ID or a selector"
		if v.hosts {
			what = "a host or a selector"
		}
		return cli.Exit("zmctl "+v.name+" needs "+what+"; --all is everything, --help tells the flags, zmctl queue shows the mail", config.ExitUsage)
	}
	now := time.Now()
	until, err := parseUntil(c.String("until"), now)
	if err != nil {
		return cli.Exit("zmctl "+v.name+" "+err.Error(), config.ExitUsage)
	}
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	a := &act{c: c, v: v, po: po, out: newStream(c.App.Writer), sel: sel, named: named, keep: keep, now: now, until: until,
		met: map[string]bool{}, made: map[string]bool{}}
	if c.Bool("dry-run") {
		return quiet(a.dry(dryShown))
	}
	if !named && !c.Bool("yes") {
		if err := a.ask(); err != nil {
			return err
		}
	}
	if a.progress = newProgress(c, v.name, a.expected); a.expected == 0 && !named {
		a.progress = newCounter(c, v.name, "messages")
	}
	err = errors.Join(a.all(), a.close())
	a.progress.end()
	return errors.Join(quiet(err), quiet(a.end()))
}

// terminal tells whether a person can be asked.
func terminal(f *os.File) bool { return term.Terminal(f) }

// ask asks the person whether this is meant.
func (a *act) ask() error {
	if err := a.dry(0); err != nil {
		return err
	}
	if a.sum.messages == 0 {
		return nil
	}
	a.expected = a.sum.messages
	numbers := human.Count(a.sum.recipients, "recipient") + " of " + human.Count(a.sum.messages, "message")
	a.sum, a.met = actSum{}, map[string]bool{}
	in, ok := a.c.App.Reader.(*os.File)
	if !ok || !terminal(in) {
		return cli.Exit(fmt.Sprintf("%s: %s; nobody can be asked here: --yes does it, --dry-run shows them", a.v.name, numbers), config.ExitUsage)
	}
	if !agreed(in, a.c.App.Writer, a.v.name+" "+numbers+"?") {
		return cli.Exit("nothing was changed", 1)
	}
	return nil
}

// agreed reads yes or no; what is neither is no.
func agreed(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprint(out, question+" [y/N] ")
	// Whatever was read before an error is the answer.
	line, _ := bufio.NewReader(in).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// dry counts what an act would be about, and shows the first of it; shown zero: nothing.
func (a *act) dry(shown int) error {
	err := a.each(func(m *view.Message) error {
		a.meet(m)
		list, ok := a.fit(m)
		if !ok {
			return nil
		}
		if a.sum.messages++; a.sum.messages <= shown {
			fmt.Fprintf(a.out, "%s  %s  %s  %s\n", m.ID, human.Span(a.now.Sub(m.Since)), m.From(), addressesOf(list))
		}
		a.sum.recipients += max(len(list), 1)
		for _, r := range list {
			if r.State == view.Delivering {
				a.sum.busy++
			}
		}
		return a.out.tick()
	})
	if err != nil {
		return err
	}
	if shown == 0 {
		return nil
	}
	if n := a.sum.messages - shown; n > 0 {
		fmt.Fprintf(a.out, "and %s\n", human.Count(n, "more message"))
	}
	busy := ""
	if a.sum.busy > 0 {
		busy = fmt.Sprintf(", %d of them delivered to at this moment", a.sum.busy)
	}
	fmt.Fprintf(a.out, "%s would act on %s of %s%s; nothing was changed\n", a.v.name, human.Count(a.sum.recipients, "recipient"), human.Count(a.sum.messages, "message"), busy)
	if err := a.out.flush(); err != nil {
		return err
	}
	return a.missing(func(id postoffice.SpoolID) error {
		m, others, err := a.spool().ByID(id)
		if m != nil {
			return fmt.Errorf("%s %s: it is %s", a.v.name, id, m.State)
		}
		return a.editing(id).notFound(a.v.name, others, err)
	})
}

// missing calls fn for each message that was named and not met.
func (a *act) missing(fn func(id postoffice.SpoolID) error) error {
	if !a.named {
		return nil
	}
	ids, _ := a.sel.IDs()
	var errs []error
	for _, text := range ids {
		if a.met[text] {
			continue
		}
		a.met[text] = true
		id, err := postoffice.ParseSpoolID(text)
		if err == nil {
			err = fn(id)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// meet remembers a message that was named.
func (a *act) meet(m *view.Message) {
	if a.named {
		a.met[m.ID] = true
	}
}

func (a *act) spool() *view.Spool { return view.New(a.po, time.Now()) }

func (a *act) editing(id postoffice.SpoolID) *editing {
	return &editing{c: a.c, po: a.po, id: id, keep: a.keep, now: time.Now()}
}

// fit gives the recipients of a message that the verb can be about; of one that is not
// routed, all. ok is false if it is nothing for the verb.
func (a *act) fit(m *view.Message) (list []view.Recipient, ok bool) {
	if a.made[m.ID] {
		return nil, false
	}
	if m.State != view.StateQueued {
		_, ok := a.v.aside[m.State]
		return m.Recipients, ok
	}
	for i := range m.Recipients {
		// A verb about one directory takes nothing that is routed.
		if a.from == nil && a.v.takes(a, &m.Recipients[i]) {
			list = append(list, m.Recipients[i])
		}
	}
	return list, len(list) > 0
}

// each calls fn with everything that is selected.
func (a *act) each(fn func(m *view.Message) error) error {
	if a.from != nil {
		return a.from.each(a.c.Context, a.po, fn)
	}
	_, err := a.spool().Each(a.c.Context, a.sel, fn)
	return err
}

// all acts on everything that is selected.
func (a *act) all() error {
	err := a.each(func(m *view.Message) error {
		a.meet(m)
		if _, ok := a.fit(m); !ok && !a.named {
			return nil
		}
		m.Spec, m.Raw, m.Envelope = nil, nil, nil
		if a.next = append(a.next, m); len(a.next) < actChunk {
			return nil
		}
		return a.chunk()
	})
	err = errors.Join(err, a.chunk())
	if err != nil && !errors.Is(err, view.ErrListing) {
		return err
	}
	return errors.Join(err, a.missing(func(id postoffice.SpoolID) error {
		s := a.spool()
		m, others, err := s.ByID(id)
		if m == nil {
			a.told(&view.Message{ID: id.String()}, a.editing(id).notFound(a.v.name, others, err))
			return nil
		}
		m.Choose(a.sel, s.Now)
		a.next = append(a.next, m)
		return a.chunk()
	}))
}

// chunk notes some messages in the order file and acts on them.
func (a *act) chunk() error {
	list := a.next
	a.next = nil
	noted := make([]bool, len(list))
	var lines []byte
	for i, m := range list {
		if _, noted[i] = a.fit(m); noted[i] {
			lines = append(append(lines, m.ID...), '\n')
		}
	}
	if err := a.note(lines); err != nil {
		return err
	}
	for i, m := range list {
		if err := a.c.Context.Err(); err != nil {
			return err
		}
		a.told(m, a.message(m, noted[i]))
		if a.progress.begins() {
			_ = a.out.flush() // trouble with it is met by the next one
		}
		a.progress.step()
		if err := errors.Join(a.pace.wait(a.c.Context), a.out.tick()); err != nil {
			return errors.Join(err, a.sync())
		}
	}
	return a.sync()
}

// close ends the order and the account.
func (a *act) close() error {
	a.journal.Close()
	if a.order == nil {
		return nil
	}
	return a.order.Close()
}

// sync makes durable what was put away.
func (a *act) sync() error {
	var errs []error
	for dir := range a.away {
		errs = append(errs, a.po.Removed.Sync(dir))
	}
	clear(a.away)
	return errors.Join(errs...)
}

// note writes spool IDs into the order file.
func (a *act) note(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if a.order == nil {
		if err := a.begin(); err != nil {
			return err
		}
	}
	// Crash: messages are named that nothing was done to; an undo finds nothing to take back.
	return a.order.Append(lines)
}

// begin makes the order file.
func (a *act) begin() error {
	if a.keep > 0 {
		if err := a.po.Operations.Sweep(a.now, a.keep); err != nil {
			return err
		}
	}
	h := a.head()
	err := fs.ErrExist
	// In containers the same pid may give two orders in a second.
	for late := time.Duration(0); errors.Is(err, fs.ErrExist) && late < time.Minute; late += time.Second {
		h.ID = postoffice.NewOperationID(a.now.Add(late), a.v.name, os.Getpid())
		a.order, err = a.po.Operations.Create(h.ID, h.bytes())
	}
	return err
}

// id is a message's spool ID for people.
func (a *act) id(m *view.Message) string { return m.ID }

// told counts a message's result.
func (a *act) told(m *view.Message, err error) {
	if err == nil {
		return
	}
	if !errors.Is(err, errBusy) {
		a.sum.wrong++
	}
	if len(a.sum.errs) < errorsTold {
		a.sum.errs = append(a.sum.errs, err)
	}
	if a.c.Bool("json") {
		a.result(m.ID, outcome{Error: err.Error()})
	}
}

// errBusy means that an agent has some of the recipients.
var errBusy = fmt.Errorf("%w", errAgain)

// outcome is what was done to a message.
type outcome struct {
	ID    string   `json:"id"`
	Text  string   `json:"text,omitempty"`
	Done  []string `json:"done,omitempty"`
	Busy  []string `json:"busy,omitempty"`
	Left  []string `json:"left,omitempty"`
	To    string   `json:"to,omitempty"` // the copy that reroute made
	Error string   `json:"error,omitempty"`
	Order string   `json:"order,omitempty"`
}

func (a *act) result(id string, o outcome) {
	o.ID = id
	if a.order != nil {
		o.Order = string(a.order.ID)
	}
	switch {
	case a.c.Bool("quiet"), a.progress.alone(a.c.App.Writer) && !a.c.Bool("json"):
	case a.c.Bool("json"):
		// An error of the writer is met by the next flush.
		_ = jsonLines(a.out).Encode(o)
	default:
		fmt.Fprintf(a.out, "%s  %s\n", id, o.Text)
	}
}

// end prints the sum, and gives the exit code.
func (a *act) end() error {
	if !a.c.Bool("json") {
		a.printSum()
	}
	err := a.out.flush()
	if len(a.sum.errs) == 0 {
		return err
	}
	list := errors.Join(a.sum.errs...)
	if n := a.sum.wrong + a.sum.busy - len(a.sum.errs); len(a.sum.errs) == errorsTold && n > 0 {
		list = fmt.Errorf("%w\nand %d more", list, n)
	}
	if a.sum.wrong == 0 {
		return cli.Exit(list, config.ExitTempFail)
	}
	again := true
	for _, e := range a.sum.errs {
		again = again && errors.Is(e, errAgain)
	}
	if again && a.sum.wrong+a.sum.busy <= errorsTold {
		return cli.Exit(list, config.ExitTempFail)
	}
	return list
}

func (a *act) printSum() {
	if a.sum.messages == 0 {
		if len(a.sum.errs) == 0 {
			fmt.Fprintln(a.out, "nothing matches that can be "+a.v.done)
		}
		return
	}
	fmt.Fprintf(a.out, "%s of %s %s; order %s", human.Count(a.sum.recipients, "recipient"), human.Count(a.sum.messages, "message"), a.v.done, a.order.ID)
	switch {
	case a.v.undo == "":
		fmt.Fprint(a.out, "; it cannot be undone")
	case a.v.name == "expire" && a.c.Bool("silent"):
		fmt.Fprint(a.out, "; zmctl undo opens them again while the message is in the queue")
	default:
		fmt.Fprint(a.out, "; zmctl undo "+a.v.undo)
	}
	fmt.Fprintln(a.out)
	if a.pace != nil && a.pace.given > 0 && !a.spool().Runs("router") {
		fmt.Fprintln(a.out, "    no router runs; the next one routes them, before newer mail")
	}
	if a.from == nil && !a.spool().Runs("scheduler") {
		text := "no scheduler runs; the next one does what follows"
		if a.v.name == "remove" {
			text = "no scheduler runs; the next one moves it to removed/"
		}
		fmt.Fprintln(a.out, "    "+text)
	}
}
