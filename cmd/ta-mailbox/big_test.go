package main

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/test/suite"

	"golang.org/x/sys/unix"
)

const top = "Return-Path: <s@example.org>\nDelivered-To: jim@example.org\nReceived: here\n"

// 100 MB pass through in constant memory, every byte of them.
func TestLargeMessagePassesInConstantMemory(t *testing.T) { // Z2, Z4
	if testing.Short() {
		t.Skip("writes 300 MB")
	}
	const size, most = 100 << 20, 64 << 20
	piece := []byte(strings.Repeat("0123456789abcdef\x00\xff\n", 1000) + "From the middle\n>From here\n" + strings.Repeat("x", 70000))
	fill := func(w io.Writer) error {
		for written := 0; written < size; written += len(piece) {
			if _, err := w.Write(piece); err != nil {
				return err
			}
		}
		return nil
	}
	quoted := bytes.ReplaceAll(bytes.ReplaceAll(piece, []byte("\n>From "), []byte("\n>>From ")), []byte("\nFrom "), []byte("\n>From "))
	for name, c := range map[string]struct {
		template string
		file     string // pattern below the mail directory
		before   string
		piece    []byte
		after    string
	}{
		"Maildir": {"$MAIL/%u/", "jim/new/*", top + testHeader, piece, ""},
		"mbox":    {"$MAIL/%u", "jim", top + testHeader, quoted, "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t, c.template)
			s.queue("1", fill)
			p := s.start("local")
			p.Answers()
			p.Say("1\tjim@example.org\n")
			Only(t, p.Answers(), "ok3", "")
			if got := (suite.Process{Pid: p.Process.Pid}).Peak(); got == 0 || got >= most {
				t.Errorf("peak memory %d bytes, want less than %d", got, most)
			}
			p.In.Close()
			p.End()
			files, err := filepath.Glob(filepath.Join(s.mail, c.file))
			if err != nil || len(files) != 1 {
				t.Fatalf("got files %q, %v, want one", files, err)
			}
			want := sha256.New()
			io.WriteString(want, c.before)
			for written := 0; written < size; written += len(piece) {
				want.Write(c.piece)
			}
			io.WriteString(want, c.after)
			f, err := os.Open(files[0])
			assert.Must(t, err)
			defer f.Close()
			if name == "mbox" {
				from := "From s@example.org "
				line := make([]byte, len(from)+len("Sat Nov 21 00:12:50 2026\n"))
				if _, err := io.ReadFull(f, line); err != nil || !strings.HasPrefix(string(line), from) {
					t.Errorf("got first line %q, %v", line, err)
				}
			}
			got := sha256.New()
			_, err = io.Copy(got, f)
			assert.Must(t, err)
			if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
				t.Error("the bytes are not those of the message")
			}
		})
	}
}

// A disk that fills in the middle of a message leaves the mailbox as it was, and the
// message deferred.
func TestMessageWithoutRoomLeavesTheStoreAsItWas(t *testing.T) { // S21
	for name, c := range map[string]struct{ template, store string }{
		"mbox":    {"$MAIL/%u", "jim"},
		"Maildir": {"$MAIL/%u/", "jim/tmp"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t, c.template)
			store := filepath.Join(s.mail, c.store)
			before := strings.Repeat("From x\n\nold\n\n", 1000)
			if name == "mbox" {
				assert.Must(t, os.WriteFile(store, []byte(before), 0o600))
			}
			s.queue("1", text(strings.Repeat("0123456789abcde\n", 20000)))
			s.queue("2", text("small\n"))
			p := s.start("local")
			p.Answers()
			// No file of this process may grow beyond: what write(2) says then stands for
			// a full disk or quota.
			limit := unix.Rlimit{Cur: 100 << 10, Max: 100 << 10}
			if err := unix.Prlimit(p.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil); err != nil {
				t.Skip("no limit can be set: ", err)
			}
			p.Say("1\tjim@example.org\n")
			Only(t, p.Answers(), "deferred", "4.3.")
			if name == "mbox" {
				if b, err := os.ReadFile(store); err != nil || string(b) != before {
					t.Errorf("got %d bytes, %v, want the %d of before", len(b), err, len(before))
				}
			} else if entries, err := os.ReadDir(store); err != nil || len(entries) != 0 {
				t.Errorf("tmp/: got %v, %v, want it empty", entries, err)
			}
			// The next message, which has room, gets through.
			p.Say("2\tjim@example.org\n")
			Only(t, p.Answers(), "ok3", "")
		})
	}
}
