package top

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// counted is a stage with the cost of counting it.
type counted struct {
	Stage
	cost time.Duration
}

// share is which part of the time may go into counting one directory: one that takes long
// is counted less often.
const share = 20

// standing counts what waits in each directory, and takes what the scheduler says of the
// queue.
func (s *Sampler) standing(x *Sample, now time.Time) {
	routers, err := s.po.Router.Dirs()
	if err != nil {
		routers = []string{postoffice.Router}
	}
	names := append(s.po.Submissions.Inboxes(), routers...)
	names = append(names, StageQueue, postoffice.Deferred, postoffice.Freezer, postoffice.Postman)
	for _, name := range names {
		c := s.stages[name]
		if c == nil {
			c = &counted{}
			s.stages[name] = c
		}
		live := name == StageQueue && x.Scheduler != nil
		if live || c.Seen.IsZero() || now.Sub(c.Seen) >= share*c.cost {
			began := time.Now()
			c.Stage = s.count(name, x)
			c.Seen, c.cost = now, time.Since(began)
		}
		if c.Problem == "" || c.Messages > 0 || !strings.HasPrefix(c.Problem, absent) {
			stage := c.Stage
			stage.age(now)
			x.Stages = append(x.Stages, stage)
		}
	}
}

// absent is the problem of a directory that is not there.
const absent = "not there"

func (t *Stage) age(now time.Time) {
	if !t.Oldest.IsZero() {
		t.OldestSeconds = int64(max(now.Sub(t.Oldest), 0) / time.Second)
	}
}

func (s *Sampler) count(name string, x *Sample) Stage {
	t := Stage{Name: name}
	switch {
	case name == StageQueue && x.Scheduler != nil:
		t.Messages, t.Recipients = x.Scheduler.Messages, x.Scheduler.Recipients
		for i := range x.Threads {
			if at := x.Threads[i].Oldest; !at.IsZero() && (t.Oldest.IsZero() || at.Before(t.Oldest)) {
				t.Oldest = at
			}
		}
	case name == StageQueue:
		if err := s.po.Queue.List(func(string) error { t.Messages++; return nil }); err != nil {
			t.Problem = err.Error()
		}
	default:
		st, err := s.po.Standing(name)
		t.Messages, t.Oldest = st.Count, st.Oldest
		if gone(err) {
			t.Problem = absent
		} else if err != nil {
			t.Problem = err.Error()
		}
	}
	return t
}

// lifeEvery is how often it is looked whether a router lives.
const lifeEvery = 2 * time.Second

// alive reports whether a router is running: one of the numbers in owners/ is its own.
func (s *Sampler) alive(x *Sample, now time.Time) {
	if s.checked.IsZero() || now.Sub(s.checked) >= lifeEvery {
		s.checked, s.router = now, s.routerLives()
	}
	x.Router = s.router
}

func (s *Sampler) routerLives() (lives bool) {
	fsys := s.po.FS()
	_ = durable.ReadDirFunc(fsys, postoffice.Owners, func(part []durable.Entry) error {
		for _, e := range part {
			n, err := strconv.Atoi(e.Name)
			if err != nil || lives {
				continue
			}
			f, err := fsys.Open(postoffice.Owners+"/"+e.Name, os.O_RDONLY, 0)
			if err != nil {
				continue
			}
			b, err := io.ReadAll(io.LimitReader(f, 100))
			_ = f.Close()
			if err == nil && strings.HasPrefix(string(b), "router ") {
				lives, _ = s.po.Owners.Alive(n)
			}
		}
		return nil
	}) // errors of listing are in the stages
	return lives
}
