package engine

import (
	"errors"
	"strings"
	"sync"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/thread"
)

// ContentFilter is the next hop of CONTENTFILTER, for the alarm while it takes no mail.
type ContentFilter struct {
	channel, host string
	away          *config.Outage
	failing       bool // of the engine's goroutine

	noting sync.Mutex
	mu     sync.Mutex
	last   error // of the last attempt; nil: it has answered
}

// NewContentFilter names the filter at a host of a channel; a nil keeper raises nothing.
func NewContentFilter(k config.Keeper, channel, host string) *ContentFilter {
	return &ContentFilter{channel: channel, host: host, away: config.NewOutage(k, config.Backend{Name: "contentfilter:" + channel + "!" + host,
		Remedy: "start the content filter; zmctl thread " + channel + "/" + host + " shows the mail that waits for it, zmctl retry --host " + host + " sends it at once"})}
}

func (f *ContentFilter) is(t *thread.Thread) bool {
	return f != nil && t.Channel() == f.channel && strings.EqualFold(t.Host, f.host)
}

// heard notes the end of an attempt, with do on another goroutine. trouble: the filter has answered
// nothing else.
func (f *ContentFilter) heard(do func(func()), trouble bool, text string) {
	if !trouble && !f.failing {
		return
	}
	f.mu.Lock()
	f.last = nil
	if trouble {
		f.last = errors.New(text)
	}
	f.mu.Unlock()
	f.failing = trouble
	// Whichever of several is called last, it notes what was heard last.
	do(func() {
		f.noting.Lock()
		defer f.noting.Unlock()
		f.mu.Lock()
		last := f.last
		f.mu.Unlock()
		f.away.Note(last)
	})
}
