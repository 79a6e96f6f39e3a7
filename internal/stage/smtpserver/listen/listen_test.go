package listen

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/session"
)

// shortListener has no descriptors a few times, then none at all are left to accept.
type shortListener struct {
	net.Listener
	errs chan error
}

func (l *shortListener) Accept() (net.Conn, error) { return nil, <-l.errs }
func (l *shortListener) Close() error              { return nil }
func (l *shortListener) Addr() net.Addr            { return &net.TCPAddr{} }

func TestShortageOfDescriptorsIsLoggedOnce(t *testing.T) {
	errs := make(chan error, 4)
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ECONNABORTED, unix.EBADF} {
		errs <- &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", e)}
	}
	var log bytes.Buffer
	l := newListener(&shortListener{errs: errs}, session.RoleMX, "", slog.New(slog.NewTextHandler(&log, nil)))
	accept := func(net.Conn) { t.Error("accepted") }
	if err := l.Serve(accept); !errors.Is(err, unix.EBADF) {
		t.Errorf("got %v, want the error that does not pass", err)
	}
	assert.Equal(t, strings.Count(log.String(), "accept-trouble"), 1)
	errs <- &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	assert.Must(t, l.Close())
	if err := l.Serve(accept); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v from a closed listener", err)
	}
}
