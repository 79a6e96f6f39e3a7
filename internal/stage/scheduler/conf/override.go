package conf

import (
	"strconv"
	"strings"

	"zmailer/internal/run/glob"
)

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
