package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// readers are the local users: they take the mail out of their Maildirs, again and
// again, as a mail reader does.
func (s *soak) readers(ctx context.Context) error {
	for {
		if err := s.readMaildirs(); err != nil {
			return err
		}
		// Reading less often leaves more of a Maildir on the disk; there is no event in
		// it that is not the mailbox's own.
		if !wait(ctx, 500*time.Millisecond) {
			return nil
		}
	}
}

func (s *soak) readMaildirs() error {
	for n := range users {
		user := fmt.Sprintf("u%d", n)
		dir := filepath.Join(s.mail.Maildir(user), "new")
		list, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := s.readLetter(filepath.Join(dir, e.Name()), user+"@"+hostname); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *soak) readLetter(name, at string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var a arrival
	if err := eachLine(f, func(line []byte) { a.line(line) }); err != nil {
		return err
	}
	s.books.arrived(at, &a)
	return os.Remove(name)
}

func eachLine(f io.Reader, take func(line []byte)) error {
	in := newLineReader(f)
	for {
		line, err := in.next()
		if len(line) > 0 {
			take(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readBoxes reads the mbox files, when all is over.
func (s *soak) readBoxes() error {
	for n := range boxes {
		name := fmt.Sprintf("%s/box%d.mbox", filepath.Join(s.dir, "mail"), n)
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, letter := range letters(b) {
			s.fromBox(name, letter)
		}
	}
	return nil
}

// letters parts an mbox file: a From line stands at the start or behind an empty line.
func letters(b []byte) [][]byte {
	var list [][]byte
	from := []byte("From ")
	for len(b) > 0 {
		end := len(b)
		if i := bytes.Index(b[1:], []byte("\n\nFrom ")); i >= 0 {
			end = 1 + i + 2
		}
		if bytes.HasPrefix(b, from) {
			list = append(list, b[:end])
		} else {
			list = append(list, nil) // something that no message begins with
		}
		b = b[end:]
	}
	return list
}

// fromBox enters one message of an mbox file in the books. What a killed agent left
// of one is counted apart.
func (s *soak) fromBox(name string, letter []byte) {
	_, rest, _ := bytes.Cut(letter, []byte("\n")) // the From line
	var a arrival
	rest = bytes.TrimSuffix(rest, []byte("\n")) // the empty line that ends it
	for line := range bytes.Lines(rest) {
		if i := len(line) - len(bytes.TrimLeft(line, ">")); i > 0 && bytes.HasPrefix(line[i:], []byte("From ")) {
			line = line[1:]
		}
		a.line(line)
	}
	s.books.inBox(name, &a)
}

// inBox enters a message of an mbox file, or a part of one.
func (b *books) inBox(name string, a *arrival) {
	b.mu.Lock()
	m := b.messages[a.seq]
	whole := m != nil && m.sum == a.sum()
	if !whole {
		b.torn[name]++
	}
	b.mu.Unlock()
	if whole {
		b.arrived(name, a)
	}
}

// mailDir returns where local users' mail is.
func (s *soak) mailDir() string { return strings.TrimSuffix(s.mail.Maildir(""), "/") }
