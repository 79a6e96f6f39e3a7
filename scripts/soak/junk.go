package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"zmailer/internal/postoffice"
)

// keep notes a file that may stay in the postoffice, and holds it open.
func (h *hand) keep(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left[inode(info)] = file
	return nil
}

func copyPart(to io.Writer, from io.ReaderAt, size int64) (int64, error) {
	return io.Copy(to, io.NewSectionReader(from, 0, size))
}

func spoolID(ino uint64, mtime time.Time) string {
	return postoffice.SpoolID{Ino: ino, MTime: mtime.UnixNano()}.String()
}

// junk puts something into the postoffice that is no message.
func (h *hand) junk(_ context.Context, d *dice) error {
	number := uint64(3e11) + d.Uint64N(1e11)
	texts := []string{"", "notes\n", "from <>\n\n", strings.Repeat("\x00", 4096), "to <>\nenv-end\n\n", "@ 0x00000003\ni 1\n",
		"@ 0x00000003\nz -\ni 5\no 10\ns local x x 0\n", "@ 0xffffffff\ni 1\n"}
	text := texts[d.IntN(len(texts))]
	names := []string{"router/%d", "router/notes.%d", "router/0%d", "router/..%d-77", "queue/%d-77", "queue/%d", "queue/A/%d-77",
		"transport/%d-77", "transport/%d", "transport/x%d", "public/note.%d", "public/smtp.1.abc.%d", "deferred/note.%d",
		"postman/%d", "freezer/%d.hand"}
	name := fmt.Sprintf(names[d.IntN(len(names))], number)
	kind := d.IntN(10)
	d.say("junk %s, kind %d, %d bytes", name, kind, len(text))
	switch kind {
	case 0:
		return h.odd(name, func(path string) error { return os.Mkdir(path, 0o755) })
	case 1:
		return h.odd(name, func(path string) error { return os.Symlink("/nonexistent", path) })
	case 2:
		return h.odd(name, func(path string) error { return syscall.Mkfifo(path, 0o600) })
	}
	if err := os.MkdirAll(h.path(name[:strings.LastIndexByte(name, '/')]), 0o755); err != nil {
		return err
	}
	// Written elsewhere: held open and known before a daemon can meet it.
	file, err := os.CreateTemp(h.aside, "junk")
	if err != nil {
		return err
	}
	if err := h.keep(file); err != nil {
		return err
	}
	if _, err := file.WriteString(text); err != nil {
		return err
	}
	return os.Rename(file.Name(), h.path(name))
}

// odd makes something that is no regular file. Its name may change; what is left of
// it at the end is looked for by its number.
func (h *hand) odd(name string, make func(path string) error) error {
	if err := os.MkdirAll(h.path(name[:strings.LastIndexByte(name, '/')]), 0o755); err != nil {
		return err
	}
	h.mu.Lock()
	h.strange = append(h.strange, name)
	h.mu.Unlock()
	return make(h.path(name))
}

// look runs a command that only reads.
func (h *hand) look(_ context.Context, d *dice) error {
	lists := [][]string{{"check"}, {"check", "--problems"}, {"check", "--json"}, {"check", "--ledger"}, {"check", "--ledger", "--json"}, {"queue"}, {"status"}}
	args := lists[d.IntN(len(lists))]
	out, code, err := h.zmctl(args...)
	if err != nil || code < 0 {
		return err // below 0: it was killed with all others
	}
	d.say("zmctl %s: exit code %d, %d bytes", strings.Join(args, " "), code, len(out))
	limit := 0
	switch args[0] {
	case "check":
		limit = 2 // warnings and errors
	case "status":
		limit = 1 // alarms
	}
	if code > limit || strings.Contains(out, "panic:") {
		return fmt.Errorf("zmctl %s: exit code %d: %s", strings.Join(args, " "), code, out)
	}
	if slices.Contains(args, "--json") && !json.Valid([]byte(out)) {
		return fmt.Errorf("zmctl %s: this is no JSON: %s", strings.Join(args, " "), out)
	}
	return nil
}
