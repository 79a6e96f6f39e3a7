package conf

import (
	"reflect"
	"strings"
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// Settings are the settings of the matching clauses for one channel and host.
type Settings struct {
	thread.Policy // when mail is tried, and how much of it at once
	Agent         // what delivers it

	MinAge      time.Duration // not tried while younger
	NotBefore   string        // header field with a date, not tried before that; "": none
	OnExpiry    OnExpiry
	ReportTimes []time.Duration // ages at which a delay is reported, ascending

	MaxTA     int  // agent processes of the whole scheduler; 0: no limit
	Overfeed  int  // deliveries that a one-slot agent may have queued
	ByChannel bool // one ring per channel even if the command does not name it
	IdleMax   time.Duration
	AnswerMax time.Duration // how long a job may go without an answer; 0: no limit

	Clause string // pattern of the clause with the command, for display

	unproven int    // maxunproven as the clauses have it, below 0: half of the places
	ring     string // RingKey, if it does not depend on channel and host
	key      string // names of the bodies that matched, for RingKey
}

// Agent is how agents are started.
type Agent struct {
	Command     Command
	User, Group string // "": ours
	Nice        int
	Sources     []string // IP addresses that agents connect from
	Helo        string   // name of agents in EHLO
	TLS         string   // TLS policy for the hosts, in the syntax of the file tls
	Auth        string   // account in the file credentials that agents log in with
	Settings    string   // identifies those of zmailer.conf that the program reads
}

// OnExpiry is what is done about an expired recipient (A6).
type OnExpiry uint8

// What is done about expired recipients.
const (
	ExpiryBounce OnExpiry = iota // given up, and the sender gets a report
	ExpiryFreeze                 // it waits for an operator
	ExpiryDrop                   // given up, without a report
)

// defaultStart is how many deliveries to a new host begin at once.
const defaultStart = 5

// Defaults returns the settings of a clause without any.
func Defaults() Settings {
	return Settings{
		Policy: thread.Policy{
			Interval: time.Minute, Retries: []int{1, 1, 2, 3, 4, 8, 13, 21, 34}, Jitter: 12, Expiry: 72 * time.Hour, MaxThread: 1,
		},
		ReportTimes: []time.Duration{4 * time.Hour}, MaxTA: 100, unproven: -1, AnswerMax: 12 * time.Hour,
	}
}

// settle sets the values that depend on others.
func (s *Settings) settle() {
	if s.IdleMax == 0 {
		s.IdleMax = 3 * s.Interval
	}
	if s.Start == 0 {
		s.Start = defaultStart
	}
	if s.MaxThread > 0 {
		s.Start = min(s.Start, s.MaxThread)
	}
	s.MaxUnproven = s.maxUnproven()
	for i, n := range s.Retries {
		// Such a wait is longer than any expiry.
		if int64(n) > int64(maxWait/s.Interval) {
			s.Retries = append([]int(nil), s.Retries...)
			s.Retries[i] = max(1, int(maxWait/s.Interval))
		}
	}
	if !s.ByChannel && !s.Command.NamesChannel && !s.Command.NamesHost {
		s.ring = s.key + "\x00\x00"
	}
}

// RingKey names the ring that serves a channel and host with these settings: agents
// whose command names the channel or the host serve no other. It is the same in another
// version of the file in which the same clauses match.
func (s *Settings) RingKey(channel, host string) string {
	if s.ring != "" {
		return s.ring
	}
	b := append(make([]byte, 0, len(s.key)+len(channel)+len(host)+2), s.key...)
	b = append(b, 0)
	if s.ByChannel || s.Command.NamesChannel {
		b = append(b, channel...)
	}
	b = append(b, 0)
	if s.Command.NamesHost {
		b = append(b, strings.ToLower(host)...)
	}
	return string(b)
}

// SameAgents reports whether an agent that was started for one can serve the other.
func (s *Settings) SameAgents(t *Settings) bool {
	return reflect.DeepEqual(s.Agent, t.Agent)
}

// maxUnproven returns how many deliveries of a ring may run at once to hosts that have not
// answered: maxunproven, or half of the ring's deliveries, at least two so that one host does
// not keep another waiting. 0: no limit.
func (s *Settings) maxUnproven() int {
	if s.unproven >= 0 {
		return s.unproven
	}
	places := 0
	for _, n := range []int{s.MaxRing, s.MaxChannel, s.MaxTA * s.Command.Slots()} {
		if n > 0 && (places == 0 || n < places) {
			places = n
		}
	}
	return max((places+1)/2, min(places, 2))
}

// GiveUp returns the shorter of expiry and expiry2, 0 if there is neither.
func (s *Settings) GiveUp() time.Duration {
	if s.Expiry2 > 0 && (s.Expiry == 0 || s.Expiry2 < s.Expiry) {
		return s.Expiry2
	}
	return s.Expiry
}
