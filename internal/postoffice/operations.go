package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
)

// OperationsLog is orders/: what operators did with many messages at once, a file for each
// operation.
type OperationsLog struct{ *spool }

// OperationID names an operation of an operator on queued mail, as "20261121-031502-hold-4711": when
// it was given (UTC), the verb, the pid of who gave it.
type OperationID string

const operationTime = "20060102-150405"

// NewOperationID makes one.
func NewOperationID(now time.Time, verb string, pid int) OperationID {
	return OperationID(now.UTC().Format(operationTime) + "-" + verb + "-" + strconv.Itoa(pid))
}

// ParseOperationID reads one; ok is false for what is none.
func ParseOperationID(s string) (id OperationID, ok bool) {
	if len(s) < len(operationTime)+2 || s[len(operationTime)] != '-' {
		return "", false
	}
	if _, err := time.Parse(operationTime, s[:len(operationTime)]); err != nil {
		return "", false
	}
	verb, pid, found := strings.Cut(s[len(operationTime)+1:], "-")
	_, number := decimal(pid)
	ok = found && number && verb != "" && strings.Trim(verb, "abcdefghijklmnopqrstuvwxyz") == ""
	return OperationID(s), ok
}

// Verb returns what was done.
func (id OperationID) Verb() string {
	verb, _, _ := strings.Cut(string(id)[min(len(operationTime)+1, len(id)):], "-")
	return verb
}

// Time is when it was given.
func (id OperationID) Time() time.Time {
	t, err := time.Parse(operationTime, string(id)[:min(len(operationTime), len(id))])
	if err != nil {
		return time.Time{}
	}
	return t
}

// OperationFile is orders/ID, to which is written what the operation is about before it is
// carried out. Who has it open for that holds its flock.
type OperationFile struct {
	ID OperationID
	record
}

// record is a file of lines that a process with its flock appends to.
type record struct{ f durable.File }

// Append adds whole lines, and makes them durable.
func (r record) Append(lines []byte) error {
	// Crash: some of the lines are there, the last of them cut perhaps, and nothing was done
	// upon them: undo finds nothing there, and OpenRecord marks a line that was cut. What was
	// done is named.
	if _, err := r.f.Write(lines); err != nil {
		return err
	}
	return r.f.Sync()
}

// Close ends the writing.
func (r record) Close() error { return r.f.Close() }

// Create makes the file of a new operation, with its first lines.
func (p *OperationsLog) Create(id OperationID, head []byte) (*OperationFile, error) {
	if _, err := p.makeDir(Orders); err != nil {
		return nil, fmt.Errorf("begin operation %s: %w", id, err)
	}
	// Crash: the beginning of an operation that names no message: nothing was done.
	f, err := p.fs.Open(Orders+"/"+string(id), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, durable.LockMode)
	if err != nil {
		return nil, fmt.Errorf("begin operation %s: %w", id, err)
	}
	o := &OperationFile{id, record{f}}
	if err = f.WaitLock(); err == nil {
		// Crash: an empty file, or its head: an operation about no message.
		err = o.Append(head)
	}
	if err == nil {
		// Crash: the operation is there or not, and nothing of it was carried out. Without this a
		// power loss could take its name later, or the directory, if that is new.
		err = errors.Join(p.fs.SyncDir(Orders), p.fs.SyncDir("."))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin operation %s: %w", id, err), f.Close())
	}
	return o, nil
}

// Continue opens the file of an operation to add to it. ErrGone: there is none;
// durable.ErrLocked: somebody is still giving it, or takes it back.
func (p *OperationsLog) Continue(id OperationID) (*OperationFile, error) {
	f, err := p.fs.Open(Orders+"/"+string(id), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("open operation %s: %w", id, gone(err))
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("open operation %s: %w", id, err), f.Close())
	}
	return &OperationFile{id, record{f}}, nil
}

// List lists the operations that are kept, the oldest first.
func (p *OperationsLog) List() ([]OperationID, error) {
	entries, err := p.fs.ReadDir(Orders)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	var list []OperationID
	for _, e := range entries {
		if id, ok := ParseOperationID(e.Name); ok {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list, nil
}

// Open opens orders/ID for reading. ErrGone: there is none.
func (p *OperationsLog) Open(id OperationID) (durable.File, error) {
	f, err := p.openRead(Orders + "/" + string(id))
	if err != nil {
		return nil, fmt.Errorf("open operation %s: %w", id, err)
	}
	return f, nil
}

// Sweep drops operations that are older than keep.
func (p *OperationsLog) Sweep(now time.Time, keep time.Duration) error {
	list, err := p.List()
	if err != nil {
		return err
	}
	for _, id := range list {
		if now.Sub(id.Time()) < keep {
			return nil
		}
		// Crash: there or gone; it was too old to be undone.
		if err := p.remove(Orders + "/" + string(id)); err != nil {
			return fmt.Errorf("drop operation %s: %w", id, err)
		}
	}
	return nil
}
