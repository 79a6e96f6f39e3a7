package submit

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
)

// Exit codes of sysexits(3) that config has no name for.
const (
	exitDataErr = 65 // an address
	exitNoInput = 66 // standard input cannot be read
)

// Error is why a message was not accepted.
type Error struct {
	Code   int    // exit code, sysexits(3)
	Advice string // what to do; may be empty
	Err    error
}

func (e *Error) Error() string {
	s := e.Err.Error()
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// ExitCode makes it a cli.ExitCoder.
func (e *Error) ExitCode() int { return e.Code }

var errInterrupted = &Error{Code: config.ExitTempFail, Err: errors.New("interrupted; nothing was accepted")}

func usage(err error) error {
	return &Error{Code: config.ExitUsage, Err: err, Advice: "see --help"}
}

func errNoRecipient(fromHeader bool) error {
	if fromHeader {
		return errors.New("no recipient in To, Cc or Bcc")
	}
	return errors.New("no recipient; name them as arguments, or use -t for those in the header")
}

// oneLineErrors joins errors in one line, as programs expect it on standard error.
func oneLineErrors(errs []error) error {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// inputCode returns the exit code for an error of reading standard input: there is none
// at all, or its device fails.
func inputCode(err error) int {
	if errors.Is(err, unix.EIO) {
		return config.ExitIOErr
	}
	return exitNoInput
}

// failure gives an error its exit code. What is not known to last is temporary.
func failure(err error) error {
	if err == nil {
		return nil
	}
	if known := (*Error)(nil); errors.As(err, &known) {
		return known
	}
	switch {
	case errors.Is(err, lease.ErrNoLease):
		return &Error{Code: config.ExitTempFail, Err: err, Advice: "try again later"}
	case errors.Is(err, postoffice.ErrNotPostoffice), errors.Is(err, postoffice.ErrCrossDevice):
		return &Error{Code: config.ExitConfig, Err: err, Advice: "POSTOFFICE or --postoffice names the directory"}
	case errors.Is(err, fs.ErrPermission):
		// The directories are the postmaster's to mend, not the sender's: 77 would have a
		// caller give the message up.
		return &Error{Code: config.ExitTempFail, Err: err,
			Advice: "nothing was accepted; public/ must have mode 1733 for every user to submit: see zmctl check --repair"}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &Error{Code: config.ExitTempFail, Err: err, Advice: "nothing was accepted; make room and try again"}
	case errors.Is(err, unix.EFBIG):
		return &Error{Code: config.ExitTempFail, Err: err, Advice: "nothing was accepted; the limit of file sizes (ulimit -f) is too low"}
	case errors.Is(err, postoffice.ErrOccupied):
		return &Error{Code: config.ExitTempFail, Err: err, Advice: "nothing was accepted"}
	case errors.Is(err, fs.ErrNotExist):
		return &Error{Code: config.ExitConfig, Err: err, Advice: "POSTOFFICE or --postoffice names the directory; zmctl init makes one"}
	}
	return &Error{Code: config.ExitTempFail, Err: err, Advice: "nothing was accepted; try again"}
}
