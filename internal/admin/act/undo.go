package act

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// Undoer undoes operations, or what was done last to single messages.
type Undoer struct {
	PostOffice *postoffice.PostOffice
	Who        string
	Keep       time.Duration // how long removed messages are kept
	// Undone is called with each message that something was undone for; it may be nil.
	Undone func(id postoffice.SpoolID, text string)
}

// Undone is the result of an undo.
type Undone struct {
	Messages int // something was undone for
	Nothing  int // nothing of the operation was left
	Refused  int
	Again    int // of those refused: ErrAgain
	// Suspensions is how many were ended, or are in force again.
	Suspensions int
}

// ErrUndo means that there is nothing to undo, or that it cannot be undone.
var ErrUndo = errors.New("undo")

// undoChunk is how many spool IDs are looked for at a time.
const undoChunk = 50000

type undo struct {
	*Undoer
	ctx    context.Context
	now    time.Time
	op     *Operation
	result Undone
	errs   []error
	wanted map[string]bool
	// away are the messages in removed/ that were not routed, for an operation that discarded
	// them: a copy has the spool ID of its message, which may be in the queue. nil: not read.
	away map[postoffice.SpoolID][]postoffice.RemovedMessage
}

// Temporary reports whether a second call may undo everything that err is about.
func (r *Undone) Temporary(err error) bool { return errors.Is(err, ErrAgain) && r.Again == r.Refused }

// Operation undoes one operation.
func (u *Undoer) Operation(ctx context.Context, id postoffice.OperationID) (Undone, error) {
	op, err := ReadOperation(u.PostOffice, id, nil)
	switch {
	case errors.Is(err, postoffice.ErrGone):
		return Undone{}, fmt.Errorf("%w %s: there is no such order; zmctl orders lists them", ErrUndo, id)
	case err != nil:
		return Undone{}, fmt.Errorf("%w: %w", ErrUndo, err)
	case op.Undone != "":
		return Undone{}, fmt.Errorf("%w %s: it was undone, %s", ErrUndo, id, op.Undone)
	case !op.Undoable():
		return Undone{}, fmt.Errorf("%w %s: %s cannot be undone; name an older order to undo that, see zmctl orders", ErrUndo, id, op.Verb)
	}
	file, err := u.PostOffice.Operations.Continue(id)
	if errors.Is(err, durable.ErrLocked) {
		return Undone{}, fmt.Errorf("%w %s: it is being executed or undone at this moment: %w", ErrUndo, id, ErrAgain)
	}
	if err != nil {
		return Undone{}, err
	}
	x := &undo{Undoer: u, ctx: ctx, now: time.Now(), op: op, wanted: map[string]bool{}}
	if !op.OfMessages() {
		err = x.undoSuspension(file)
		return x.result, errors.Join(err, file.Close())
	}
	_, err = ReadOperation(u.PostOffice, id, func(id string) error {
		if x.wanted[id] = true; len(x.wanted) < undoChunk {
			return nil
		}
		return x.chunk()
	})
	if err = errors.Join(err, x.chunk()); err == nil {
		err = x.end(file)
	}
	return x.result, errors.Join(err, file.Close())
}

// end records in the file that the operation is undone.
func (u *undo) end(file *postoffice.OperationFile) error {
	switch {
	case u.result.Messages == 0 && u.result.Refused == 0:
		return fmt.Errorf("%w %s: nothing of it is left to undo", ErrUndo, u.op.ID)
	case u.result.Refused > 0:
		return errors.Join(u.errs...)
	}
	return u.undone(file)
}

// undone adds to the file that the operation is undone.
func (u *undo) undone(file *postoffice.OperationFile) error {
	// Crash: without the line the operation counts as executed, and a second undo finds it done.
	return file.Append([]byte("undone " + u.now.Format(time.RFC3339) + " by " + u.Who + "\n"))
}

// chunk undoes the operation for the wanted messages.
func (u *undo) chunk() error {
	inodes := map[uint64]bool{}
	for text := range u.wanted {
		if id, err := postoffice.ParseSpoolID(text); err == nil {
			inodes[id.Ino] = true
		}
	}
	s := view.New(u.PostOffice, u.now)
	err := s.WalkInodes(u.ctx, inodes, func(r view.Ref) error {
		m, err := s.Load(r)
		if err != nil || m == nil || !u.wanted[m.ID] {
			return nil // gone on: it is looked for below
		}
		delete(u.wanted, m.ID)
		u.message(m.SpoolID, m)
		return nil
	})
	if err != nil {
		return err
	}
	for _, text := range slices.Sorted(maps.Keys(u.wanted)) {
		if id, err := postoffice.ParseSpoolID(text); err == nil {
			u.message(id, nil)
		}
	}
	u.wanted = map[string]bool{}
	return nil
}

// message undoes the operation for one message; m may be nil.
func (u *undo) message(id postoffice.SpoolID, m *view.Message) {
	var text string
	var err error
	e := u.edit(u.ctx, id)
	for try := range tries {
		if try > 0 {
			m, _, _ = view.New(u.PostOffice, e.now).ByID(id)
		}
		if text, err = u.once(e, m); !errors.Is(err, operations.ErrMoved) && !errors.Is(err, postoffice.ErrGone) {
			break
		}
	}
	switch {
	case err == nil:
		u.result.Messages++
		if u.Undone != nil {
			u.Undone(id, text)
		}
	case errors.Is(err, operations.ErrNothing):
		u.result.Nothing++
	default:
		u.result.Refused++
		if errors.Is(err, ErrAgain) {
			u.result.Again++
		}
		if len(u.errs) < maxErrors {
			u.errs = append(u.errs, err)
		}
	}
}

func (u *undo) once(e *edit, m *view.Message) (string, error) {
	if u.op.Verb == Discard.Name {
		return u.discarded(e)
	}
	if m == nil || m.State == view.StateFinishing {
		away, err := e.removed()
		switch {
		case err != nil:
			return "", err
		case away == nil && m == nil:
			return "", e.refuse("it is gone: delivered, reported or dropped")
		case away == nil:
			return "", e.refuse("no recipient is open; the scheduler is about to remove it")
		case u.op.Verb != Remove.Name:
			return "", e.refuse("it was removed since")
		}
		return e.putBack(away, u.op.ID)
	}
	switch {
	case m.State == view.StateQueued && m.Spec != nil:
		return e.reverse(m, u.op.ID, slices.Contains(strings.Fields(u.op.Flags), "silent"))
	case frozenByOperator(m) && u.op.Verb == Freeze.Name:
		to, err := u.PostOffice.Aside.Recall(m.File.Dir, m.File.Name, e.id)
		return "is " + to.Name + " now", err
	}
	return "", e.refuse("it is %s: %w", m.State, operations.ErrNothing)
}

func frozenByOperator(m *view.Message) bool {
	return m.State == view.StateFrozen && strings.HasPrefix(m.Why, workspec.CausePerson)
}

// discarded puts back what an operation has discarded.
func (u *undo) discarded(e *edit) (string, error) {
	if u.away == nil {
		list, err := u.PostOffice.Removed.List()
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
		return "", e.refuse("it is not in removed/ any more: %w", operations.ErrNothing)
	}
	var names []string
	var errs []error
	for _, m := range list {
		name, err := u.PostOffice.Removed.PutBack(m)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		names = append(names, name)
	}
	delete(u.away, e.id)
	return "is " + strings.Join(names, " and ") + " again", errors.Join(errs...)
}

// Message undoes what was done last to one message.
func (u *Undoer) Message(ctx context.Context, id postoffice.SpoolID) (err error) {
	e := u.edit(ctx, id)
	for range tries {
		m, lerr := e.removed()
		var text string
		switch {
		case lerr != nil:
			return lerr
		case m == nil:
			text, err = e.last()
		default:
			text, err = e.putBack(m, "")
		}
		if err == nil && u.Undone != nil {
			u.Undone(id, text)
		}
		if !errors.Is(err, operations.ErrMoved) && !errors.Is(err, postoffice.ErrGone) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", err, ErrAgain)
}

// edit is the undo for one message.
type edit struct {
	*Undoer
	ctx context.Context
	id  postoffice.SpoolID
	now time.Time
}

func (u *Undoer) edit(ctx context.Context, id postoffice.SpoolID) *edit {
	return &edit{Undoer: u, ctx: ctx, id: id, now: time.Now()}
}

func (e *edit) refuse(format string, args ...any) error {
	return fmt.Errorf("undo %s: "+format, append([]any{e.id}, args...)...)
}

func (e *edit) request() operations.Request {
	return operations.Request{PostOffice: e.PostOffice, ID: e.id, Now: e.now, Who: "zmctl undo, " + e.Who}
}

func (e *edit) spool() *view.Spool { return view.New(e.PostOffice, e.now) }

func (e *edit) removed() (*postoffice.RemovedMessage, error) { return e.PostOffice.Removed.Find(e.id) }

// putBack puts a message in removed/ back; of an operation, the recipients that it removed.
func (e *edit) putBack(m *postoffice.RemovedMessage, of postoffice.OperationID) (string, error) {
	switch {
	case m.Spec != "":
		q := e.request()
		if of != "" {
			r, err := view.Removals{Spool: e.spool()}.Load(m)
			if err != nil || r.Message.Spec == nil {
				return "", errors.Join(err, operations.ErrMoved)
			}
			q.Match = among(eventsOf(r.Message.Spec, of, workspec.EventRemoved))
		}
		res, err := operations.UndoShelved(q)
		return "is queued again for " + human.Addresses(res.Changed), err
	case m.From == postoffice.Queue:
		// The specification is in transport/, on its way to removed/ or back.
		moved, err := e.awaitMove()
		if err == nil && moved == nil {
			err = operations.ErrMoved
		}
		if err != nil {
			return "", err
		}
		return e.putBack(moved, of)
	}
	name, err := e.PostOffice.Removed.PutBack(*m)
	return "is " + name + " again", err
}

// awaitMove waits until the scheduler has moved the specification of the message, too, and
// returns the message as it is in removed/ then; nil if it is not there any more.
func (e *edit) awaitMove() (*postoffice.RemovedMessage, error) {
	if e.spool().Runs("scheduler") {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range 200 {
			select {
			case <-e.ctx.Done():
				return nil, e.ctx.Err()
			case <-tick.C:
			}
			if m, err := e.removed(); err != nil || m == nil || m.Spec != "" || m.From != postoffice.Queue {
				return m, err
			}
		}
	}
	return nil, e.refuse("the scheduler is about to move it, or will when it runs: %w", ErrAgain)
}

// last undoes what was done last to a message in the queue.
func (e *edit) last() (string, error) {
	m, others, err := e.spool().ByID(e.id)
	switch {
	case m == nil && err == nil && len(others) == 0:
		return "", e.refuse("it is not in removed/, where messages stay for %s, and nowhere else", human.Span(e.Keep))
	case m == nil:
		return "", notFound(e.PostOffice, e.id, "undo", others, err)
	case frozenByOperator(m):
		to, err := e.PostOffice.Aside.Recall(m.File.Dir, m.File.Name, e.id)
		return "is " + to.Name + " now", err
	case m.State != view.StateQueued || m.Spec == nil:
		return "", e.refuse("nothing was removed: it is %s", m.State)
	}
	for i := range m.Recipients {
		if m.Recipients[i].State != view.Removed {
			continue
		}
		res, err := operations.Undo(e.request(), m.SpecFile.Name)
		return "is queued again for " + human.Addresses(res.Changed), err
	}
	for _, ev := range slices.Backward(m.Spec.History) {
		if of, ok := postoffice.ParseOperationID(ev.Get("order")); ok {
			text, err := e.reverse(m, of, false)
			if errors.Is(err, operations.ErrNothing) {
				err = e.refuse("nothing of order %s is left to undo", of)
			}
			return text, err
		}
	}
	return "", e.refuse("it is queued, and no recipient is removed or held by an order")
}
