package conf

import (
	"strings"

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
	return &s
}
