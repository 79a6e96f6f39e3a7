package conf

import (
	"fmt"
	"strings"

	"zmailer/internal/run/glob"
	"zmailer/internal/stage/scheduler/builtin"
)

// Service is what becomes of mail for a channel and host, as scheduler.conf is now.
type Service struct {
	Channel string `json:"channel"`
	Host    string `json:"host"`
	// Served: somebody takes it, or it needs nobody. Mail that is not served waits until
	// a clause does, and then expires (Z8).
	Served bool   `json:"served"`
	Clause string `json:"clause,omitempty"` // the pattern with the command
	Where  string `json:"where,omitempty"`  // file:line of it
	Code   string `json:"code,omitempty"`   // RFC 3463, of channel error
	Text   string `json:"text,omitempty"`   // for people, where the clause does not say it all
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
		s.Text = "dropped, as if it were delivered"
		switch host {
		case builtin.Expanded:
			s.Text = "the sender is told that it was expanded"
		case builtin.List:
			s.Text = "the sender is told that the list has it"
		}
		return s
	}
	settings := c.Match(channel, host)
	if settings != nil && (channel != builtin.Hold || strings.HasPrefix(settings.Clause, builtin.Hold)) {
		cl := c.clauseOf(channel, host)
		s.Clause, s.Where, s.Text = cl.name, fmt.Sprintf("%s:%d", c.Name, cl.at.line), ""
		if settings.QueueOnly {
			s.Text = "queueonly: waits until somebody asks for it"
		}
		return s
	}
	if channel == builtin.Hold {
		if _, err := builtin.ParseCondition(host); err != nil {
			s.Served, s.Text = false, "what it waits for on channel hold cannot be read: "+err.Error()+"; it expires"
			return s
		}
		s.Text = "waits for " + host + ", and is routed again then"
		return s
	}
	s.Served, s.Text = false, "no clause of "+c.Name+" with a command matches "+channel+"/"+host+": it waits until one does, or it expires"
	return s
}

// clauseOf is the clause whose command serves a channel and host; nil if none does.
func (c *File) clauseOf(channel, host string) *clause {
	host = strings.ToLower(host)
	for i := range c.clauses {
		if cl := &c.clauses[i]; c.bodies[cl.body].last && glob.Any(cl.channel, channel) && glob.Any(cl.host, host) {
			return cl
		}
	}
	return nil
}
