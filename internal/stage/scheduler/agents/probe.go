package agents

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/conf"
)

// confKept is how long scheduler.conf is used without another look.
const confKept = 10 * time.Second

// Prober returns what starts a process that asks next hops for recipients: the agent that
// scheduler.conf has for a channel and host, with its arguments changed by mode.
func Prober(c *config.Config, mode func(argv []string) ([]string, error)) func(channel, host string) (argv, env []string, err error) {
	var mu sync.Mutex
	var file *conf.File
	var read time.Time
	load := func() (*conf.File, error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); file == nil || now.Sub(read) >= confKept || now.Before(read) {
			// Agents of other users run as ours: that they could not be started is no error here.
			f, err := conf.Load(c, true)
			if f == nil {
				return nil, err
			}
			file, read = f, now
		}
		return file, nil
	}
	return func(channel, host string) ([]string, []string, error) {
		f, err := load()
		if err != nil {
			return nil, nil, err
		}
		s := f.Match(channel, host)
		if s == nil {
			return nil, nil, fmt.Errorf("no clause of scheduler.conf with a command matches %s/%s", channel, host)
		}
		l := LaunchOf(s, channel, host).under(c.File, "smtpserver")
		if len(l.Argv) == 0 {
			return nil, nil, errors.New("the clause " + s.Clause + " has no command")
		}
		if l.Argv[0], err = conf.FindProgram(l.Argv[0]); err != nil {
			return nil, nil, err
		}
		argv, err := mode(l.Argv)
		return argv, append(l.Env, "POSTOFFICE="+c.PostOffice()), err
	}
}
