package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/ui/text"
)

// dryShown is how many messages a dry run shows.
const dryShown = 10

// acting is a command that executes a request.
type acting struct {
	c        *cli.Context
	po       *postoffice.PostOffice
	r        act.Request
	keep     time.Duration
	now      time.Time
	out      *text.Stream
	progress *text.Progress
}

func newActing(c *cli.Context, v *act.Verb) (*acting, error) {
	po, keep, err := openKeeping(c)
	if err != nil {
		return nil, err
	}
	a := &acting{c: c, po: po, keep: keep, now: time.Now(), out: text.NewStream(c.App.Writer)}
	a.r = act.Request{Verb: v, Who: who(c.Context), Reason: c.String("reason"), Keep: keep, Pace: c.Int("pace"), Silent: c.Bool("silent"),
		Report: c.Bool("report"), Failed: c.Bool("failed"), Reported: c.Bool("told"), Force: c.Bool("force"), Outcome: a.outcome, Step: a.step}
	return a, nil
}

// dry shows what a request is about.
func (a *acting) dry() error {
	shown := 0
	sum, err := act.Preview(a.c.Context, a.po, a.r, func(m *view.Message, list []view.Recipient) error {
		if shown++; shown <= dryShown {
			fmt.Fprintf(a.out, "%s  %s  %s  %s\n", m.ID, human.Span(a.now.Sub(m.Since)), m.From(), text.FirstAddresses(list))
		}
		return a.out.Tick()
	})
	if n := sum.Messages - dryShown; n > 0 {
		fmt.Fprintf(a.out, "and %s\n", human.Count(n, "more message"))
	}
	busy := ""
	if sum.Busy > 0 {
		busy = fmt.Sprintf(", delivery to %d of them is in progress", sum.Busy)
	}
	fmt.Fprintf(a.out, "%s would change %s of %s%s; nothing was changed\n", a.r.Verb.Name, human.Count(sum.Recipients, "recipient"), human.Count(sum.Messages, "message"), busy)
	return text.Quiet(errors.Join(a.out.Flush(), err))
}

// ask asks the operator for confirmation, with the numbers; false: there is nothing to do.
func (a *acting) ask() (messages int, err error) {
	sum, err := act.Preview(a.c.Context, a.po, a.r, nil)
	if err != nil || sum.Messages == 0 {
		return 0, err
	}
	numbers := human.Count(sum.Recipients, "recipient") + " of " + human.Count(sum.Messages, "message")
	in, ok := a.c.App.Reader.(*os.File)
	if !ok || !terminal(in) {
		return 0, cli.Exit(fmt.Sprintf("%s: %s; there is no terminal to ask on: --yes confirms, --dry-run shows them", a.r.Verb.Name, numbers), config.ExitUsage)
	}
	if !agreed(in, a.c.App.Writer, a.r.Verb.Name+" "+numbers+"?") {
		return 0, cli.Exit("nothing was changed", 1)
	}
	return sum.Messages, nil
}

// terminal reports whether an operator can be asked there.
func terminal(f *os.File) bool { return term.Terminal(f) }

// agreed reads yes or no; everything else is no.
func agreed(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprint(out, question+" [y/N] ")
	// What was read before an error is the answer.
	line, _ := bufio.NewReader(in).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// do executes the request and prints the sum.
func (a *acting) do() error {
	sum, err := act.Do(a.c.Context, a.po, a.r)
	a.progress.End()
	back, reason := act.ComeBack(a.po, err)
	if back > 0 {
		err = nil
	}
	if !a.c.Bool("json") {
		a.printSum(&sum)
	}
	err = errors.Join(text.Quiet(err), text.Quiet(a.out.Flush()))
	if list := sum.Err(); list != nil {
		if sum.Temporary() {
			list = cli.Exit(list, config.ExitTempFail)
		}
		return errors.Join(err, list)
	}
	if err == nil && back > 0 {
		if reason == "" {
			reason = "see zmctl resubmit"
		}
		found, _ := a.r.Aside.Find(a.c.Context, nil) // it was found before
		return cli.Exit(fmt.Errorf("the last %d came back, %s were left where they are; reason of the last: %s\n    mend that first; zmctl resubmit --check shows the effect",
			back, human.Count(len(found)-sum.Messages, "message"), human.Clean(reason)), config.ExitTempFail)
	}
	return err
}

// outcome prints the result for a message. Errors about messages are printed at the end.
func (a *acting) outcome(o act.Outcome) {
	asJSON := a.c.Bool("json")
	switch {
	case asJSON && (o.Error != "" || !a.c.Bool("quiet")):
		// An error of the writer is returned by the next flush.
		_ = text.JSONLines(a.out).Encode(o)
	case o.Error != "" || a.c.Bool("quiet"), a.progress.Alone(a.c.App.Writer):
	default:
		if a.r.Force && o.Message != nil && o.Message.State == view.StateSetAside {
			_ = text.PrintMessage(a.out, o.Message, a.now)
		}
		fmt.Fprintf(a.out, "%s  %s\n", o.ID, o.Text)
		if a.r.Verb == act.Remove && a.r.Named && len(o.Busy) == 0 {
			until := ""
			if a.keep > 0 {
				until = ", until " + time.Now().Add(a.keep).Format(time.DateTime)
			}
			fmt.Fprintf(a.out, "    zmctl undo %s puts it back%s\n", o.ID, until)
		}
	}
}

func (a *acting) step() error {
	if a.progress.Begins() {
		_ = a.out.Flush() // the next one returns the error
	}
	a.progress.Step()
	return a.out.Tick()
}

func (a *acting) printSum(sum *act.Sum) {
	v := a.r.Verb
	if sum.Messages == 0 {
		if len(sum.Errors) == 0 {
			fmt.Fprintln(a.out, "nothing matches that can be "+v.Done)
		}
		return
	}
	undo := "zmctl undo " + v.Undo
	switch {
	case v.Undo == "":
		undo = "it cannot be undone"
	case v == act.Expire && a.r.Silent:
		undo = "zmctl undo opens them again while the message is in the queue"
	case v == act.Expire && view.New(a.po, time.Now()).Runs("scheduler"):
		undo = "the scheduler reports them to the senders now; zmctl undo opens only those that are not reported yet"
	case v == act.Remove && a.r.Report:
		undo = "zmctl undo puts it back, but a report that has gone out says that it was not delivered"
	}
	fmt.Fprintf(a.out, "%s of %s %s; order %s; %s\n", human.Count(sum.Recipients, "recipient"), human.Count(sum.Messages, "message"), v.Done, sum.Operation, undo)
	s := view.New(a.po, time.Now())
	if sum.GivenBack > 0 && !s.Runs("router") {
		fmt.Fprintln(a.out, "    no router is running; the next one routes them, before newer mail")
	}
	if a.r.Aside == nil && !s.Runs("scheduler") {
		text := "no scheduler is running; the next one applies this"
		if v == act.Remove {
			text = "no scheduler is running; the next one moves it to removed/"
		}
		fmt.Fprintln(a.out, "    "+text)
	}
}

// actAside executes a verb on messages that are put aside; asks: it asks for confirmation
// unless they are named.
func actAside(c *cli.Context, v *act.Verb, from *act.Aside, asks bool) error {
	a, err := newActing(c, v)
	if err != nil {
		return err
	}
	defer closeFS(a.po)
	a.r.Aside = from
	list, err := from.Find(c.Context, view.New(a.po, a.now))
	if err == nil {
		err = asUsage(from.Missing(v.Name))
	}
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		return a.dry()
	}
	if asks && !from.Named() && !c.Bool("yes") {
		if _, err := a.ask(); err != nil {
			return err
		}
	}
	a.progress = newProgress(c, v.Name, len(list))
	return a.do()
}

// asUsage gives errors about arguments the exit code of bad arguments.
func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return cli.Exit(err, config.ExitUsage)
}
