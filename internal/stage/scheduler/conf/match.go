package conf

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"zmailer/internal/run/config"
	"zmailer/internal/run/glob"
)

// Match returns the settings for a channel and host: those of every clause that matches,
// from the top down, later ones overriding earlier ones, up to the first with a command.
// nil: no clause with a command matches. Many goroutines may call it.
func (c *File) Match(channel, host string) *Settings {
	s, served := c.match(channel, host)
	if !served {
		return nil
	}
	return s
}

// MatchAny is Match that returns settings also where no clause with a command matches.
func (c *File) MatchAny(channel, host string) *Settings {
	s, _ := c.match(channel, host)
	return s
}

func (c *File) match(channel, host string) (s *Settings, served bool) {
	host = strings.ToLower(host)
	var key [64]byte
	k := key[:0]
	var last *clause
	for i := range c.clauses {
		cl := &c.clauses[i]
		if !glob.Any(cl.channel, channel) || !glob.Any(cl.host, host) {
			continue
		}
		k = append(k, byte(cl.body>>8), byte(cl.body))
		if c.bodies[cl.body].last {
			last = cl
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.cache[string(k)]; s != nil {
		return s, last != nil
	}
	s = c.build(k)
	if last != nil {
		s.Clause = last.name
	}
	c.cache[string(k)] = s
	return s, last != nil
}

// build combines the settings of some bodies.
func (c *File) build(bodies []byte) *Settings {
	s := Defaults()
	for i := 0; i < len(bodies); i += 2 {
		b := &c.bodies[int(bodies[i])<<8|int(bodies[i+1])]
		for _, set := range b.sets {
			set(&s)
		}
		s.key += b.name + "\x01"
	}
	s.settle()
	if c.fingerprint != nil && len(s.Command.Words) > 0 {
		s.Settings = c.fingerprint(s.Command.Words[0])
	}
	return &s
}

// Load reads scheduler.conf, the built-in one if there is none, and the texts of reports.
// ${NAME} in a command is a variable of zmailer.conf or of the environment. root reports
// whether agents are started by root, and so may be any user.
func Load(c *config.Config, root bool) (*File, error) {
	text, from, err := c.Read("scheduler.conf")
	if err != nil {
		return nil, err
	}
	f, err := Parse(from, text, func(name string) (string, bool) {
		if v := c.String(name, ""); v != "" {
			return v, true
		}
		return os.LookupEnv(name)
	})
	if err != nil {
		return nil, err
	}
	f.fingerprint = c.Fingerprint
	return f, errors.Join(append(f.CheckIdentities(root), f.Reports.LoadTexts(c)...)...)
}

// WhatIf is a configuration with clauses that count last, whatever matches before them,
// for simulations: "smtp/* maxring=50".
type WhatIf struct {
	conf *File
	over *File // nil: nothing is different

	cache map[string]*Settings
}

// NewWhatIf reads the clauses, one a line. The errors are *config.Error.
func NewWhatIf(c *File, text string) (*WhatIf, error) {
	w := &WhatIf{conf: c, cache: map[string]*Settings{}}
	if strings.TrimSpace(text) == "" {
		return w, nil
	}
	var err error
	w.over, err = Parse("--set", []byte(text), func(string) (string, bool) { return "", false })
	return w, err
}

// match is Conf.Match under the clauses.
func (w *WhatIf) Match(channel, host string) *Settings {
	s := w.conf.Match(channel, host)
	if s == nil || w.over == nil {
		return s
	}
	host = strings.ToLower(host)
	key := s.key
	var sets []setting
	for i := range w.over.clauses {
		cl := &w.over.clauses[i]
		if glob.Any(cl.channel, channel) && glob.Any(cl.host, host) {
			key += "\x02" + strconv.Itoa(cl.body)
			sets = append(sets, w.over.bodies[cl.body].sets...)
		}
	}
	if len(sets) == 0 {
		return s
	}
	if t := w.cache[key]; t != nil {
		return t
	}
	t := *s
	t.key, t.ring = key, ""
	for _, set := range sets {
		set(&t)
	}
	t.settle()
	w.cache[key] = &t
	return &t
}
