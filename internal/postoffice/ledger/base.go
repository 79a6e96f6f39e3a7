package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// The first line of base, and what begins the others that are no lines of a journal.
const (
	baseHead     = "zmailer ledger 1"
	baseSince    = "since "
	baseThrough  = "through "
	baseSums     = "recipients "
	baseMessages = "messages "
	baseEnd      = "end " // and how many lines stand before it
	baseTop      = 5      // lines before those of processes and messages
)

// fields are a book's sums with their keys in base.
func (s *Sums) fields() []column {
	list := []column{{"accepted", &s.Accepted}, {"added", &s.Added}, {"found", &s.Found}}
	for _, c := range s.Outcomes.columns() {
		list = append(list, c)
	}
	return list
}

func (m *MessageSums) fields() []column {
	return []column{{"accepted", &m.Accepted}, {"found", &m.Found}, {"done", &m.Done}, {"gone", &m.Gone}, {"unknown", &m.Unknown}}
}

func appendFields(b []byte, head string, list []column) []byte {
	b = append(b, head[:len(head)-1]...)
	for _, c := range list {
		b = append(append(append(b, ' '), c.key...), '=')
		b = strconv.AppendInt(b, *c.n, 10)
	}
	return append(b, '\n')
}

func parseFields(text string, list []column) bool {
	words := strings.Fields(text)
	if len(words) != len(list) {
		return false
	}
	for i, c := range list {
		key, value, _ := strings.Cut(words[i], "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if key != c.key || err != nil {
			return false
		}
		*c.n = n
	}
	return true
}

// appendBase appends what base is to hold.
func (b *Book) appendBase(out []byte) []byte {
	start := len(out)
	out = append(out, baseHead+"\n"...)
	out = append(strconv.AppendInt(append(out, baseSince...), b.Since, 10), '\n')
	out = append(strconv.AppendInt(append(out, baseThrough...), int64(b.Through), 10), '\n')
	out = appendFields(out, baseSums, b.Sum.fields())
	out = appendFields(out, baseMessages, b.Sum.Messages.fields())
	for w, boots := range b.writers {
		for _, boot := range boots {
			out = (&Line{Time: b.Since, Verb: Open, Role: w.role, PID: w.pid, Boot: boot}).Append(out)
		}
	}
	for id, r := range b.Records {
		out = r.append(out, id)
	}
	lines := bytes.Count(out[start:], []byte{'\n'})
	return append(strconv.AppendInt(append(out, baseEnd...), int64(lines), 10), '\n')
}

// append appends the lines that make the record again.
func (r *Record) append(out []byte, id postoffice.SpoolID) []byte {
	l := Line{Time: r.Time, ID: id}
	if r.Found >= 0 {
		l.Verb, l.N = Found, int64(r.Found)
		out = l.Append(out)
	}
	if r.In >= 0 {
		l.Verb, l.N = In, int64(r.In)
		out = l.Append(out)
	}
	if r.Routed >= 0 {
		l.Verb, l.N, l.Entered = Routed, int64(r.Routed), r.Entered
		out = l.Append(out)
		l.Entered = false
	}
	switch {
	case r.Ended == Done && r.Why == ByPerson:
		l.Verb, l.N, l.Why = Gone, r.End.Removed, ByPerson
	case r.Ended == Gone && r.End.Total() == r.End.Gone:
		l.Verb, l.N, l.Why = Gone, r.End.Gone, r.Why
	case r.Ended == Unknown:
		l.Verb, l.N, l.Why = Unknown, r.End.Unknown, r.Why
	case r.Ended != None:
		l.Verb, l.End, l.Unreported = Done, r.End, r.Unreported
	default:
		return out
	}
	return l.Append(out)
}

// readBase reads base; without one the book is empty.
func readBase(f durable.FS) (*Book, error) {
	b := newBook()
	raw, err := readFile(f, baseName)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return nil, err
	}
	if !b.parseBase(raw) {
		return nil, ErrBase
	}
	return b, nil
}

func (b *Book) parseBase(raw []byte) bool {
	lines := bytes.Split(bytes.TrimSuffix(raw, []byte("\n")), []byte("\n"))
	n := len(lines) - 1
	if n < baseTop || string(lines[n]) != baseEnd+strconv.Itoa(n) {
		return false
	}
	var top Book // of the lines, processes and messages are applied to b
	for i := range baseTop {
		if !top.topLine(i, string(lines[i])) {
			return false
		}
	}
	b.Sum = top.Sum
	for _, line := range lines[baseTop:n] {
		l, ok := ParseLine(line)
		if !ok {
			return false
		}
		b.apply(&l)
	}
	b.Since, b.Through, b.begun = top.Since, top.Through, true
	return true
}

// topLine reads line n of those before the processes and messages.
func (b *Book) topLine(n int, line string) bool {
	var err error
	switch n {
	case 0:
		return line == baseHead
	case 1:
		b.Since, err = strconv.ParseInt(strings.TrimPrefix(line, baseSince), 10, 64)
	case 2:
		b.Through, err = strconv.Atoi(strings.TrimPrefix(line, baseThrough))
	case 3:
		sums, ok := strings.CutPrefix(line, baseSums)
		return ok && parseFields(sums, b.Sum.fields())
	case 4:
		sums, ok := strings.CutPrefix(line, baseMessages)
		return ok && parseFields(sums, b.Sum.Messages.fields())
	}
	return err == nil
}

// readFile reads a whole file.
func readFile(f durable.FS, name string) (b []byte, err error) {
	h, err := f.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	return readOpen(h)
}

// readOpen reads an open file from its beginning to where it ends now.
func readOpen(h durable.File) ([]byte, error) {
	info, err := h.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, info.Size)
	n, err := h.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}

// applyAll applies the lines of a journal. A last one without its newline is being
// written, or its writer has died.
func (b *Book) applyAll(raw []byte) {
	for len(raw) > 0 {
		line, rest, whole := bytes.Cut(raw, []byte{'\n'})
		raw = rest
		if !whole || len(line) == 0 {
			continue
		}
		l, ok := ParseLine(line)
		if !ok {
			b.Bad++
			continue
		}
		b.apply(&l)
	}
}

// Read reads the ledger: base, the journals that are not in it yet, and the journal.
// Beside a process that folds, it reads again until nothing was renamed meanwhile.
func Read(po *postoffice.PostOffice) (*Book, error) { return readStill(po, readOnce) }

func readStill(po *postoffice.PostOffice, once func(durable.FS, files) (*Book, error)) (*Book, error) {
	const tries = 20
	for range tries {
		before, err := survey(po.FS())
		if err != nil {
			return nil, fmt.Errorf("read ledger: %w", err)
		}
		b, err := once(po.FS(), before)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read ledger: %w", err)
		}
		after, serr := survey(po.FS())
		if serr != nil {
			return nil, fmt.Errorf("read ledger: %w", serr)
		}
		if err == nil && before.same(after) {
			b.resolve()
			return b, nil
		}
	}
	return nil, fmt.Errorf("read ledger: it was rewritten %d times meanwhile", tries)
}

func readOnce(f durable.FS, have files) (*Book, error) {
	b, err := readBase(f)
	if err != nil {
		return nil, err
	}
	for _, n := range have.numbers {
		if n <= b.Through {
			continue
		}
		raw, err := readFile(f, numbered(n))
		if err != nil {
			return nil, err
		}
		b.applyAll(raw)
	}
	if have.journal == 0 {
		return b, nil
	}
	raw, err := readFile(f, journalName)
	if err != nil {
		return nil, err
	}
	b.applyAll(raw)
	return b, nil
}

func numbered(n int) string { return journalName + "." + strconv.Itoa(n) }

// files are the ledger's files.
type files struct {
	numbers       []int // of journals, ascending
	journal, base uint64
	baseTime      int64
}

func (a files) same(b files) bool {
	return a.journal == b.journal && a.base == b.base && a.baseTime == b.baseTime && slices.Equal(a.numbers, b.numbers)
}

// survey lists the ledger's files. A postoffice without the directory has none.
func survey(f durable.FS) (files, error) {
	var have files
	entries, err := f.ReadDir(postoffice.Ledger)
	if errors.Is(err, fs.ErrNotExist) {
		return have, nil
	}
	if err != nil {
		return have, err
	}
	for _, e := range entries {
		switch digits, isNumbered := strings.CutPrefix(e.Name, "journal."); {
		case e.Name == "journal":
			have.journal = e.Ino
		case e.Name == "base":
			info, err := f.Stat(baseName)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return have, err
			}
			have.base, have.baseTime = info.Ino, info.ModTime.UnixNano()
		case isNumbered:
			if n, ok := decimal([]byte(digits)); ok && n > 0 {
				have.numbers = append(have.numbers, int(n))
			}
		}
	}
	slices.Sort(have.numbers)
	return have, nil
}
