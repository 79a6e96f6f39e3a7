package config

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Keeper is notified of each file that a program reads beside zmailer.conf. A daemon has one
// that saves what could be used (package lastgood), zmctl check-config one that collects
// warnings. A nil Keeper does nothing. Many goroutines may use one.
type Keeper interface {
	// Good saves the content of a file that can be used, and ends what Bad began. Warnings
	// are about it. A nil text is a file that need not be there, and is not.
	Good(path string, text []byte, uid uint32, warnings error)
	// Bad notes that a file cannot be used now. held: the program goes on with an older
	// content.
	Bad(path string, reason error, held bool)
	// Away notes that what is no file, such as a policy service, gives no answer since a time, until
	// Good or the end of this process. remedy is what an operator does.
	Away(name string, since time.Time, reason error, remedy string)
	// OutageAfter returns how long that has to last before Away is called; negative: it never is.
	OutageAfter() time.Duration
	// Last returns what Good saved last, also before this program was started; nil: nothing.
	Last(path string) *Kept
	// Names notes that settings name what is not a file, such as a policy service, before it is asked.
	Names(name string)
	// Expires notes when a certificate ends.
	Expires(path string, at time.Time)
	// Open opens a key or a file of passwords that this process may not read, through a helper
	// that may (package keys). ErrNotHanded: no helper runs.
	Open(path string) (*os.File, error)
	// Attach gives a program that is about to be started a connection to that helper, for one file
	// of Open and those that it names. Without a helper it does nothing. done is called when the
	// program was started.
	Attach(cmd *exec.Cmd, path string) (done func(), err error)
}

// ErrNotHanded means that no process hands over files that this one may not read.
var ErrNotHanded = errors.New("no process hands this file over")

// OpenSecret opens a key or a file of passwords for reading, by the keeper where this process may
// not. It does not wait for a pipe's other end.
func OpenSecret(k Keeper, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if k == nil || !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	handed, kerr := k.Open(path)
	if errors.Is(kerr, ErrNotHanded) {
		return nil, err
	}
	return handed, kerr
}

// StatSecret is os.Stat for a file that OpenSecret opens.
func StatSecret(k Keeper, path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	if k == nil || !errors.Is(err, fs.ErrPermission) {
		return info, err
	}
	f, err := OpenSecret(k, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// Kept is the content of a file as it was when it could be used.
type Kept struct {
	Text []byte
	UID  uint32    // its owner
	Time time.Time // when it was read
}

// SetKeeper has the files of the programs that read these settings reported to k.
func (c *Config) SetKeeper(k Keeper) { c.keeper = k }

// Keeper returns what SetKeeper has set; nil: nothing.
func (c *Config) Keeper() Keeper { return c.keeper }

// nobody is the owner of a file whose owner is unknown.
const nobody = 65534

// ownerOf returns the owner of a file.
func ownerOf(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return nobody
}

// LogWarnings logs what is hardly meant in a file that can be used.
func LogWarnings(log *slog.Logger, file string, warnings error) {
	for _, w := range Errors(warnings) {
		log.Warn("table-warning", "file", file, "reason", w)
	}
}
