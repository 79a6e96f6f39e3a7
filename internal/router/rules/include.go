package rules

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// includes holds the files that :include: names, as they were read last.
type includes struct {
	now func() time.Time

	mu    sync.Mutex
	files map[string]*include
}

// include is one of them.
type include struct {
	mu     sync.Mutex // held by who looks at the file
	file   watched
	next   time.Time // when it is looked at again
	read   bool      // values are there
	values []value
	uid    uint32
	err    error // why there are none
}

// get gives the values in a file and the privilege that they act with.
func (c *includes) get(path string) ([]value, uint32, error) {
	c.mu.Lock()
	i := c.files[path]
	if i == nil {
		i = &include{file: watched{path: path, required: true}}
		c.files[path] = i
	}
	c.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	if now := c.now(); !now.Before(i.next) || i.next.Sub(now) > period {
		i.look(now)
	}
	if i.err != nil {
		return nil, 0, &Trouble{Why: "include", Err: fmt.Errorf(":include:%s: %w", path, i.err)}
	}
	return i.values, i.uid, nil
}

// look reads the file if it has changed. A list that cannot be read makes its mail
// wait, whatever was read before: nobody's subscription is to be guessed.
func (i *include) look(now time.Time) {
	i.next = now.Add(period)
	s, state, err := i.file.read(now, !i.read)
	switch {
	case err != nil:
		i.err = err
	case state == unsettled:
		i.next = now.Add(settle)
	case state == fresh:
		i.values, i.err = parseList(s)
		i.uid = s.uid
		i.read = i.err == nil
	}
}

// parseList reads a file of values: one or more a line, parted by commas.
func parseList(s source) ([]value, error) {
	var all []value
	number := 0
	for line := range strings.Lines(s.text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		values, _, err := parseValues(line)
		if err != nil {
			return nil, s.bad(number, "bad line of a list", err)
		}
		all = append(all, values...)
	}
	return all, nil
}
