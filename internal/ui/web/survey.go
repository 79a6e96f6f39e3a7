package web

import (
	"context"
	"sync"
	"time"
)

const (
	// surveyLeast is how long a survey is good for, at least; one that took long is good
	// for surveyTimes as long.
	surveyLeast = 2 * time.Second
	surveyTimes = 5
)

// surveyor has surveys made, one at a time, and gives the last one while it is fresh.
type surveyor struct {
	source Source
	now    func() time.Time
	mu     sync.Mutex
	last   *Survey
	good   time.Time // until then
}

func (s *surveyor) get(ctx context.Context) (*Survey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := s.now()
	if s.last != nil && began.Before(s.good) {
		return s.last, nil
	}
	v, err := s.source.Survey(ctx)
	if err != nil {
		return nil, err
	}
	end := s.now()
	s.last, s.good = v, end.Add(max(surveyLeast, surveyTimes*end.Sub(began)))
	return v, nil
}

// fresh has the next survey made anew: something was changed.
func (s *surveyor) fresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = nil
}
