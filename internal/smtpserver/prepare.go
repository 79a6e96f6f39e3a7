package smtpserver

import (
	"fmt"
	"runtime/debug"
)

// prepares tells a connection that something has to be waited for before the greeting.
func (s *server) prepares(w *wire) bool { return false }

// prepare does what has to be waited for, then gives the connection to go-smtp.
// Nothing is told to a client that fails here: no greeting could reach it.
func (s *server) prepare(w *wire) {
	defer func() {
		if r := recover(); r != nil {
			s.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic serving %v: %v\n%s", w.RemoteAddr(), r, debug.Stack()))
			_ = w.Close()
		}
	}()
	if !s.admits(w) {
		return
	}
	if !w.entrance.enter(w) {
		_ = w.Close()
	}
}

// admits decides on a connection whose client is known, before the greeting. One that
// is not admitted is told why and closed (RFC 5321 §3.1 allows 421 and 554 in place of
// the greeting).
func (s *server) admits(w *wire) bool {
	return true
}
