package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/wire/mailq"
)

// socketPatience is how long the scheduler may take to take a connection and to begin an
// answer.
const socketPatience = 10 * time.Second

// errNobodyAnswers means that there is no scheduler to ask.
var errNobodyAnswers = errors.New("no scheduler runs here, so there are no threads; zmctl queue shows what waits on the disk, zmctl start starts the daemons")

// asker is a connection to the scheduler's query socket.
type asker struct {
	*mailq.Client
	conn net.Conn
}

func (a *asker) close() { _ = a.conn.Close() }

// callScheduler connects to the scheduler that serves a postoffice.
func callScheduler(ctx context.Context, dir string) (*asker, error) {
	ctx, cancel := context.WithTimeout(ctx, socketPatience)
	defer cancel()
	conn, err := postoffice.DialSocket(ctx, filepath.Join(dir, postoffice.QuerySocket))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, errNobodyAnswers
	case errors.Is(err, fs.ErrPermission):
		return nil, errors.New("the scheduler answers to root and to the owner of the postoffice: " + err.Error())
	case err != nil:
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(socketPatience)); err != nil {
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
	return &asker{c, conn}, nil
}

// caller opens the postoffice and calls its scheduler.
func caller(c *cli.Context) (*asker, error) {
	settings, err := config.FromCLI(c)
	if err != nil {
		return nil, err
	}
	return callScheduler(c.Context, settings.PostOffice())
}
