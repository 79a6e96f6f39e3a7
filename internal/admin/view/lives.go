package view

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/trace"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/logging"
)

// Limits on messages that others have caused.
const (
	mostCaused   = 20 // messages that one has caused
	deepestTrace = 4  // a report on a report on a message that the content filter gave back
)

// Tracer puts together the lives of messages: from the log, and from their files and the
// ledger. It serves one call of Trace.
type Tracer struct {
	Spool *Spool // nil: the log alone is read
	// Log reads the log from about a time on; nil: there is none. It is called once for
	// each level of messages that others have caused.
	Log func(ctx context.Context, since time.Time, fn func(line []byte) error) error
	// Scan is Log with a choice of lines, for Find; nil: there is none.
	Scan func(ctx context.Context, since time.Time, pick logread.Pick, fn func(line []byte) error) error
	// Where names what Log reads, for errors.
	Where []string
	Now   time.Time

	lines map[string][]logging.Line // by spool ID
	errs  []error
}

// Read sets the log of a postoffice as what is read.
func (t *Tracer) Read(log *logread.Source) {
	t.Log, t.Scan, t.Where = log.Each, log.Scan, []string{log.File}
	if log.File == "" {
		t.Where = []string{"the journal"}
	}
}

// Trace returns the lives of messages in the order of their IDs. Unknown messages are left
// out and named by the error; what could not be read is part of it, too.
func (t *Tracer) Trace(ctx context.Context, ids []postoffice.SpoolID) ([]*trace.Life, error) {
	t.lines = map[string][]logging.Line{}
	t.readLog(ctx, ids)
	var lives []*trace.Life
	for _, id := range ids {
		if l := t.life(id, 0); l != nil {
			lives = append(lives, l)
		}
	}
	return lives, errors.Join(t.errs...)
}

func (t *Tracer) fail(err error) {
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

// life puts the life of a message together; nil if nothing is known of it.
func (t *Tracer) life(id postoffice.SpoolID, depth int) *trace.Life {
	steps := t.logSteps(id)
	var m *Message
	if t.Spool != nil {
		var more []trace.Step
		var err error
		m, more, err = Histories{t.Spool}.trace(id)
		steps = append(steps, more...)
		if m == nil && len(steps) == 0 || m != nil {
			t.fail(err)
		}
	}
	if len(steps) == 0 {
		if depth == 0 {
			where := "; no log was found, --log names one"
			if len(t.Where) > 0 {
				where = " (" + strings.Join(t.Where, ", ") + ")"
			}
			t.fail(fmt.Errorf("trace %s: no such message in the files, the ledger or the log%s", id, where))
		}
		return nil
	}
	l := trace.New(id.String(), id.Time(), steps, t.Now)
	switch {
	case m != nil:
		overlay(l, m, t.Spool.Now)
	case t.Spool != nil:
		l.State = "gone"
	}
	for i := range l.Caused {
		c := &l.Caused[i]
		other, err := postoffice.ParseSpoolID(c.ID)
		if err != nil || i >= mostCaused || depth+1 >= deepestTrace && c.Kind != trace.Filtered || depth > deepestTrace+1 {
			continue
		}
		c.Life = t.life(other, depth+1)
	}
	return l
}

// readLog keeps the lines about some messages, then those about the messages that they
// have caused: the lines of a report may precede the line that names it.
func (t *Tracer) readLog(ctx context.Context, ids []postoffice.SpoolID) {
	if t.Log == nil {
		return
	}
	since := t.Now
	wanted := make([]string, 0, len(ids))
	for _, id := range ids {
		wanted = append(wanted, id.String())
		if id.Time().Before(since) {
			since = id.Time()
		}
	}
	since = since.Add(-time.Minute)
	for depth := 0; len(wanted) > 0 && depth < deepestTrace; depth++ {
		set := make(map[string]bool, len(wanted))
		for _, id := range wanted {
			t.lines[id], set[id] = nil, true
		}
		err := t.Log(ctx, since, func(line []byte) error {
			last := ""
			linesAbout(line, set, func(id string) {
				if l, ok := logging.ParseLine(line); ok && id != last {
					t.lines[id], last = append(t.lines[id], l), id
				}
			})
			return ctx.Err()
		})
		if err != nil {
			t.fail(err)
			return
		}
		wanted = t.caused(wanted)
	}
}

// caused returns the messages that some have caused and that were not searched for yet.
func (t *Tracer) caused(of []string) (list []string) {
	for _, id := range of {
		for i := range t.lines[id] {
			s, ok := trace.FromLog(&t.lines[id][i], id)
			if !ok || s.Other == "" || s.Event == "caused" || len(list) >= mostCaused {
				continue
			}
			if _, known := t.lines[s.Other]; !known {
				t.lines[s.Other] = nil
				list = append(list, s.Other)
			}
		}
	}
	return list
}

func (t *Tracer) logSteps(id postoffice.SpoolID) (list []trace.Step) {
	lines := t.lines[id.String()]
	for i := range lines {
		l := &lines[i]
		if l.Time.Year() == 0 { // a log for terminals has the time of day alone
			l.Time = onDay(l.Time, id.Time().Local())
		}
		if s, ok := trace.FromLog(l, id.String()); ok {
			list = append(list, s)
		}
	}
	return list
}

// onDay returns a time of day on the first day on which it is not before the message.
func onDay(clock, accepted time.Time) time.Time {
	y, m, d := accepted.Date()
	at := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), clock.Nanosecond(), accepted.Location())
	if at.Before(accepted.Add(-time.Second)) {
		at = at.AddDate(0, 0, 1)
	}
	return at
}
