package top

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// answerTime is how long the scheduler may take for an answer.
const answerTime = 10 * time.Second

// call is a connection to the scheduler's query socket.
type call struct {
	*mailq.Client
	conn net.Conn
}

func dial(ctx context.Context, dir string) (*call, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := postoffice.DialSocket(ctx, filepath.Join(dir, postoffice.QuerySocket))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, errors.New("no scheduler runs here; zmctl start starts the daemons")
	case errors.Is(err, fs.ErrPermission):
		return nil, errors.New("it answers to root and to the owner of the postoffice")
	case err != nil:
		return nil, fmt.Errorf("call the scheduler: %w", err)
	}
	c := &call{conn: conn}
	if err = c.patience(); err == nil {
		c.Client, err = mailq.NewClient(conn)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("call the scheduler: %w", err), conn.Close())
	}
	return c, nil
}

// patience gives it the time for one answer.
func (c *call) patience() error { return c.conn.SetDeadline(time.Now().Add(answerTime)) }

func (c *call) close() { _ = c.conn.Close() } // nothing is under way

// hangUp has the next sample call again.
func (s *Sampler) hangUp() {
	if s.call != nil {
		s.call.close()
		s.call = nil
	}
}
