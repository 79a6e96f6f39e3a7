package main

import (
	"context"
	"errors"
	"fmt"
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

func ordersCommand() *cli.Command {
	return &cli.Command{
		Name:      "orders",
		Usage:     "list the operations of operators on queued mail, for zmctl undo",
		UsageText: "zmctl orders [--json] [ORDER...]",
		Description: `Lists each use of hold, release, freeze, thaw, retry, flush, expire, remove and reroute, and
of zmctl resubmit, freezer, postman, suspend, resume and stop --accepting, the oldest first. With the name of an operation it
lists the spool IDs of its messages. Operations are files in orders/, deleted after REMOVEDKEEP.

    20261121-031502-hold-4711  12m ago by root  hold  312 messages
        host mx.example.com, "their disk is full"
    20261121-032001-hold-4790  7m ago by root  hold  1 message  undone
        id S10117782A2CnLkQ0vB8C

    zmctl orders 20261121-031502-hold-4711
    zmctl undo 20261121-031502-hold-4711`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each operation"}},
		Action: runOrders,
	}
}

func runOrders(c *cli.Context) error {
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	out := text.NewStream(c.App.Writer)
	if c.NArg() > 0 {
		var errs []error
		for _, arg := range c.Args().Slice() {
			id, ok := postoffice.ParseOperationID(arg)
			if !ok {
				return cli.Exit("zmctl orders "+arg+": not the name of an operation; zmctl orders lists them", config.ExitUsage)
			}
			o, err := act.ReadOperation(po, id, func(id string) error {
				_, err := fmt.Fprintln(out, id)
				return err
			})
			if err == nil && !o.OfMessages() {
				text.PrintOperation(out, o, time.Now())
			}
			errs = append(errs, err)
		}
		return text.Quiet(errors.Join(append(errs, out.Flush())...))
	}
	n, now := 0, time.Now()
	err = act.Operations(po, false, func(o *act.Operation) error {
		n++
		if c.Bool("json") {
			return text.JSONLines(out).Encode(o)
		}
		text.PrintOperation(out, o, now)
		return nil
	})
	if !c.Bool("json") {
		fmt.Fprintln(out, human.Count(n, "order"))
	}
	return text.Quiet(errors.Join(err, out.Flush()))
}

func undoCommand() *cli.Command {
	return &cli.Command{
		Name:      "undo",
		Usage:     "undo the last order, or the one that is named",
		UsageText: "zmctl undo [--dry-run] [ORDER...|ID...]",
		Description: `Without arguments, undoes the last order of zmctl orders that was not undone; with the name of
an order, that one; with a spool ID, the last order about that message.

    remove   recipients are open again, a message in removed/ goes back to where it was;
             retries continue, and the time does not count as age
    hold     is released        release  is held again, as it was
    freeze   is thawed          thaw     is frozen again
    expire   open again, if no report was sent and the message is still in the queue
    discard  is in freezer/ or postman/ again
    suspend  is resumed         resume   is suspended again, unless it has ended meanwhile

A report that was sent cannot be undone; nor can retry, flush and reroute. It works with and
without a running scheduler; the next scheduler applies it.

    zmctl undo
    zmctl undo 20261121-031502-hold-4711
    zmctl undo S10117782A2CnLkQ0vB8C

Exit codes: 0 done, 1 not done: there is nothing to undo, or it was deleted after REMOVEDKEEP;
75 the scheduler is about to move it, or the order is still being executed: try again.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "print the order that would be undone"}},
		Action: runUndo,
	}
}

func runUndo(c *cli.Context) error {
	var orders []postoffice.OperationID
	for _, arg := range c.Args().Slice() {
		if id, ok := postoffice.ParseOperationID(arg); ok {
			orders = append(orders, id)
		}
	}
	var ids []postoffice.SpoolID
	if len(orders) == 0 && c.NArg() > 0 {
		var err error
		if ids, err = spoolIDs(c, "zmctl orders and zmctl removed"); err != nil {
			return err
		}
	} else if len(orders) < c.NArg() {
		return cli.Exit("zmctl undo: orders and spool IDs cannot be mixed", config.ExitUsage)
	}
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	if c.NArg() == 0 {
		last, err := act.LastOperation(po)
		if err != nil {
			return err
		}
		if last == nil {
			return errors.New("undo: every order was undone; zmctl orders lists them")
		}
		orders = append(orders, last.ID)
	}
	done := 0
	u := &act.Undoer{PostOffice: po, Who: who(c.Context), Keep: keep, Undone: func(id postoffice.SpoolID, text string) {
		done++
		fmt.Fprintf(c.App.Writer, "%s  %s\n", id, text)
	}}
	var errs []error
	again := true
	failed := func(err error, temporary bool) {
		errs = append(errs, err)
		again = again && (err == nil || temporary)
	}
	for _, id := range ids {
		err := u.Message(c.Context, id)
		failed(err, errors.Is(err, act.ErrAgain))
	}
	for _, id := range orders {
		if c.Bool("dry-run") {
			failed(previewUndo(c, po, id), false)
			continue
		}
		res, err := u.Operation(c.Context, id)
		if res.Messages > 0 {
			fmt.Fprintf(c.App.Writer, "order %s undone for %s\n", id, human.Count(res.Messages, "message"))
		}
		if res.Nothing > 0 && res.Messages+res.Refused > 0 {
			fmt.Fprintf(c.App.Writer, "    %s had nothing to undo\n", human.Count(res.Nothing, "message"))
		}
		if res.Suspensions > 0 {
			fmt.Fprintf(c.App.Writer, "order %s undone\n", id)
		}
		failed(err, res.Temporary(err))
	}
	if done > 0 && !view.New(po, time.Now()).Runs("scheduler") {
		fmt.Fprintln(c.App.Writer, "    no scheduler is running: zmctl start starts the daemons")
	}
	if err := errors.Join(errs...); err != nil && again {
		return cli.Exit(err, config.ExitTempFail)
	}
	return errors.Join(errs...)
}

// previewUndo prints the order that would be undone.
func previewUndo(c *cli.Context, po *postoffice.PostOffice, id postoffice.OperationID) error {
	o, err := act.ReadOperation(po, id, nil)
	switch {
	case errors.Is(err, postoffice.ErrGone):
		return fmt.Errorf("undo %s: there is no such order; zmctl orders lists them", id)
	case err != nil:
		return err
	case o.Undone != "":
		return fmt.Errorf("undo %s: it was undone, %s", id, o.Undone)
	case !o.Undoable():
		return fmt.Errorf("undo %s: %s cannot be undone", id, o.Verb)
	}
	fmt.Fprint(c.App.Writer, "would undo\n")
	text.PrintOperation(c.App.Writer, o, time.Now())
	return nil
}

// person is the key of a context's value: the name of a user who acts through another
// program, as the pages of zmctl web.
type person struct{}

// who returns the operator of a command.
func who(ctx context.Context) string {
	by, _ := ctx.Value(person{}).(string)
	return act.Who(by)
}

func removedCommand() *cli.Command {
	return &cli.Command{
		Name:      "removed",
		Usage:     "list removed mail that zmctl undo can restore",
		UsageText: "zmctl removed [--json]",
		Description: `Lists the messages in removed/ and queued messages with removed recipients, the oldest
removal first, with the recipients that undo would restore.

    S10117782A2CnLkQ0vB8C  removed 12m ago, dropped in 2d23h  4.1k  <sender@client.example.net>
        <ok@c.example.com>`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print a JSON array"}},
		Action: runRemoved,
	}
}

func runRemoved(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := view.New(po, time.Now())
	list, err := view.Removals{Spool: s, Keep: keep}.List(c.Context)
	if c.Bool("json") {
		return errors.Join(err, text.PrintJSON(c.App.Writer, list))
	}
	for _, r := range list {
		when := "removed " + human.Span(s.Now.Sub(r.Removed)) + " ago"
		switch {
		case r.Until != nil:
			when += ", dropped in " + human.Span(r.Until.Sub(s.Now))
		case r.From == postoffice.Queue && len(r.Files) > 0:
			when += ", still in the queue"
		}
		fmt.Fprintf(c.App.Writer, "%s  %s  %s  %s\n    %s\n", term.For(c.App.Writer).Bold(r.ID), when, human.Size(r.Size), r.Message.From(), human.Addresses(r.Recipients))
	}
	_, perr := fmt.Fprintln(c.App.Writer, human.Count(len(list), "message"))
	return errors.Join(err, perr)
}
