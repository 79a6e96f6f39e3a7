package ledger

import (
	"bufio"
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
	baseEnd      = "end " // and the number of lines before it
	baseTop      = 5      // lines before those of processes and messages
)

// fields returns a book's sums with their keys in base.
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

// readBase reads base; without one the book stays empty.
func (b *Book) readBase(f durable.FS) error {
	if err := readFile(f, baseName, b.parseBase); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// parseBase reads base, which has to be whole.
func (b *Book) parseBase(in io.Reader) error {
	var top Book // of the first lines; those of processes and messages are applied to b
	whole, next, ended := true, 0, false
	err := eachLine(in, func(n int, line []byte) {
		// An empty line was passed over, and is none of fold's.
		whole = whole && n == next && !ended
		next = n + 1
		end, isEnd := bytes.CutPrefix(line, []byte(baseEnd))
		switch {
		case n < baseTop:
			whole = whole && top.topLine(n, string(line))
		case isEnd:
			ended = string(end) == strconv.Itoa(n)
		default:
			l, ok := ParseLine(line)
			if whole = whole && ok; whole {
				b.apply(&l)
			}
		}
	})
	switch {
	case err != nil:
		return err
	case !whole || !ended:
		return ErrBase
	}
	b.Sum, b.Since, b.Through, b.begun = top.Sum, top.Since, top.Through, true
	return nil
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

// readFile has the content of a file read.
func readFile(f durable.FS, name string, read func(io.Reader) error) (err error) {
	h, err := f.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	return readOpen(h, read)
}

// readOpen has an open file read from its beginning to where it ends now.
func readOpen(h durable.File, read func(io.Reader) error) error {
	info, err := h.Stat()
	if err != nil {
		return err
	}
	return read(io.NewSectionReader(h, 0, info.Size))
}

// longest is how much of a line is read, from its end. None of ours is so long, but one
// may follow what a power loss has left of another. Bytes.
const longest = 4 << 10

// eachLine calls fn with each line and its number, from 0; of a very long one with its end.
// Empty lines are passed over, and so is a last one without its newline, which is being
// written, or its writer has died.
func eachLine(r io.Reader, fn func(n int, line []byte)) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var long []byte
	for n := 0; ; n++ {
		line, err := in.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			// The next read overwrites what line shows.
			long = append(long[:0], line[len(line)-longest:]...)
			line, err = in.ReadSlice('\n')
			long = append(long, line...)
			line = long
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read ledger: %w", err)
		case len(line) > 1:
			fn(n, line[:len(line)-1])
		}
	}
}

// applyLines applies the lines of a journal.
func (b *Book) applyLines(in io.Reader) error {
	return eachLine(in, func(_ int, line []byte) {
		if b.brief && !aboutProcess(line) {
			return
		}
		if l, ok := ParseLine(line); ok {
			b.apply(&l)
		} else {
			b.Bad++
		}
	})
}

// aboutProcess reports whether a line may be one about a process.
func aboutProcess(line []byte) bool {
	for _, v := range []Verb{Open, Close, Boot} {
		if bytes.Contains(line, []byte(" "+v.String()+" ")) {
			return true
		}
	}
	return false
}

// Read reads the ledger: base, the journals that are not in it yet, and the journal.
// Beside a process that folds, it reads again until nothing was renamed meanwhile.
func Read(po *postoffice.PostOffice) (*Book, error) { return read(po, false) }

// read is Read; brief: what the lines say of messages is not kept. Every start asks which
// processes have the ledger open, in constant memory, however much mail is queued.
func read(po *postoffice.PostOffice, brief bool) (*Book, error) {
	const tries = 20
	for range tries {
		before, err := survey(po.FS())
		if err != nil {
			return nil, fmt.Errorf("read ledger: %w", err)
		}
		b := newBook()
		b.brief = brief
		err = b.readFiles(po.FS(), before)
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

func (b *Book) readFiles(f durable.FS, have files) error {
	if err := b.readBase(f); err != nil {
		return err
	}
	for _, name := range have.journals(b.Through) {
		if err := readFile(f, name, b.applyLines); err != nil {
			return err
		}
	}
	return nil
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

// journals returns the names of the journals with higher numbers than that, in order.
func (a files) journals(through int) (names []string) {
	for _, n := range a.numbers {
		if n > through {
			names = append(names, numbered(n))
		}
	}
	if a.journal != 0 {
		names = append(names, journalName)
	}
	return names
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
