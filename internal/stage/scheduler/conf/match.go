package conf

import (
	"errors"
	"strings"
)

// Match gives the settings for a channel and host: those of every clause that
// matches, from the top down, later ones over earlier ones, up to the first with a
// command. nil: no clause with a command matches, the channel is unknown. Many
// goroutines may call it.
func (c *File) Match(channel, host string) *Settings {
	s, served := c.match(channel, host)
	if !served {
		return nil
	}
	return s
}

// MatchAny is Match that also gives the settings of a channel and host that no clause
// with a command matches.
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
		if !globAny(cl.channel, channel) || !globAny(cl.host, host) {
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

// build puts together the settings of some bodies.
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

// glob matches a shell pattern without braces: * ? [a-z] [!a-z] and \ before any of
// them. * matches / too: hosts may be paths. Its time is at most the product of the
// lengths: it goes back to the last * only.
func glob(pattern, s string) bool {
	star, retry := "", ""
	starred := false
	for {
		if strings.HasPrefix(pattern, "*") {
			pattern = pattern[1:]
			star, retry, starred = pattern, s, true
			continue
		}
		if n, ok := globByte(pattern, s); ok {
			pattern, s = pattern[n:], s[1:]
			continue
		}
		if pattern == "" && s == "" {
			return true
		}
		if !starred || retry == "" {
			return false
		}
		retry = retry[1:]
		pattern, s = star, retry
	}
}

// globByte matches the first byte of s and gives the length of what matched it.
func globByte(pattern, s string) (n int, ok bool) {
	if pattern == "" || s == "" {
		return 0, false
	}
	switch pattern[0] {
	case '?':
		return 1, true
	case '[':
		end := classEnd(pattern)
		return end + 1, inClass(pattern[1:end], s[0])
	case '\\':
		return 2, pattern[1] == s[0]
	}
	return 1, pattern[0] == s[0]
}

// expandBraces writes out {one,two}.
func expandBraces(pattern string) []string {
	open := strings.IndexByte(pattern, '{')
	if open < 0 {
		return []string{pattern}
	}
	end := open + strings.IndexByte(pattern[open:], '}')
	var list []string
	for word := range strings.SplitSeq(pattern[open+1:end], ",") {
		list = append(list, expandBraces(pattern[:open]+word+pattern[end+1:])...)
	}
	return list
}

func globAny(patterns []string, s string) bool {
	for _, p := range patterns {
		if glob(p, s) {
			return true
		}
	}
	return false
}

// classEnd is where the ] of a class stands; the first character may be one.
func classEnd(pattern string) int {
	i := 1
	if i < len(pattern) && pattern[i] == '!' {
		i++
	}
	if i+1 < len(pattern) {
		if n := strings.IndexByte(pattern[i+1:], ']'); n >= 0 {
			return i + 1 + n
		}
	}
	return -1
}

func inClass(class string, c byte) bool {
	class, not := strings.CutPrefix(class, "!")
	for i := 0; i < len(class); i++ {
		lo, hi := class[i], class[i]
		if i+2 < len(class) && class[i+1] == '-' {
			hi = class[i+2]
			i += 2
		}
		if lo <= c && c <= hi {
			return !not
		}
	}
	return not
}

// checkGlob tells what is wrong with a pattern; glob and expandBraces want one that
// passed.
func checkGlob(pattern string) error {
	words := 1
	for len(pattern) > 0 {
		n := 1
		switch pattern[0] {
		case '[':
			if n = classEnd(pattern) + 1; n == 0 {
				return errors.New("[ without ]")
			}
			if strings.ContainsAny(pattern[:n], "{}") {
				return errors.New("{ and } cannot stand in [ ]")
			}
		case '{':
			end := strings.IndexByte(pattern, '}')
			if end < 0 {
				return errors.New("{ without }")
			}
			if strings.ContainsAny(pattern[1:end], `{*?[]\`) {
				return errors.New("only plain words may stand in { }")
			}
			if words *= strings.Count(pattern[:end], ",") + 1; words > 1000 {
				return errors.New("more than 1000 combinations")
			}
			n = end + 1
		case '\\':
			if n = 2; len(pattern) < 2 {
				return errors.New(`\ at the end`)
			}
			if strings.ContainsAny(pattern[:n], "{}") {
				return errors.New(`{ and } cannot be meant as such`)
			}
		}
		pattern = pattern[n:]
	}
	return nil
}
