package conf

import (
	"fmt"
	"strings"

	"zmailer/internal/run/glob"
	"zmailer/internal/stage/scheduler/builtin"
)

// Service is what the current scheduler.conf does with mail for a channel and host.
type Service struct {
	Channel string `json:"channel"`
	Host    string `json:"host"`
	// Served: an agent takes it, or it needs none. Other mail waits for a clause until it
	// expires (Z8).
	Served bool   `json:"served"`
	Clause string `json:"clause,omitempty"` // the pattern with the command
	Where  string `json:"where,omitempty"`  // file:line of it
	Code   string `json:"code,omitempty"`   // RFC 3463, of channel error
	Text   string `json:"text,omitempty"`   // explanation where the clause is not enough
}

// Service reports who serves a channel and host, as the engine decides it.
func (c *File) Service(channel, host string) Service {
	s := Service{Channel: channel, Host: host, Served: true}
	switch channel {
	case builtin.Error:
		code, text := builtin.ErrorHost(host)
		s.Code, s.Text = code.String(), "the sender gets a report: "+text
		return s
	case builtin.Bitbucket:
		s.Text = "dropped, counted as delivered"
		switch host {
		case builtin.Expanded:
			s.Text = "reported to the sender as expanded"
		case builtin.List:
			s.Text = "reported to the sender as taken by the list"
		}
		return s
	}
	settings := c.Match(channel, host)
	if settings != nil && (channel != builtin.Hold || strings.HasPrefix(settings.Clause, builtin.Hold)) {
		cl := c.clauseOf(channel, host)
		s.Clause, s.Where, s.Text = cl.name, fmt.Sprintf("%s:%d", c.Name, cl.at.line), ""
		if settings.QueueOnly {
			s.Text = "queueonly: waits until it is requested (ETRN, zmctl flush)"
		}
		return s
	}
	if channel == builtin.Hold {
		if _, err := builtin.ParseCondition(host); err != nil {
			s.Served, s.Text = false, "invalid condition of channel hold: "+err.Error()+"; it waits until it expires"
			return s
		}
		s.Text = "waits for " + host + ", then it is routed again"
		return s
	}
	s.Served, s.Text = false, "no clause of "+c.Name+" with a command matches "+channel+"/"+host+": it waits for one until it expires"
	return s
}

// clauseOf returns the clause whose command serves a channel and host; nil: none.
func (c *File) clauseOf(channel, host string) *clause {
	host = strings.ToLower(host)
	for i := range c.clauses {
		if cl := &c.clauses[i]; c.bodies[cl.body].last && glob.Any(cl.channel, channel) && glob.Any(cl.host, host) {
			return cl
		}
	}
	return nil
}
