package postfix

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Types of records, as in Postfix's rec_type.h.
const (
	typeTime     = 'T'
	typeFullName = 'F'
	typeFilter   = 'L' // in the envelope
	typeSender   = 'S'
	typeDone     = 'D'
	typeOpen     = 'R'
	typeCanceled = '/'
	typeAttr     = 'A'
	typeRedirect = '>'
	typeContent  = 'M' // begins the content
	typePiece    = 'L' // of a line, in the content
	typeLine     = 'N' // the end of one
	typeFound    = 'X' // begins what was found in the header
	typePointer  = 'p'
	typeVERP     = 'V'
	typeRet      = '<'
	typeEnvID    = 'i'
	typeORCPT    = 'o'
	typeNotify   = 'n'
	typeEnd      = 'E'
)

const (
	// longest is the longest record that is believed. Bytes.
	longest = 1 << 20
	// jumpsBack is how often a file may lead back: Postfix's own limit.
	jumpsBack = 10_000
)

var errCut = errors.New("it ends in the middle of a record")

// records reads a queue file, and follows its pointers.
type records struct {
	r    io.ReaderAt
	size int64
	in   *bufio.Reader
	at   int64 // of the next byte
	last int64 // where the last pointer led
	back int
	buf  []byte
}

func newRecords(r io.ReaderAt, size int64) *records {
	s := &records{r: r, size: size}
	s.seek(0)
	return s
}

func (s *records) seek(at int64) {
	section := io.NewSectionReader(s.r, at, max(s.size-at, 0))
	if s.in == nil {
		s.in = bufio.NewReaderSize(section, 64<<10)
	} else {
		s.in.Reset(section)
	}
	s.at = at
}

// next returns a record, whose bytes are valid until the next call, and its offset. io.EOF: the
// file is over.
func (s *records) next() (kind byte, data []byte, at int64, err error) {
	for {
		at = s.at
		if kind, data, err = s.one(); err != nil || kind != typePointer {
			return kind, data, at, err
		}
		to, err := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
		switch {
		case err != nil || to < 0 || to > s.size:
			return 0, nil, at, fmt.Errorf("a pointer to %.20q", data)
		case to == 0:
			continue // room for one
		}
		if to <= s.last {
			if s.back++; s.back > jumpsBack {
				return 0, nil, at, errors.New("its pointers form a loop")
			}
		}
		s.last = to
		s.seek(to)
	}
}

func (s *records) one() (kind byte, data []byte, err error) {
	kind, err = s.in.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	s.at++
	length, shift := 0, 0
	for {
		b, err := s.in.ReadByte()
		if err != nil {
			return 0, nil, cutShort(err)
		}
		s.at++
		length |= int(b&0x7f) << shift
		if b&0x80 == 0 {
			break
		}
		if shift += 7; shift > 21 {
			return 0, nil, errors.New("a record of impossible length")
		}
	}
	if length > longest {
		return 0, nil, fmt.Errorf("a record of %d bytes", length)
	}
	if length > cap(s.buf) {
		s.buf = make([]byte, length)
	}
	data = s.buf[:length]
	n, err := io.ReadFull(s.in, data)
	s.at += int64(n)
	if err != nil {
		return 0, nil, cutShort(err)
	}
	return kind, data, nil
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCut
	}
	return err
}

// writeContent writes the message itself: a line's end behind each N.
func writeContent(r io.ReaderAt, size int64, w io.Writer) error {
	s := newRecords(r, size)
	out := bufio.NewWriterSize(w, 32<<10)
	inside := false
	for {
		kind, data, _, err := s.next()
		if errors.Is(err, io.EOF) {
			err = errCut
		}
		if err != nil {
			return err
		}
		switch {
		case !inside:
			inside = kind == typeContent
			continue
		case kind == typeFound || kind == typeEnd:
			return out.Flush()
		case kind != typeLine && kind != typePiece:
			continue
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
		if kind == typeLine {
			if err := out.WriteByte('\n'); err != nil {
				return err
			}
		}
	}
}
