package scheduler

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
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

// PrintServices reads lines "CHANNEL HOST" and answers each at once with a line that is
// a Service in JSON. For programs that tell where mail would go without scheduling it.
func (c *Conf) PrintServices(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxServiceLine)
	for lines.Scan() {
		channel, host, _ := strings.Cut(lines.Text(), " ")
		b, err := json.Marshal(c.service(channel, host))
		if err == nil {
			_, err = out.Write(append(b, '\n'))
		}
		if err != nil {
			return fmt.Errorf("print services: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("print services: read channels and hosts: %w", err)
	}
	return nil
}

// maxServiceLine bounds a channel with its host. Bytes.
const maxServiceLine = 1 << 20

// service says who serves a channel and host; it asks what the engine asks.
func (c *Conf) service(channel, host string) Service {
	s := Service{Channel: channel, Host: host, Served: true}
	switch channel {
	case channelError:
		code, text := errorHost(host)
		s.Code, s.Text = code.String(), "the sender gets a report: "+text
		return s
	case channelBitbucket:
		s.Text = "dropped, as if it were delivered"
		switch host {
		case hostExpanded:
			s.Text = "the sender is told that it was expanded"
		case hostList:
			s.Text = "the sender is told that the list has it"
		}
		return s
	}
	settings := c.Match(channel, host)
	if settings != nil && (channel != channelHold || strings.HasPrefix(settings.Clause, channelHold)) {
		cl := c.clauseOf(channel, host)
		s.Clause, s.Where, s.Text = cl.name, fmt.Sprintf("%s:%d", c.file, cl.at.line), ""
		if settings.QueueOnly {
			s.Text = "queueonly: waits until somebody asks for it"
		}
		return s
	}
	if channel == channelHold {
		if _, err := parseCondition(host); err != nil {
			s.Served, s.Text = false, "what it waits for on channel hold cannot be read: "+err.Error()+"; it expires"
			return s
		}
		s.Text = "waits for " + host + ", and is routed again then"
		return s
	}
	s.Served, s.Text = false, "no clause of "+c.file+" with a command matches "+channel+"/"+host+": it waits until one does, or it expires"
	return s
}

// clauseOf is the clause whose command serves a channel and host; nil if none does.
func (c *Conf) clauseOf(channel, host string) *clause {
	host = strings.ToLower(host)
	for i := range c.clauses {
		if cl := &c.clauses[i]; c.bodies[cl.body].last && globAny(cl.channel, channel) && globAny(cl.host, host) {
			return cl
		}
	}
	return nil
}
