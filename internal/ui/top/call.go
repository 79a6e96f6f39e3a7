package top

import (
	"context"
	"errors"
	"time"

	"zmailer/internal/admin/view"
)

// answerTime is how long the scheduler may take for an answer.
const answerTime = 10 * time.Second

func dial(ctx context.Context, dir string) (*view.SchedulerClient, error) {
	c, err := view.CallScheduler(ctx, dir)
	if errors.Is(err, view.ErrNoScheduler) {
		return nil, errors.New("not running; zmctl start starts the daemons")
	}
	if err != nil {
		return nil, err
	}
	return c, patience(c)
}

// patience sets the time for one answer.
func patience(c *view.SchedulerClient) error {
	return c.Conn.SetDeadline(time.Now().Add(answerTime))
}

// hangUp has the next sample call again.
func (s *Sampler) hangUp() {
	if s.call != nil {
		s.call.Close()
		s.call = nil
	}
}
