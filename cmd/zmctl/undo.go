package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

func undoCommand() *cli.Command {
	return &cli.Command{
		Name:      "undo",
		Usage:     "take back what was ordered: the last order, or the one that is named",
		UsageText: "zmctl undo [--dry-run] [ORDER...|ID...]",
		Description: `Without arguments the last order that zmctl orders lists and that was not undone; with
the name of one, that; with a spool ID, what was ordered last about that message.

    remove   recipients are open again, a message in removed/ goes back to where it was;
             retries go on where they were, and it is no older for the time
    hold     is released        release  is held again, as it was
    freeze   is thawed          thaw     is frozen again
    expire   open again, if no report was sent and the message is still in the queue
    discard  is in freezer/ or postman/ again

A report that was sent is not called back; retry, flush and reroute cannot be undone. It
works with and without a running scheduler. Without one, the next takes the message up.

    zmctl undo
    zmctl undo 20261121-031502-hold-4711
    zmctl undo S10117782A2CnLkQ0vB8C

Exit codes: 0 done, 1 not: there is nothing to take back, or it was dropped after
REMOVEDKEEP; 75 the scheduler is about to move it, or the order is still being given: try
again.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "say which order it would be"}},
		Action: runUndo,
	}
}

func runUndo(c *cli.Context) error {
	orders := c.NArg() == 0
	for _, arg := range c.Args().Slice() {
		if _, ok := postoffice.ParseOperationID(arg); ok {
			orders = true
		}
	}
	if !orders {
		return forEachID(c, "zmctl orders and zmctl removed", (*editing).undo)
	}
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	ids := []postoffice.OperationID{}
	for _, arg := range c.Args().Slice() {
		id, ok := postoffice.ParseOperationID(arg)
		if !ok {
			return cli.Exit("zmctl undo "+arg+": orders and spool IDs are not undone in one call", config.ExitUsage)
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		h, err := lastOrder(po)
		if err != nil {
			return err
		}
		ids = append(ids, h.ID)
	}
	var errs []error
	again := true
	for _, id := range ids {
		u := &undoing{editing: &editing{c: c, po: po, keep: keep, now: time.Now()}, again: true}
		err := u.run(id)
		again = again && (err == nil || u.again)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil && again {
		return cli.Exit(err, config.ExitTempFail)
	}
	return errors.Join(errs...)
}

// lastOrder is the last one that was not undone.
func lastOrder(po *postoffice.PostOffice) (*orderHead, error) {
	list, err := po.Operations.List()
	if err != nil {
		return nil, err
	}
	var last *orderHead
	for _, id := range slices.Backward(list) {
		if last != nil && id.Time().Before(last.Time.Add(-time.Minute)) {
			break // names are right to the second, or less; the file says more
		}
		h, err := readOrder(po, id, nil)
		if errors.Is(err, postoffice.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if h.Undone == "" && (last == nil || h.Time.After(last.Time)) {
			last = h
		}
	}
	if last == nil {
		return nil, errors.New("undo: there is no order that was not undone; zmctl orders lists them")
	}
	return last, nil
}

// undoing takes one order back.
type undoing struct {
	*editing
	head     *orderHead
	done     int // messages
	nothing  int // nothing was to be done
	wrong    int
	again    bool // what is not done may be in a moment
	errs     []error
	waitlist map[string]bool
	// away are messages in removed/ that were not routed, of an order to discard: a copy
	// has the spool ID of its message, which may be in the queue. nil: not looked at yet.
	away map[postoffice.SpoolID][]postoffice.RemovedMessage
}

// undoChunk is how many spool IDs are looked for at a time.
const undoChunk = 50000

func (u *undoing) run(id postoffice.OperationID) error {
	h, err := readOrder(u.po, id, nil)
	if errors.Is(err, postoffice.ErrGone) {
		u.again = false
		return fmt.Errorf("undo %s: there is no such order; zmctl orders lists them", id)
	}
	if err != nil {
		u.again = false
		return fmt.Errorf("undo: %w", err)
	}
	u.head = h
	switch v := verbOf(h.Verb); {
	case h.Undone != "":
		u.again = false
		return fmt.Errorf("undo %s: it was undone, %s", id, h.Undone)
	case v == nil || v.undo == "":
		u.again = false
		return fmt.Errorf("undo %s: %s cannot be undone; an older order is undone by its name, see zmctl orders", id, h.Verb)
	}
	if u.c.Bool("dry-run") {
		fmt.Fprint(u.c.App.Writer, "would undo\n")
		h.print(u.c.App.Writer, u.now)
		return nil
	}
	file, err := u.po.Operations.Continue(id)
	if errors.Is(err, durable.ErrLocked) {
		return fmt.Errorf("undo %s: it is being given, or taken back, at this moment: %w", id, errAgain)
	}
	if err != nil {
		u.again = false
		return err
	}
	u.waitlist = map[string]bool{}
	_, err = readOrder(u.po, id, func(id string) error {
		if u.waitlist[id] = true; len(u.waitlist) < undoChunk {
			return nil
		}
		return u.chunk()
	})
	if err = errors.Join(err, u.chunk()); err != nil {
		u.again = false
	} else {
		err = u.end(file)
	}
	return errors.Join(err, file.Close())
}

// chunk takes the order back for the messages of the waitlist.
func (u *undoing) chunk() error {
	inodes := map[uint64]bool{}
	for text := range u.waitlist {
		if id, err := postoffice.ParseSpoolID(text); err == nil {
			inodes[id.Ino] = true
		}
	}
	s := view.New(u.po, u.now)
	err := s.WalkInodes(u.c.Context, inodes, func(r view.Ref) error {
		m, err := s.Load(r)
		if err != nil || m == nil || !u.waitlist[m.ID] {
			return nil // gone on: it is looked for below
		}
		delete(u.waitlist, m.ID)
		u.message(m.SpoolID, m)
		return nil
	})
	if err != nil {
		return err
	}
	for _, text := range slices.Sorted(maps.Keys(u.waitlist)) {
		if id, err := postoffice.ParseSpoolID(text); err == nil {
			u.message(id, nil)
		}
	}
	u.waitlist = map[string]bool{}
	return nil
}

// message takes the order back for one message; m may be nil.
func (u *undoing) message(id postoffice.SpoolID, m *view.Message) {
	e := &editing{c: u.c, po: u.po, id: id, keep: u.keep, now: time.Now()}
	var text string
	var err error
	for try := range tries {
		if try > 0 {
			m, _, _ = view.New(e.po, e.now).ByID(id)
		}
		if text, err = u.once(e, m); !errors.Is(err, operations.ErrMoved) && !errors.Is(err, postoffice.ErrGone) {
			break
		}
	}
	switch {
	case err == nil:
		u.done++
		fmt.Fprintf(u.c.App.Writer, "%s  %s\n", id, text)
	case errors.Is(err, operations.ErrNothing):
		u.nothing++
	default:
		u.wrong++
		u.again = u.again && errors.Is(err, errAgain)
		if len(u.errs) < errorsTold {
			u.errs = append(u.errs, err)
		}
	}
}

// discarded puts back what an order to discard has put away.
func (u *undoing) discarded(e *editing) (string, error) {
	if u.away == nil {
		list, err := u.po.Removed.List()
		if err != nil {
			return "", err
		}
		u.away = map[postoffice.SpoolID][]postoffice.RemovedMessage{}
		for _, m := range list {
			if m.From != postoffice.Queue {
				u.away[m.ID] = append(u.away[m.ID], m)
			}
		}
	}
	list := u.away[e.id]
	if len(list) == 0 {
		return "", fmt.Errorf("undo %s: it is not in removed/ any more: %w", e.id, operations.ErrNothing)
	}
	var names []string
	var errs []error
	for _, m := range list {
		name, err := e.po.Removed.PutBack(m)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		names = append(names, name)
	}
	delete(u.away, e.id)
	return "is " + strings.Join(names, " and ") + " again", errors.Join(errs...)
}

func (u *undoing) once(e *editing, m *view.Message) (string, error) {
	if u.head.Verb == discardVerb().name {
		return u.discarded(e)
	}
	if m == nil || m.State == view.StateFinishing {
		away, err := e.removed()
		switch {
		case err != nil:
			return "", err
		case away == nil && m == nil:
			return "", fmt.Errorf("undo %s: it is gone: delivered, reported or dropped", e.id)
		case away == nil:
			return "", fmt.Errorf("undo %s: no recipient is open; the scheduler is about to remove it", e.id)
		case u.head.Verb != "remove":
			return "", fmt.Errorf("undo %s: it was removed since", e.id)
		}
		return e.undoAway(away, u.head.ID)
	}
	switch {
	case m.State == view.StateQueued && m.Spec != nil:
		return e.reverse(m, u.head.ID, u.head.has("silent"))
	case m.State == view.StateFrozen && u.head.Verb == "freeze" && strings.HasPrefix(m.Why, workspec.CausePerson):
		to, err := e.po.Aside.Recall(m.File.Dir, m.File.Name, e.id)
		return "is " + to.Name + " now", err
	}
	return "", fmt.Errorf("undo %s: it is %s: %w", e.id, m.State, operations.ErrNothing)
}

// end notes that the order is undone, and tells the sum.
func (u *undoing) end(file *postoffice.OperationFile) error {
	if u.done == 0 && u.wrong == 0 {
		u.again = false
		return fmt.Errorf("undo %s: nothing of it is left to take back", u.head.ID)
	}
	if u.done > 0 {
		fmt.Fprintf(u.c.App.Writer, "order %s undone for %s\n", u.head.ID, human.Count(u.done, "message"))
	}
	if u.nothing > 0 {
		fmt.Fprintf(u.c.App.Writer, "    %s had nothing of it\n", human.Count(u.nothing, "message"))
	}
	if !view.New(u.po, u.now).Runs("scheduler") {
		fmt.Fprintln(u.c.App.Writer, "    but no scheduler runs: zmctl start starts the daemons")
	}
	if u.wrong > 0 {
		return errors.Join(u.errs...)
	}
	u.again = false
	// Crash: without the line the order counts as given, and a second undo finds it done.
	return file.Append([]byte("undone " + u.now.Format(time.RFC3339) + " by " + who(u.c.Context) + "\n"))
}
