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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// hand edits the postoffice as people do, and knows what it has done: what of it may
// stay there to the end, and how each edit changes what is expected of a message.
type hand struct {
	*soak
	aside string // a directory beside the postoffice, on the same file system

	mu sync.Mutex
	// left are files that were put into the postoffice and are no message: they may
	// stay, under whatever name. Each is held open, so that no other file gets its
	// inode number.
	left map[uint64]*os.File
	// strange are other names that were put there.
	strange []string
	// halves are the last elements of names whose specification may stand without its
	// message, which was removed, or routed again while the specification was away: it
	// goes to quarantine/.
	halves map[string]bool
}

func newHand(s *soak) *hand {
	return &hand{soak: s, aside: filepath.Join(s.dir, "aside"), left: map[uint64]*os.File{}, halves: map[string]bool{}}
}

// editor makes one edit after the other.
func (s *soak) editor(ctx context.Context, d *dice) error {
	h := s.hand
	if err := os.MkdirAll(h.aside, 0o755); err != nil {
		return err
	}
	for d.pause(ctx, 5*time.Millisecond, 250*time.Millisecond) {
		name, edit := h.choose(d)
		// Drawn before it is known whether there is a file: the next edit does not
		// depend on it.
		one := &dice{Rand: newDice(d.Uint64(), name, nil).Rand, actor: d.actor, to: d.to}
		err := edit(ctx, one)
		switch {
		case errors.Is(err, errNothing):
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		default:
			s.edits.Add(1)
		}
	}
	return nil
}

// errNothing: there was no file for the edit, or it had gone.
var errNothing = errors.New("no file for it")

// edit is one kind of edit.
type edit func(ctx context.Context, d *dice) error

func (h *hand) choose(d *dice) (name string, e edit) {
	kinds := []struct {
		weight int
		name   string
		edit   edit
	}{
		{14, "away", h.away}, {14, "pair away", h.pairAway}, {8, "half away", h.halfAway},
		{10, "defer", h.deferred}, {14, "move", h.otherDirectory}, {12, "touch", h.touch},
		{8, "remove", h.remove}, {12, "copy", h.copy}, {4, "part", h.part}, {8, "junk", h.junk}, {10, "look", h.look},
	}
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	n := d.IntN(sum)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			return k.name, k.edit
		}
	}
	return "look", h.look
}

// spoolFile is a message file or a work specification that was picked. It is held
// open, so that its inode number, and with it its name, cannot become another's.
type spoolFile struct {
	*os.File
	name   string // below the postoffice
	ino    uint64
	size   int64
	seq    int  // of the message that it is, or that it is a report on
	report bool // it is a report
	part   bool // it was rerouted: it has some of the message's recipients
}

func (f *spoolFile) String() string {
	what := "message"
	if f.report {
		what = "report on"
	}
	return fmt.Sprintf("%s (%s %d)", f.name, what, f.seq)
}

// base returns the name without directories.
func (f *spoolFile) base() string { return f.name[strings.LastIndexByte(f.name, '/')+1:] }

// beside is the name below queue/ or transport/, with hash directories.
func (f *spoolFile) below() string { _, rest, _ := strings.Cut(f.name, "/"); return rest }

// beside returns where a file is put aside, whatever the other editor has there.
func (h *hand) beside(f *spoolFile) string {
	dir, _, _ := strings.Cut(f.name, "/")
	return filepath.Join(h.aside, fmt.Sprintf("%s.%s.%d", dir, f.base(), f.Fd()))
}

func (h *hand) path(name string) string { return filepath.Join(h.mail.PostOffice(), name) }

// pick opens one of the spool files in these directories whose message is known.
func (h *hand) pick(d *dice, dirs ...string) (*spoolFile, error) {
	choice := d.Uint64()
	list, err := h.mail.Left()
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(name string) bool {
		dir, _, _ := strings.Cut(name, "/")
		base := name[strings.LastIndexByte(name, '/')+1:]
		return !slices.Contains(dirs, dir) || base[0] < '1' || base[0] > '9'
	})
	if len(list) == 0 {
		return nil, errNothing
	}
	slices.Sort(list)
	return h.open(list[choice%uint64(len(list))])
}

func (h *hand) open(name string) (*spoolFile, error) {
	file, err := os.OpenFile(h.path(name), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, errNothing
	}
	f := &spoolFile{File: file, name: name}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, errNothing
	}
	f.ino, f.size = inode(info), info.Size()
	head := make([]byte, 64<<10)
	n, err := file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		file.Close()
		return nil, errNothing
	}
	f.seq, f.report = whose(head[:n], strings.HasPrefix(name, "transport/"))
	f.part = bytes.Contains(head[:n], []byte("\ncomment rerouted "))
	if f.seq == 0 || h.mine(f.ino) {
		file.Close()
		return nil, errNothing
	}
	return f, nil
}

func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// mine reports whether a file is one of ours and no message.
func (h *hand) mine(ino uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.left[ino] != nil
}

var (
	fromLine = regexp.MustCompile(`(?m)^(?:from <|e )b\.(\d+)@`)
	rcptLine = regexp.MustCompile(`(?m)^(?:to <|r.{11}\S+ \S+ )([a-z]+)\.(\d+)[.@]`)
)

// whose returns, from the head of a file, which message it belongs to, 0 if it cannot be
// known, and whether it is a report on it.
func whose(head []byte, spec bool) (seq int, report bool) {
	if !spec {
		before, _, ok := strings.Cut(string(head), "\nenv-end\n")
		if !ok {
			return 0, false
		}
		head = []byte(before)
	}
	if m := fromLine.FindSubmatch(head); m != nil {
		seq, _ = strconv.Atoi(string(m[1])) // digits
		return seq, false
	}
	if m := rcptLine.FindSubmatch(head); m != nil {
		seq, _ = strconv.Atoi(string(m[2])) // as above
		return seq, string(m[1]) == "b"
	}
	return 0, false
}

// rename moves a file of the postoffice; errNothing: it had gone.
func (h *hand) rename(from, to string) error {
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		return errNothing
	}
	return err
}

// mayRepeat notes that a message, or a report, may be delivered once more.
func (h *hand) mayRepeat(f *spoolFile) {
	h.books.edit(f.seq, func(m *message) {
		if f.report {
			m.reports.copies++
		} else {
			m.again++
		}
	})
}

// explained takes out of a list of names what the hand knows of.
func (h *hand) explained(names []string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Lstat(h.path(name))
		return err == nil && h.left[inode(info)] != nil || errors.Is(err, fs.ErrNotExist) || h.half(name) || h.oddly(name)
	})
}

// mayPart notes that a file's specification may lose its message.
func (h *hand) mayPart(f *spoolFile) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.halves[f.base()] = true
}

// dropHalves removes specifications that have lost their message, as a postmaster
// would: the scheduler leaves them a minute. Those of the load's first part have met
// its rule.
func (h *hand) dropHalves(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	messages := map[string]bool{}
	for _, name := range names {
		if !strings.HasPrefix(name, "transport/") {
			messages[name[strings.LastIndexByte(name, '/')+1:]] = true
		}
	}
	for _, name := range names {
		base := name[strings.LastIndexByte(name, '/')+1:]
		if strings.HasPrefix(name, "transport/") && h.halves[base] && !messages[base] {
			_ = os.Remove(h.path(name)) // or the scheduler has
		}
	}
}

// half reports whether a name is, in quarantine/, a specification that has lost its message by an edit.
func (h *hand) half(name string) bool {
	base, ok := strings.CutPrefix(name, "quarantine/transport.")
	base, why, _ := strings.Cut(base, ".")
	return ok && h.halves[base] && strings.HasPrefix(why, "message-gone")
}

// oddly reports whether a name is, in quarantine/, what odd has put into public/ or a router directory.
func (h *hand) oddly(name string) bool {
	return slices.ContainsFunc(h.strange, func(was string) bool { return name == putAway(was) })
}

// putAway returns where a router puts what is no message.
func putAway(name string) string {
	return "quarantine/" + strings.Replace(name, "/", ".", 1) + ".foreign"
}

// tidy gives back what was set aside, and removes what was put there and is no
// message: at the end.
func (h *hand) tidy() error {
	for _, name := range h.strange {
		if err := errors.Join(os.RemoveAll(h.path(name)), os.RemoveAll(h.path(putAway(name)))); err != nil {
			return err
		}
	}
	left, err := h.mail.Left()
	if err != nil {
		return err
	}
	for _, name := range left {
		info, err := os.Lstat(h.path(name))
		if err == nil && (h.left[inode(info)] != nil || h.half(name) || isCopyDraft(name)) {
			// A scheduler that started while it was in queue/ may have entered it as found;
			// it is open in the ledger, and it is we who take it away.
			h.books.taken(spoolID(inode(info), info.ModTime()))
			err = os.Remove(h.path(name))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
