package view

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/trace"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/logging"
)

// Search is what messages are looked for in the log and in the queue.
type Search struct {
	// Word is an address, as sender, recipient or recipient before aliases; a domain with @
	// before it; a Message-ID; a user; a client's address or name. Case does not matter.
	Word         string
	Since, Until time.Time // of a line of the log that has it; zero: no bound
	Most         int       // messages, the newest; 0: mostFound
	// Lines bounds how many lines of the log are kept for all of them; 0: it is not bounded
	// beyond mostSteps of each message. At the bound the search ends with ErrManyLines.
	Lines int
}

// Found is what a Search has come to.
type Found struct {
	Lives []*trace.Life // in the order of acceptance
	More  int           // about how many older messages were left out
	// Refused are the lines of what smtpserver did not accept, the newest, in their order.
	Refused []logging.Line
	// Unsearched: the queue is so long that it was not searched to its end.
	Unsearched bool
}

// FoundRow is a recipient of a message that a search has found.
type FoundRow struct {
	Life      *trace.Life
	Recipient *trace.Recipient // nil: those that were looked for are not known
	Others    int              // recipients of the message, if Recipient is nil
}

// Rows returns the recipients of a message that were looked for, most at most. Of those that the
// content filter has given back it returns what became of them after that.
func (q *Search) Rows(l *trace.Life, most int) (rows []FoundRow) {
	for _, one := range chain(l) {
		after := map[string]bool{} // recipients that are known after the filter
		for _, behind := range chain(one)[1:] {
			for i := range behind.Recipients {
				r := &behind.Recipients[i]
				after[strings.ToLower(r.Address)], after[strings.ToLower(r.Original)] = true, true
			}
		}
		for i := range one.Recipients {
			r := &one.Recipients[i]
			if r.State == trace.Delivered && (after[strings.ToLower(r.Address)] || r.Original != "" && after[strings.ToLower(r.Original)]) {
				continue
			}
			if len(rows) < most && q.Concerns(l, r) {
				rows = append(rows, FoundRow{Life: one, Recipient: r})
			}
		}
	}
	if len(rows) == 0 {
		rows = []FoundRow{{Life: l, Others: len(l.Recipients) + l.Untold}}
	}
	return rows
}

// chain returns a message and what the content filter has given back of it.
func chain(l *trace.Life) []*trace.Life {
	list := []*trace.Life{l}
	for i := range l.Caused {
		if c := &l.Caused[i]; c.Kind == trace.Filtered && c.Life != nil {
			list = append(list, chain(c.Life)...)
		}
	}
	return list
}

const (
	mostFound     = 1000
	mostSteps     = 1000            // lines kept of a message
	queueSearched = 2 * time.Second // for the search in the queue
)

// searchKeys are the keys of a line that a Search is compared with.
var searchKeys = []string{"from", "rcpt", "orig-rcpt", "message-id", "user", "client", "client-name"}

// matches reports whether a line has the word.
func (q *Search) matches(l *logging.Line) bool {
	if !q.Since.IsZero() && l.Time.Before(q.Since) || !q.Until.IsZero() && l.Time.After(q.Until) {
		return false
	}
	return slices.ContainsFunc(l.Fields, func(f logging.Field) bool { return slices.Contains(searchKeys, f.Key) && q.fits(f.Key, f.Value) })
}

func (q *Search) fits(key, value string) bool {
	switch {
	case strings.HasPrefix(q.Word, "@") && !(key == "rcpt" && strings.Contains(value, ",")):
		return len(value) > len(q.Word) && strings.EqualFold(value[len(value)-len(q.Word):], q.Word) && key != "message-id"
	case key == "rcpt" && strings.Contains(value, ","): // of a message that was refused
		return strings.EqualFold(q.Word, value) || slices.ContainsFunc(strings.Split(value, ","), func(one string) bool { return q.fits(key, one) })
	case key == "client":
		host, err := netip.ParseAddrPort(value)
		return strings.EqualFold(q.Word, value) || err == nil && strings.EqualFold(q.Word, host.Addr().String())
	case key == "message-id":
		return strings.EqualFold(inBrackets(value), inBrackets(q.Word))
	}
	return strings.EqualFold(q.Word, value) || strings.EqualFold(inBrackets(q.Word), value)
}

func inBrackets(s string) string { return strings.TrimSuffix(strings.TrimPrefix(s, "<"), ">") }

// part returns the longest part of the word that each form of the log writes as it is.
func (q *Search) part() string {
	longest := ""
	for _, s := range strings.FieldsFunc(q.Word, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@.-_:/+", r))
	}) {
		if len(s) > len(longest) {
			longest = s
		}
	}
	return longest
}

// ErrShortSearch is returned for a word that nearly every line would have.
var ErrShortSearch = errors.New("it must have at least three letters or digits that follow one another")

// ErrManyLines is returned beside what was found when the log has more about it than the
// search may keep.
var ErrManyLines = errors.New("the log has too many lines about these messages; choose a shorter time")

// Find looks for messages in the log, then puts the life of each together. Without a spool
// the log alone is searched.
func (t *Tracer) Find(ctx context.Context, q Search) (*Found, error) {
	if q.Most <= 0 || q.Most > mostFound {
		q.Most = mostFound
	}
	part := q.part()
	if len(part) < 3 {
		return nil, ErrShortSearch
	}
	t.lines, t.errs = map[string][]logging.Line{}, nil
	f := &Found{}
	queued := make(chan []string, 1)
	go func() { queued <- t.inQueue(ctx, &q, f) }()
	ids, since := t.inLog(ctx, &q, part, f)
	for _, id := range <-queued {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		x, _ := postoffice.ParseSpoolID(a)
		y, _ := postoffice.ParseSpoolID(b)
		return x.Time().Compare(y.Time())
	})
	if n := len(ids) - q.Most; n > 0 {
		ids, f.More = ids[n:], f.More+n
	}
	t.keepAbout(ctx, ids, since, &q)
	ids = t.keepChains(ctx, ids, &q)
	for _, id := range ids {
		if ctx.Err() != nil {
			break // the scan of the log has reported it
		}
		if s, err := postoffice.ParseSpoolID(id); err == nil {
			if l := t.life(s, deepestTrace); l != nil {
				f.Lives = append(f.Lives, l)
			}
		}
	}
	return f, errors.Join(t.errs...)
}

// inLog returns the newest messages of which a line has the word, and when the oldest of them
// was accepted.
func (t *Tracer) inLog(ctx context.Context, q *Search, part string, f *Found) (ids []string, since time.Time) {
	since = t.Now
	if t.Scan == nil {
		return nil, since
	}
	known := map[string]bool{}
	err := t.Scan(ctx, q.Since, logread.Containing(part), func(line []byte) error {
		l, ok := logging.ParseLine(line)
		if !ok || !q.matches(&l) {
			return nil
		}
		id := l.Get("id")
		if l.Event == "refused" && l.Program == "smtpserver" && id == "" {
			if f.Refused = append(f.Refused, l); len(f.Refused) > q.Most {
				f.Refused = f.Refused[1:]
			}
			return nil
		}
		if _, err := postoffice.ParseSpoolID(id); err != nil || known[id] {
			return nil
		}
		known[id] = true
		if ids = append(ids, id); len(ids) > q.Most {
			delete(known, ids[0])
			ids, f.More = ids[1:], f.More+1
		}
		return nil
	})
	t.fail(err)
	for _, id := range ids {
		if s, err := postoffice.ParseSpoolID(id); err == nil && s.Time().Before(since) {
			since = s.Time()
		}
	}
	return slices.Clone(ids), since.Add(-time.Minute)
}

// keepAbout keeps the lines about some messages.
func (t *Tracer) keepAbout(ctx context.Context, ids []string, since time.Time, q *Search) {
	if t.Scan == nil || len(ids) == 0 {
		return
	}
	for _, id := range ids {
		t.lines[id] = nil
	}
	kept := 0
	t.fail(t.Scan(ctx, since, logread.About(ids), func(line []byte) error {
		if q.Lines > 0 && kept >= q.Lines {
			return ErrManyLines
		}
		l, ok := logging.ParseLine(line)
		if !ok {
			return nil
		}
		for _, key := range [...]string{"id", "report", "copy", "orig-id"} {
			id := l.Get(key)
			list, wanted := t.lines[id]
			if wanted && (len(list) < mostSteps || l.Get("rcpt") == "" || q.matches(&l)) {
				t.lines[id], kept = append(list, l), kept+1
			}
		}
		return nil
	}))
}

// keepChains keeps the lines about messages that the content filter had before or gave back, too. It
// returns ids without those that are in the life of another, and with those that they are in.
func (t *Tracer) keepChains(ctx context.Context, ids []string, q *Search) []string {
	before := map[string]string{} // the message on the way to the filter, by that behind it
	for range deepestTrace {
		var more []string
		since := t.Now
		want := func(id string) {
			s, err := postoffice.ParseSpoolID(id)
			if _, known := t.lines[id]; err != nil || known || len(more) >= mostFound {
				return
			}
			t.lines[id], more = nil, append(more, id)
			if s.Time().Before(since) {
				since = s.Time()
			}
		}
		for _, lines := range t.lines {
			for i := range lines {
				of, id := lines[i].Get("orig-id"), lines[i].Get("id")
				if _, err := postoffice.ParseSpoolID(of); err != nil || of == id || lines[i].Event != "accepted" && lines[i].Event != "routed" {
					continue
				}
				before[id] = of
				want(of)
				want(id)
			}
		}
		if len(more) == 0 {
			break
		}
		t.keepAbout(ctx, more, since.Add(-time.Minute), q)
	}
	if len(before) == 0 {
		return ids
	}
	var list []string
	for _, id := range ids {
		for range deepestTrace {
			if of := before[id]; len(t.lines[of]) > 0 { // else nothing is known of it
				id = of
			}
		}
		if !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	return list
}

// inQueue returns the messages in the queue that the word fits, for a bounded time.
func (t *Tracer) inQueue(ctx context.Context, q *Search, f *Found) (ids []string) {
	if t.Spool == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, queueSearched)
	defer cancel()
	_, err := t.Spool.Each(ctx, selector.Selector{}, func(m *Message) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if m.ID != "" && m.fits(q) && len(ids) < q.Most {
			ids = append(ids, m.ID)
		}
		return nil
	})
	f.Unsearched = errors.Is(err, context.DeadlineExceeded)
	return ids
}

// fits reports whether a message has the word.
func (m *Message) fits(q *Search) bool {
	if !q.Since.IsZero() && m.Since.Before(q.Since) && len(m.Recipients) == 0 || !q.Until.IsZero() && m.Since.After(q.Until) {
		return false
	}
	has := func(key, value string) bool { return value != "" && q.fits(key, value) }
	if has("from", m.Sender) || has("message-id", m.MessageID) || has("user", m.User) || has("client", m.Client) || has("client-name", m.ClientName) {
		return true
	}
	return slices.ContainsFunc(m.Recipients, func(r Recipient) bool { return has("rcpt", r.Address) || has("orig-rcpt", r.Original) })
}

// Concerns reports whether a recipient of a message, or of what the content filter has given back of it,
// is one that was looked for; of a message that has the
// word elsewhere all are.
func (q *Search) Concerns(l *trace.Life, r *trace.Recipient) bool {
	has := func(r *trace.Recipient) bool {
		return q.fits("rcpt", r.Address) || r.Original != "" && q.fits("rcpt", r.Original)
	}
	if has(r) {
		return true
	}
	for _, one := range chain(l) {
		for i := range one.Recipients {
			if has(&one.Recipients[i]) {
				return l.From != "" && q.fits("from", l.From)
			}
		}
	}
	return true
}

// linesAbout is Containing for the spool IDs of one look at a log that is no file.
func linesAbout(line []byte, wanted map[string]bool, keep func(id string)) {
	for at := 0; at < len(line); {
		i := bytes.IndexByte(line[at:], 'S')
		if i < 0 {
			return
		}
		i += at
		end := i + 1
		for end < len(line) && (line[end] >= '0' && line[end] <= '9' || line[end]|0x20 >= 'a' && line[end]|0x20 <= 'z') {
			end++
		}
		if id := line[i:end]; wanted[string(id)] {
			keep(string(id))
		}
		at = end
	}
}
