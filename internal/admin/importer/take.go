package importer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
)

const (
	// together is how many messages are prepared before the record is synced once for all.
	together = 64
	// writers is how many of them are written at a time: their syncs share commits.
	writers = 8
)

// run is one import under way.
type run struct {
	Config
	record *postoffice.ImportRecord
	tag    string
	known  map[string]*noted
	before map[string]bool // keys of what earlier imports took, and their parts before a point
	sum    Sum
}

// one is a message of a batch.
type one struct {
	ref     Ref
	message *Message
	drafts  []string // FILE or FILE:CAUSE
	result  Result
}

// Run takes what is in the queue, and says what became of each message.
func Run(ctx context.Context, c Config) (Sum, error) {
	name, tag := recordName(c.System, c.Path)
	record, text, err := c.PostOffice.Imports.OpenRecord(name, recordHead(c.System, c.Path))
	if err != nil {
		return Sum{}, err
	}
	r := &run{Config: c, record: record, tag: tag, known: parseRecord(text)}
	err = r.all(ctx)
	return r.sum, errors.Join(err, record.Close())
}

func (r *run) all(ctx context.Context) error {
	if err := r.resume(); err != nil {
		return err
	}
	refs, err := r.Source.List(ctx)
	if err != nil {
		return err
	}
	if r.Listed != nil {
		r.Listed(len(refs))
	}
	for len(refs) > 0 {
		// What is prepared is carried through: a signal ends it between two batches.
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(together, len(refs))
		if err := r.batch(refs[:n]); err != nil {
			return err
		}
		refs = refs[n:]
	}
	return nil
}

// resume ends what an import that was stopped has begun.
func (r *run) resume() error {
	named := map[string]bool{}
	var lines []byte
	for key, n := range r.known {
		if n.taken {
			continue
		}
		// Crash: as in enter: some are moved, some not, and the record says prepared.
		ids, err := r.submit(n.files, nil)
		if err != nil {
			return err
		}
		for _, file := range n.files {
			named[file] = true
		}
		lines = appendLine(lines, time.Now(), verbTaken, key, ids)
		n.taken = true
	}
	if len(lines) > 0 {
		if err := r.PostOffice.Imports.SyncSubmitted(); err != nil {
			return err
		}
		if err := r.record.Append(lines); err != nil {
			return err
		}
	}
	r.before = make(map[string]bool, len(r.known))
	for key := range r.known {
		r.before[key] = true
		if name, _, ok := strings.Cut(key, "."); ok {
			r.before[name] = true
		}
	}
	left, err := r.PostOffice.Imports.List(r.tag)
	if err != nil {
		return err
	}
	for _, file := range left {
		if err := r.PostOffice.Imports.Drop(file); err != nil {
			return err
		}
	}
	return nil
}

// submit moves prepared files on and gives their spool IDs, "-" for one that had gone.
func (r *run) submit(files []string, counts []int) ([]string, error) {
	ids := make([]string, 0, len(files))
	for i, word := range files {
		file, cause, _ := strings.Cut(word, ":")
		accepting := r.Journal.Accepting()
		a, err := r.PostOffice.Imports.Submit(file, cause)
		if err != nil || i >= len(counts) {
			// Who goes on with another's import does not know the count; the router's line
			// stands for this one.
			accepting.Abandon()
		} else {
			accepting.In(a.ID, counts[i])
		}
		switch {
		case errors.Is(err, postoffice.ErrGone):
			ids = append(ids, "-")
			continue
		case err != nil:
			return nil, err
		}
		ids = append(ids, a.ID.String())
	}
	return ids, nil
}

func (r *run) batch(refs []Ref) (err error) {
	list := make([]*one, len(refs))
	for i, ref := range refs {
		list[i] = &one{ref: ref, result: Result{Message: ref.Name}}
	}
	defer func() {
		for _, o := range list {
			err = errors.Join(err, o.close())
		}
	}()
	if err := r.prepareAll(list); err != nil {
		return err
	}
	if err := r.enter(list); err != nil {
		return err
	}
	for _, o := range list {
		if err := r.end(o); err != nil {
			return err
		}
	}
	return nil
}

func (o *one) close() error {
	if o.message == nil || o.message.Close == nil {
		return nil
	}
	l := o.message
	o.message = nil
	return l.Close()
}

// prepareAll writes the messages of a batch into imports/. Its error is the postoffice's.
func (r *run) prepareAll(list []*one) error {
	errs := make([]error, len(list))
	var all sync.WaitGroup
	slots := make(chan struct{}, writers)
	seen := map[string]bool{}
	for i, o := range list {
		if !r.open(o) {
			continue
		}
		if seen[o.message.Key] {
			o.result.Did, o.result.Why = Left, "the same message is in this queue twice; import again"
			continue
		}
		seen[o.message.Key] = true
		slots <- struct{}{}
		all.Go(func() {
			errs[i] = r.prepare(o)
			<-slots
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// open reads a message, and reports whether it is to be taken.
func (r *run) open(o *one) bool {
	l, err := r.Source.Open(o.ref)
	rest := (*Remains)(nil)
	switch {
	case errors.As(err, &rest) && r.before[rest.Key]:
		o.result.Did = Before
	case errors.Is(err, ErrLeft):
		o.result.Did, o.result.Why = Left, reasonOf(err)
	case errors.Is(err, ErrGone) || errors.Is(err, fs.ErrNotExist):
		o.result.Did, o.result.Why = Left, "it disappeared meanwhile"
	case err != nil:
		o.result.Did, o.result.Why = Failed, err.Error()
	}
	if err != nil {
		return false
	}
	l.Key = escape(l.Key)
	o.message = l
	o.result.about(l)
	switch n := r.known[l.Key]; {
	case n != nil:
		o.result.Did = Before
	case len(l.Parts) == 0:
		o.result.Did = Done
	default:
		return true
	}
	return false
}

// reasonOf returns the text of an ErrLeft without its common part.
func reasonOf(err error) string {
	return strings.TrimSuffix(strings.TrimSuffix(err.Error(), ErrLeft.Error()), ": ")
}

// prepare writes a message as it is to be in the postoffice, a file for each part. What is
// wrong with the message is no error of it.
func (r *run) prepare(o *one) error {
	for i := range o.message.Parts {
		p := &o.message.Parts[i]
		if r.Hold && p.Held == "" {
			p.Held = "import --hold"
			o.result.Held = p.Held
		}
		file, err := r.write(o.message, p)
		if err != nil {
			o.drop(r)
			if ours(err) {
				return fmt.Errorf("import %s: %w", o.ref.Name, err)
			}
			o.result.Did, o.result.Why = Failed, err.Error()
			return nil
		}
		if p.Held != "" {
			file += ":" + cause
		}
		o.drafts = append(o.drafts, file)
	}
	return nil
}

// cause is the word behind the names of held messages in freezer/.
const cause = "import"

// ours reports whether err is of the postoffice's disk, which ends the import.
func ours(err error) bool { return errors.As(err, new(*draftError)) }

// draftError is an error of writing into the postoffice.
type draftError struct{ err error }

func (e *draftError) Error() string { return e.err.Error() }
func (e *draftError) Unwrap() error { return e.err }

func (o *one) drop(r *run) {
	for _, word := range o.drafts {
		file, _, _ := strings.Cut(word, ":")
		// What stays is dropped by the next import.
		_ = r.PostOffice.Imports.Drop(file)
	}
	o.drafts = nil
}

func (r *run) write(l *Message, p *Part) (file string, err error) {
	head, err := envelope.Append(nil, r.envelope(l, p))
	if err != nil {
		return "", err
	}
	d, err := r.PostOffice.Imports.NewDraft(r.tag)
	if err != nil {
		return "", &draftError{err}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Abort())
		}
	}()
	w := &draftWriter{d: d}
	if _, err := w.Write(head); err != nil {
		return "", err
	}
	if err := l.Write(w); err != nil {
		return "", err
	}
	if now := time.Now(); !r.Young && !l.Arrival.IsZero() && l.Arrival.Before(now.Add(-time.Second)) {
		d.SetArrival(l.Arrival)
	}
	if err := d.Prepare(); err != nil {
		return "", &draftError{err}
	}
	return d.Name(), nil
}

// draftWriter marks errors of the postoffice, to distinguish them from those of the old queue.
type draftWriter struct{ d *postoffice.Draft }

func (w *draftWriter) Write(b []byte) (int, error) {
	n, err := w.d.Write(b)
	if err != nil {
		err = &draftError{err}
	}
	return n, err
}

func (r *run) envelope(l *Message, p *Part) *envelope.Envelope {
	return &envelope.Envelope{External: !l.Local, Comments: []string{"imported from " + r.System + " " + l.Key}, BodyType: l.BodyType,
		FullName: plain(l.FullName), Via: "import", HasFrom: true, From: p.Sender, EnvID: p.EnvID, NotaryRet: p.Ret,
		Recipients: p.Recipients, Octets: -1}
}

// enter notes what is prepared, moves it on, and notes that.
func (r *run) enter(list []*one) error {
	var lines []byte
	for _, o := range list {
		if len(o.drafts) > 0 {
			lines = appendLine(lines, time.Now(), verbPrepared, o.message.Key, o.drafts)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	if err := r.PostOffice.Imports.SyncDrafts(); err != nil {
		return err
	}
	// Crash: files in imports/ that no line names: dropped, and written again. After it:
	// those that are named are moved by the next import, if they are still there.
	if err := r.record.Append(lines); err != nil {
		return err
	}
	lines = nil
	for _, o := range list {
		if len(o.drafts) == 0 {
			continue
		}
		var counts []int
		for i := range o.message.Parts {
			counts = append(counts, len(o.message.Parts[i].Recipients))
		}
		ids, err := r.submit(o.drafts, counts)
		if err != nil {
			return err
		}
		o.result.Did, o.result.IDs = Taken, ids
		r.explain(o)
		lines = appendLine(lines, time.Now(), verbTaken, o.message.Key, ids)
		r.known[o.message.Key] = &noted{taken: true}
	}
	// Crash: the moves may be undone by it: the files are in imports/ again, and their
	// lines say prepared.
	if err := r.PostOffice.Imports.SyncSubmitted(); err != nil {
		return err
	}
	return r.record.Append(lines)
}

// explain writes beside held messages why they are held.
func (r *run) explain(o *one) {
	for i, word := range o.result.IDs {
		id, err := postoffice.ParseSpoolID(word)
		if held := o.message.Parts[i].Held; err == nil && held != "" {
			// It is for people: a message without it is as good.
			_ = r.PostOffice.Aside.Explain(postoffice.Freezer, postoffice.Reason{ID: id, Time: time.Now(), Who: r.Who,
				What: postoffice.WasFrozen, Text: "import from " + r.System + " " + o.ref.Name + ": " + held})
		}
	}
}

// end removes a message from the old queue if that is wanted, and reports its outcome.
func (r *run) end(o *one) error {
	did := o.result.Did
	if r.Move && (did == Taken || did == Before) {
		// Crash: taken, and in the old queue or not; the next import removes it.
		switch err := r.Source.Remove(o.ref); {
		case err == nil:
			o.result.Moved = true
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrLater):
		default:
			o.result.Notes = append(o.result.Notes, "it is imported, but could not be removed from the old queue: "+err.Error())
		}
	}
	r.sum.add(&o.result)
	if err := o.close(); err != nil {
		return err
	}
	if r.Tell != nil {
		return r.Tell(&o.result)
	}
	return nil
}
