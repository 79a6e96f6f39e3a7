package mailbox

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
)

// fault is an error whose status is known where it occurs.
type fault struct {
	code status.Code
	text string
	err  error
}

func (f *fault) Error() string {
	if f.err == nil {
		return f.text
	}
	return f.text + ": " + f.err.Error()
}

func (f *fault) Unwrap() error { return f.err }

// uncertain is an error after which the message may be complete in the store.
type uncertain struct{ err error }

func (s *uncertain) Error() string { return s.err.Error() }
func (s *uncertain) Unwrap() error { return s.err }

// result turns an error into a recipient's result (K14): an error that the
// administrator has to correct defers, and is logged.
func (m *Mailbox) result(d *agent.Delivery, r *agent.Recipient, err error) agent.Result {
	code, text := classify(err)
	res := agent.Result{Outcome: code.Outcome(), Code: code, Reply: code.String() + " " + text, Text: err.Error()}
	if unsure := (*uncertain)(nil); errors.As(err, &unsure) {
		res.Uncertain = true
	}
	if res.Outcome == status.Deferred {
		m.c.Log.Warn("local-trouble", "id", d.ID(), "rcpt", r.Address, "channel", r.Channel, "status", code, "reason", err)
	}
	return res
}

// classify returns the enhanced status code of an error and what a sender may read
// of it, RFC 3463 §3.3, §3.4. No error of the system is permanent.
func classify(err error) (status.Code, string) {
	var f *fault
	if errors.As(err, &f) {
		return f.code, f.text
	}
	is := func(list ...error) bool {
		return slices.ContainsFunc(list, func(e error) bool { return errors.Is(err, e) })
	}
	switch {
	case is(unix.EDQUOT):
		return status.MailboxFull, "the mailbox is over its quota"
	case is(unix.ENOSPC):
		return status.Code{Class: 4, Subject: 3, Detail: 1}, "the mail system's disk is full"
	case is(unix.EACCES, unix.EPERM, unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EROFS, unix.ENAMETOOLONG, unix.EFBIG):
		return configTrouble, fmt.Sprintf("the mailbox cannot be written: %v", errnoOf(err))
	}
	return status.SystemTrouble, "local trouble with the mailbox"
}

func errnoOf(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}
