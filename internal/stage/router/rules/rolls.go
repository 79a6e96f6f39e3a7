package rules

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// Sizes of files of addresses. Bytes.
const (
	keptRoll = 64 << 10 // larger ones are read from the file each time, not kept
	maxLine  = 64 << 10
)

// triesToRead is how often a file that is being written is looked at.
const triesToRead = 10

// maxRolls is how many files are kept.
const maxRolls = 4096

// verpMark is the first line of a list whose members' senders name the member.
const verpMark = "#!verp"

// errChanging means that a file is being written: what it says is not known.
var errChanging = errors.New("it is being changed; zmctl resubmit when it is whole, or replace it by a rename")

// rolls are the files of addresses, one or more a line: lists and what :include:
// names. Small ones are kept as they were read last.
type rolls struct {
	now   func() time.Time
	tries int // looks at a file that is being written, settle apart
	reach reach

	mu    sync.Mutex
	files map[string]*roll
}

// roll is one of them.
type roll struct {
	mu      sync.Mutex // held by who looks at the file
	sig     signature  // of what members were read from
	members []member
	verp    bool
}

// member is a value in a file of addresses.
type member struct {
	text.Value
	line int
}

// list is a file of addresses at one moment.
type list struct {
	path    string
	info    fs.FileInfo
	closed  []owned // directories on the way that not everybody may enter
	rights  rights
	verp    bool
	members []member // nil: in f
	f       *os.File
	sig     signature // of f
}

func (l *list) close() {
	if l.f != nil {
		l.f.Close()
	}
}

// open returns a file of addresses as it is now. One that is being written is waited
// for.
func (r *rolls) open(ls lookups, path string) (*list, error) {
	ls.busy() // it may be long, or on a disk that does not answer
	for range r.tries {
		l, wait, err := r.try(path)
		if err != nil || wait == 0 {
			return l, err
		}
		ls.waits()
		pause := time.NewTimer(wait)
		select {
		case <-ls.ctx.Done():
			pause.Stop()
			return nil, ls.ctx.Err()
		case <-pause.C:
		}
	}
	return nil, errChanging
}

// try is one attempt; wait: to be tried again then.
func (r *rolls) try(path string) (l *list, wait time.Duration, err error) {
	way := guard{reach: r.reach}
	may, seen, err := way.look(path)
	if err != nil {
		return nil, 0, err
	}
	if !seen.Mode().IsRegular() {
		return nil, 0, errNotRegular
	}
	if age := r.now().Sub(seen.ModTime()); age >= 0 && age < settle {
		return nil, settle - age, nil
	}
	l = &list{path: path, info: seen, closed: way.closed, rights: may, sig: sign(seen)}
	if seen.Size() <= keptRoll {
		err := r.kept(l)
		if errors.Is(err, errChanging) {
			return nil, settle, nil
		}
		return l, 0, err
	}
	if l.f, err = r.reach.open(path); err != nil {
		return nil, 0, err
	}
	info, err := l.f.Stat()
	if err == nil && sign(info) != l.sig {
		l.close()
		return nil, settle, nil
	}
	if err == nil {
		l.verp, err = startsVERP(l.f)
	}
	if err != nil {
		l.close()
		return nil, 0, err
	}
	return l, 0, nil
}

// kept fills in the members of a small file, which is read if it has changed.
func (r *rolls) kept(l *list) error {
	r.mu.Lock()
	k := r.files[l.path]
	if k == nil {
		if len(r.files) >= maxRolls {
			clear(r.files)
		}
		k = &roll{}
		r.files[l.path] = k
	}
	r.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sig != l.sig {
		content, sig, err := readRegular(l.path, r.reach)
		if err == nil && sig != l.sig {
			err = errChanging
		}
		if err != nil {
			return err
		}
		var members []member
		err = scanMembers(strings.NewReader(content), l.path, func(m *member) error {
			members = append(members, *m)
			return nil
		})
		if err != nil {
			return err
		}
		k.sig, k.members = sig, members
		k.verp, _ = startsVERP(strings.NewReader(content))
	}
	l.members, l.verp = k.members, k.verp
	return nil
}

// each hands over the members. A large file is read meanwhile; the error reports whether it
// has changed in that time, and what was handed over is to be forgotten.
func (l *list) each(ctx context.Context, do func(*member) error) error {
	if l.f == nil {
		for i := range l.members {
			if err := do(&l.members[i]); err != nil {
				return err
			}
		}
		return nil
	}
	n := 0
	err := scanMembers(l.f, l.path, func(m *member) error {
		if n++; n%1000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		return do(m)
	})
	// Of a change the rest may be a consequence: a line that is cut in two.
	if info, serr := l.f.Stat(); serr != nil {
		return serr
	} else if sign(info) != l.sig {
		return errChanging
	}
	return err
}

// startsVERP reports whether a file begins with verpMark.
func startsVERP(r io.ReaderAt) (bool, error) {
	b := make([]byte, len(verpMark)+2)
	n, err := r.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	line, _, _ := bytes.Cut(b[:n], []byte("\n"))
	return string(bytes.TrimSpace(line)) == verpMark, nil
}

// scanMembers reads a file of values: one or more a line, parted by commas. Its
// errors are *config.Error, the reader's, or those of do.
func scanMembers(r io.Reader, name string, do func(*member) error) error {
	s := source{name: name}
	number := 0
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	for lines.Scan() {
		number++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		values, _, err := text.ParseValues(string(line))
		if err != nil {
			return s.bad(number, "bad line of a list", err)
		}
		for _, v := range values {
			if err := do(&member{v, number}); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return s.bad(number+1, fmt.Sprintf("longer than %d bytes: this is no list", maxLine), nil)
	} else if err != nil {
		return &config.Error{File: name, Reason: "cannot be read", Err: err}
	}
	return nil
}
