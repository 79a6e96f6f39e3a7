package query

import (
	"io"
	"time"

	"zmailer/internal/wire/mailq"
)

// follow writes events until the client writes anything or goes.
func (s *session) follow() error {
	l := s.q.Stream.Listen()
	defer l.Leave()
	if err := s.say(mailq.Follows); err != nil {
		return err
	}
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.ReadAtLeast(s.in, make([]byte, 1), 1)
	}()
	defer func() {
		_ = s.conn.Close()
		<-gone
	}()
	for {
		for _, e := range l.Take() {
			if err := s.write(mailq.AppendLine(nil, string(e.JSON()))); err != nil {
				return err
			}
		}
		if err := s.out.Flush(); err != nil {
			return err
		}
		select {
		case <-l.More:
		case <-gone:
			_ = s.say(mailq.End)
			_ = s.out.Flush()
			return errBye
		case <-s.q.ctx.Done():
			_ = s.say(mailq.End)
			_ = s.out.Flush()
			return errStopped
		}
	}
}
