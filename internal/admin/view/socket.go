package view

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"zmailer/internal/disk/socket"
	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// SocketPatience is how long the scheduler may take to take a connection and to begin an
// answer.
const SocketPatience = 10 * time.Second

// ErrNoScheduler means that there is no scheduler to ask.
var ErrNoScheduler = errors.New("no scheduler is running, so there are no threads; zmctl queue lists the mail on disk, zmctl start starts the daemons")

// SchedulerClient is a connection to the scheduler's query socket.
type SchedulerClient struct {
	*mailq.Client
	Conn net.Conn
}

func (a *SchedulerClient) Close() { _ = a.Conn.Close() }

// CallScheduler connects to the scheduler that serves a postoffice.
func CallScheduler(ctx context.Context, dir string) (*SchedulerClient, error) {
	ctx, cancel := context.WithTimeout(ctx, SocketPatience)
	defer cancel()
	conn, err := socket.Dial(ctx, filepath.Join(dir, postoffice.QuerySocket))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNoScheduler
	case errors.Is(err, fs.ErrPermission):
		return nil, errors.New("the scheduler answers to root and to the owner of the postoffice: " + err.Error())
	case err != nil:
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(SocketPatience)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c, err := mailq.NewClient(conn)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if errors.Is(err, syscall.ECONNRESET) {
		err = errors.New("the scheduler has too many clients; try again")
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &SchedulerClient{c, conn}, nil
}
