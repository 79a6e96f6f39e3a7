package mailbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/status"
)

// Quota is how much a user's mailbox may hold.
type Quota struct {
	Bytes int64 // MAILBOXQUOTA; 0: any amount
	Fail  bool  // MAILBOXOVERQUOTA=fail: what finds no room is given up at once
}

// Status codes of mailboxes, RFC 3463 §3.3.
var (
	mailboxOver = status.Code{Class: 5, Subject: 2, Detail: 2}
	tooLarge    = status.Code{Class: 5, Subject: 2, Detail: 3}
)

// room reports whether a message fits into a mailbox that holds so much.
func (q Quota) room(has, size int64) error {
	switch {
	case q.Bytes <= 0 || has+size <= q.Bytes:
		return nil
	case size > q.Bytes: // it will never fit
		return &fault{code: tooLarge, text: fmt.Sprintf("the message, %d bytes, is larger than the mailbox may be, %d bytes", size, q.Bytes)}
	case q.Fail:
		return &fault{code: mailboxOver, text: "the mailbox is full"}
	}
	return &fault{code: status.MailboxFull, text: "the mailbox is full", err: fmt.Errorf("it holds %d of %d bytes, the message has %d", has, q.Bytes, size)}
}

// sizeFile sums up a Maildir with its folders (Maildir++): the quota in its first line,
// then bytes and messages that came or, negative, went. maxSizeFile is where the
// specification has it written anew. Bytes. countKeep is how long it has a count
// believed by which there is no room.
const (
	sizeFile    = "maildirsize"
	maxSizeFile = 5120
	countKeep   = 15 * time.Minute
)

// maildirRoom reports whether a message fits into a Maildir. The file's sum is believed
// while there is room; before a message is refused everything is counted, unless that
// was done lately and nothing has been noted since.
func (q Quota) maildirRoom(box maildirFS, name string, size int64, now time.Time) error {
	if q.Bytes <= 0 || size > q.Bytes {
		return q.room(0, size)
	}
	if s, ok := q.summed(box); ok {
		err := q.room(s.bytes, size)
		if age := now.Sub(s.counted); err == nil || age >= 0 && age < countKeep {
			return err
		}
	}
	has, count, err := counted(box)
	if err != nil {
		return fmt.Errorf("count the mailbox: %w", err)
	}
	// Without its file the next delivery counts again.
	_ = q.write(box, name, has, count, now)
	return q.room(has, size)
}

// summary is the content of a size file.
type summary struct {
	bytes   int64
	counted time.Time // zero: something was noted since
}

// openSizes opens the size file. The user chooses what it is: a named pipe
// would hold up the open(2), and with it the agent, for ever.
func openSizes(box durable.FS, flag int) (durable.File, durable.Info, error) {
	info, err := box.Stat(sizeFile)
	if err != nil {
		return nil, info, err
	}
	if !info.Mode.IsRegular() {
		return nil, info, errNotRegular // not even opened: devices may mind
	}
	f, err := box.Open(sizeFile, flag|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, info, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode.IsRegular() {
		err = errNotRegular // replaced meanwhile
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, info, err
	}
	return f, info, nil
}

var errNotRegular = errors.New(sizeFile + " is not a regular file")

// summed reads the size file. It is not believed if it is large, has another quota, or
// cannot be understood.
func (q Quota) summed(box durable.FS) (s summary, ok bool) {
	f, info, err := openSizes(box, os.O_RDONLY)
	if err != nil {
		return s, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSizeFile+1))
	if err != nil || len(b) > maxSizeFile {
		return s, false
	}
	sum, lines, ok := q.parse(b)
	if s.bytes = sum; lines == 1 {
		s.counted = info.ModTime
	}
	return s, ok
}

func (q Quota) parse(b []byte) (sum int64, lines int, ok bool) {
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	if !bytes.Equal(bytes.TrimSpace(first), q.firstLine()) {
		return 0, 0, false
	}
	for line := range bytes.Lines(rest) {
		fields := strings.Fields(string(line))
		if len(fields) != 2 || line[len(line)-1] != '\n' {
			return 0, 0, false
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return 0, 0, false
		}
		sum, lines = sum+n, lines+1
	}
	return sum, lines, sum >= 0
}

func (q Quota) firstLine() []byte { return fmt.Appendf(nil, "%dS", q.Bytes) }

// write writes the size file anew, with the time of the count as its own.
func (q Quota) write(box durable.FS, name string, sum, count int64, now time.Time) error {
	tmp := "tmp/" + name + ".size"
	// An attempt that was killed has left it; or its user has put something there.
	if err := box.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Crash: a file in tmp/, which is never read.
	f, err := box.Open(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s\n%d %d\n", q.firstLine(), sum, count)
	if err = errors.Join(err, f.SetModTime(now), f.Close()); err == nil {
		// Crash: an old sum, none, or one that cannot be understood: it is counted again.
		err = box.Rename(tmp, sizeFile)
	}
	if err != nil {
		_ = box.Remove(tmp)
	}
	return err
}

// note adds a message to the size file.
func (q Quota) note(box durable.FS, size int64) {
	if q.Bytes <= 0 {
		return
	}
	f, _, err := openSizes(box, os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return // there is none, or no file: the next delivery counts
	}
	// Crash: the message is not in the sum; a reader's next count finds it.
	_, _ = fmt.Fprintf(f, "%d 1\n", size)
	_ = f.Close()
}

// counted sums up a Maildir and its folders, but not the trash and messages marked as such.
func counted(box durable.FS) (sum, count int64, err error) {
	folders := []string{""}
	entries, err := box.ReadDir(".")
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name, ".") && e.Name != ".Trash" && (e.Type == fs.ModeDir || e.Type == fs.ModeIrregular) {
			folders = append(folders, e.Name+"/")
		}
	}
	for _, folder := range folders {
		for _, sub := range []string{"new", "cur"} {
			entries, err := box.ReadDir(folder + sub)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return 0, 0, err
			}
			for _, e := range entries {
				n, ok := sizeOf(box, folder+sub+"/", e.Name)
				if ok {
					sum, count = sum+n, count+1
				}
			}
		}
	}
	return sum, count, nil
}

// sizeOf returns a message's size, from its name if that has it.
func sizeOf(box durable.FS, dir, name string) (int64, bool) {
	if strings.HasPrefix(name, ".") {
		return 0, false
	}
	base, marks, _ := strings.Cut(name, ":2,")
	if strings.Contains(marks, "T") {
		return 0, false
	}
	if _, text, ok := strings.Cut(base, ",S="); ok {
		text, _, _ = strings.Cut(text, ",")
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
			return n, true
		}
	}
	info, err := box.Stat(dir + name)
	return info.Size, err == nil && info.Mode.IsRegular()
}
