package ledger

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// readStart reads of the ledger only which processes have it open and whether it was begun:
// what every start asks, in constant memory, however much mail is queued.
func readStart(po *postoffice.PostOffice) (*Book, error) { return readStill(po, startOnce) }

func startOnce(f durable.FS, have files) (*Book, error) {
	b := newBook()
	if err := b.startBase(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := make([]string, 0, len(have.numbers)+1)
	for _, n := range have.numbers {
		if n > b.Through {
			names = append(names, numbered(n))
		}
	}
	if have.journal != 0 {
		names = append(names, journalName)
	}
	for _, name := range names {
		err := eachLine(f, name, func(_ int, line []byte) {
			b.startLine(line)
		})
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// startBase looks into base, which has to be whole: its lines are read as parseBase reads
// them, but what they say of messages is not kept.
func (b *Book) startBase(f durable.FS) error {
	whole, next, last := true, 0, -1
	err := eachLine(f, baseName, func(n int, line []byte) {
		// An empty line was passed over, and is none of Fold's.
		whole = whole && n == next
		next, last = n+1, -1
		switch end, isEnd := bytes.CutPrefix(line, []byte(baseEnd)); {
		case n < baseTop:
			whole = b.topLine(n, string(line)) && whole
		case isEnd && string(end) == strconv.Itoa(n):
			last = n
		default:
			l, ok := ParseLine(line)
			whole = whole && ok
			if ok && (l.Verb == Open || l.Verb == Close || l.Verb == Boot) {
				b.apply(&l)
			}
		}
	})
	if err == nil && (!whole || last < 0) {
		err = ErrBase
	}
	b.begun = err == nil
	return err
}

// startLine applies a line if it is about a process and no message's.
func (b *Book) startLine(line []byte) {
	for _, v := range []Verb{Open, Close, Boot} {
		if !bytes.Contains(line, []byte(" "+v.String()+" ")) {
			continue
		}
		if l, ok := ParseLine(line); ok && l.Verb == v {
			b.apply(&l)
			return
		}
	}
}

// longest is how much of a line is looked at, from its end. None of ours is so long, but one
// may stand behind what a power loss has left of another. Bytes.
const longest = 4 << 10

// eachLine calls fn with the lines of a file and their numbers, from 0; of a very long one
// with its end. A last one without its newline is being written, or its writer has died.
func eachLine(f durable.FS, name string, fn func(n int, line []byte)) (err error) {
	h, err := f.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	info, err := h.Stat()
	if err != nil {
		return err
	}
	in := bufio.NewReaderSize(io.NewSectionReader(h, 0, info.Size), 64<<10)
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
			return fmt.Errorf("read %s: %w", name, err)
		case len(line) > 1:
			fn(n, line[:len(line)-1])
		}
	}
}
