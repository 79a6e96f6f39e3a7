package smtpclient

import "time"

// pace is what a connection has shown of the way to the server and of its speed: how
// many messages must be on the way at once to keep it busy. More would only wait for
// each other there, while other connections could serve them; for a server that takes
// longer over a message than the way takes, it is one.
type pace struct {
	way  time.Duration // to the server and back, the shortest seen; 0: not known
	each time.Duration // what a message takes there, of late
	some bool          // each is known
	last time.Time     // of the last final answer
}

// trip notes a question that was answered, and when.
func (p *pace) trip(took time.Duration) {
	if p.way == 0 || took < p.way {
		p.way = max(took, 1)
	}
}

// answered notes a final answer to a message whose last byte went out at since. The
// server could turn to it when it had come, and when the one before it was done.
func (p *pace) answered(since, now time.Time) {
	begin := since.Add(p.way)
	if p.last.After(begin) {
		begin = p.last
	}
	p.last = now
	took := max(now.Sub(begin), 0)
	if !p.some {
		p.each, p.some = took, true
		return
	}
	p.each += (took - p.each) / 4
}

// window is how many messages may be on the way, at most so many.
func (p *pace) window(most int) int {
	if !p.some {
		return 1
	}
	if p.way >= time.Duration(most)*p.each {
		return most
	}
	return max(1, min(most, 1+int(p.way/p.each)))
}
