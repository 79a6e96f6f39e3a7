package operations

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// Submit submits the prepared message public/file, which has n recipients.
// postoffice.ErrGone: it was submitted before.
type Submit func(file string, n int) (postoffice.Accepted, error)

// Reroute has the open recipients of transport/name routed again: a copy of the message
// with exactly them goes to the router. It is as old as the message, its header fields are
// those that were to be sent, without our own Received, and its recipients' options for
// reports go with it. Those that an agent has are left, and those whose address is a file
// or program behind an alias.
func Reroute(q Request, name string) (Result, error) {
	q.Failed = false
	res := Result{Name: name}
	err := q.locked(name, func(f *postoffice.Spec, spec *workspec.Spec) error {
		resumed, err := q.resume(f, spec)
		if err != nil {
			return err
		}
		list, err := q.choose(spec, func(c *chosen) bool { return true })
		if err != nil {
			return err
		}
		var sets [][]chosen
		doubts := spec.Doubts()
		for _, c := range list {
			switch {
			case c.busy:
				res.Busy = append(res.Busy, c.rcpt.Address)
			case doubts.About(c.rcpt) > 0:
				// The next attempt finds out, or records the doubt; a copy would come as
				// something new.
				res.Doubt = append(res.Doubt, c.rcpt.Address)
			case !routable(c.rcpt.Address):
				res.Left = append(res.Left, c.rcpt.Address)
			default:
				sets = add(sets, c)
			}
		}
		for _, set := range sets {
			if err := q.reroute(f, spec, set, &res); err != nil {
				return err
			}
		}
		if len(sets) == 0 && !resumed {
			return ErrNothing
		}
		return nil
	})
	return res, q.finish(res, "reroute", err)
}

// routable reports whether a router accepts an address.
func routable(a string) bool {
	if strings.HasPrefix(a, "|") || strings.HasPrefix(a, "/") || strings.HasPrefix(a, ":") {
		return false
	}
	m, err := address.Parse(a)
	return err == nil && !m.IsNull()
}

// add puts a recipient to those that can be in one copy with it: of one sender, with one
// envelope identifier and one RET option.
func add(sets [][]chosen, c chosen) [][]chosen {
	for i, set := range sets {
		if a, b := set[0], c; a.group.Sender.Channel == b.group.Sender.Channel && a.group.Sender.Address == b.group.Sender.Address &&
			a.group.HeaderOffset == b.group.HeaderOffset && a.rcpt.EnvID == b.rcpt.EnvID && a.rcpt.Ret == b.rcpt.Ret {
			sets[i] = append(set, c)
			return sets
		}
	}
	return append(sets, []chosen{c})
}

// tooSlow is how long a copy may take to be prepared: unrecorded ones are swept after an
// hour.
const tooSlow = 30 * time.Minute

// reroute prepares a copy, records it, submits it and marks its recipients.
func (q *Request) reroute(f *postoffice.Spec, spec *workspec.Spec, set []chosen, res *Result) error {
	begun := time.Now().Round(0)
	file, err := q.prepare(f, spec, set)
	if err != nil {
		return err
	}
	if took := time.Now().Round(0).Sub(begun); took > tooSlow || took < -tooSlow {
		// A sweep may have removed the copy; that looks the same as its move to a router.
		return errors.Join(fmt.Errorf("the copy took %v; try again", took), q.PostOffice.Submissions.DropPrepared(file))
	}
	e := q.event(workspec.EventRerouted, set)
	// First, so that a blank follows it: sweeps look for that.
	e.Attrs = append([]workspec.Attr{{Key: workspec.KeyFile, Value: file}}, e.Attrs...)
	// Crash: a copy in public/ without execute bit that nothing names, swept away when it
	// is old; the next try prepares another.
	if err := f.Append(workspec.AppendEvent(nil, &e)); err != nil {
		return errors.Join(err, q.PostOffice.Submissions.DropPrepared(file))
	}
	// Crash: as before, or the name of the copy is recorded and it is in public/: Resume.
	if err := f.Sync(); err != nil {
		return err
	}
	a, err := q.submit(file, len(set))
	if err != nil && !errors.Is(err, postoffice.ErrGone) {
		return err
	}
	res.To = a.ID
	res.fill(set)
	return setTags(f, spec, workspec.TagOK, set)
}

func (q *Request) submit(file string, n int) (postoffice.Accepted, error) {
	if q.Submit != nil {
		return q.Submit(file, n)
	}
	return q.PostOffice.Submissions.SubmitPrepared(file)
}

// resume ends what a crash interrupted, and reads the specification again.
func (q *Request) resume(f *postoffice.Spec, spec *workspec.Spec) (bool, error) {
	done, err := Resume(f, spec, q.submit)
	if err != nil || len(done) == 0 {
		return false, err
	}
	again, err := read(f)
	if err == nil {
		*spec = *again
	}
	return true, err
}

// Resumed is a copy that Resume has submitted, or found submitted.
type Resumed struct {
	File       string
	To         postoffice.SpoolID // zero: it was submitted before
	Recipients []int64
}

// Resume ends the reroutings of a specification that a crash interrupted: a copy that is
// still in public/ is submitted, one that is not was; then the tags follow. The caller
// holds the specification's flock.
func Resume(f *postoffice.Spec, spec *workspec.Spec, submit Submit) (list []Resumed, err error) {
	for _, p := range Pending(spec) {
		a, err := submit(p.File, len(p.Recipients))
		if err != nil && !errors.Is(err, postoffice.ErrGone) {
			return list, err
		}
		p.To = a.ID
		for _, off := range p.Recipients {
			// Crash: some are marked; the others at the next look.
			if err := f.SetTag(workspec.TagBytes(spec.Format, workspec.TagOK), workspec.TagOffset(off)); err != nil {
				return list, err
			}
		}
		list = append(list, p)
	}
	if len(list) == 0 {
		return nil, nil
	}
	// Crash: tags that a power loss takes back are set again by the next look: the copies
	// are no longer in public/ then.
	return list, f.Sync()
}

// Pending returns the copies of rerouted recipients that are not marked yet.
func Pending(spec *workspec.Spec) []Resumed {
	orders := spec.Orders()
	if orders == nil {
		return nil
	}
	var list []Resumed
	byFile := map[string]int{}
	for _, r := range spec.All() {
		e := orders.Of(r.Offset).Rerouted()
		if e == nil || r.Tag == workspec.TagOK || r.Tag == workspec.TagFailed {
			continue
		}
		file := e.Get(workspec.KeyFile)
		i, ok := byFile[file]
		if !ok {
			i = len(list)
			byFile[file] = i
			list = append(list, Resumed{File: file})
		}
		list[i].Recipients = append(list[i].Recipients, r.Offset)
	}
	return list
}

// prepare writes the copy and gives its name in public/.
func (q *Request) prepare(f *postoffice.Spec, spec *workspec.Spec, set []chosen) (file string, err error) {
	msg, info, err := f.OpenMessage()
	if err != nil {
		return "", err
	}
	// Opened for reading: close has nothing to lose.
	defer func() { _ = msg.Close() }()
	if err := postoffice.CheckSize(msg, info.Size); err != nil {
		return "", fmt.Errorf("read message: %w", err)
	}
	was, err := envelope.Read(io.NewSectionReader(msg, 0, info.Size))
	if err != nil {
		return "", fmt.Errorf("read message: %w", err)
	}
	raw, err := f.Read()
	if err != nil {
		return "", err
	}
	if spec.BodyOffset < 0 || spec.BodyOffset > info.Size || set[0].group.HeaderEnd > int64(len(raw)) {
		return "", fmt.Errorf("read message: its body begins at byte %d of %d", spec.BodyOffset, info.Size)
	}
	draft, err := q.PostOffice.Submissions.NewDraft(postoffice.CopyPrefix)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, draft.Abort())
		}
	}()
	head, err := envelope.Append(nil, q.envelope(believed(&was.Envelope, f.Info.UID, info.UID), set))
	if err != nil {
		return "", err
	}
	head = append(head, header(raw[set[0].group.HeaderOffset:set[0].group.HeaderEnd])...)
	if was.BodyOffset > was.HeaderOffset+int64(len(was.Header)) {
		head = append(head, '\n')
	}
	if _, err := draft.Write(head); err != nil {
		return "", err
	}
	if _, err := io.Copy(draft, io.NewSectionReader(msg, spec.BodyOffset, info.Size-spec.BodyOffset)); err != nil {
		return "", err
	}
	// No hold, and no way that leads back to itself, makes a message young again.
	draft.SetArrival(postoffice.IDOf(info).Time())
	// Crash: see Prepare: no one knows the file's name yet.
	return draft.Name(), draft.Prepare()
}

// believed returns what of an envelope counts: all of it if router, who wrote the
// specification, or root has written the message, too. What the router did not believe
// it must not be made to believe now.
func believed(was *envelope.Envelope, router, writer uint32) *envelope.Envelope {
	if was.Submitter != nil && (writer == 0 || writer == router) {
		writer = was.Submitter.UID
	}
	if writer == 0 || writer == router {
		return was
	}
	return &envelope.Envelope{BodyType: was.BodyType}
}

// envelope is that of the copy: of the message's the lines about where it came from, and
// those that are chosen.
func (q *Request) envelope(was *envelope.Envelope, set []chosen) *envelope.Envelope {
	// External: its header fields are complete, the router is to add none but Received. Submitted: in
	// that one it names no client of a user whom HIDECLIENT hides.
	e := &envelope.Envelope{External: true, RcvdFrom: was.RcvdFrom, Submitted: was.Submitted, BodyType: was.BodyType, ErrorMsg: was.ErrorMsg, With: was.With,
		Comments: []string{"rerouted " + q.ID.String()}, Via: was.Via, HasFrom: true, EnvID: set[0].rcpt.EnvID, NotaryRet: set[0].rcpt.Ret, Octets: -1}
	if s := &set[0].group.Sender; s.Channel != "error" {
		e.From = strings.TrimSuffix(strings.TrimPrefix(s.Address, "<"), ">")
	}
	for _, c := range set {
		e.Recipients = append(e.Recipients, envelope.Recipient{Address: c.rcpt.Address, DSN: c.rcpt.Notary})
	}
	return e
}

// header returns a header block without the Received that our router put on top: the next one
// puts its own there.
func header(block []byte) []byte {
	if fields := envelope.Fields(block); len(fields) > 0 && strings.EqualFold(fields[0].Name, "Received") {
		return block[len(fields[0].Raw):]
	}
	return block
}
