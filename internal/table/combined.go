package table

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// combined is a table of several sources: a pipemap, in which each looks up what the one
// before it has, or a unionmap, which has what all of them have.
type combined struct {
	source string
	pipe   bool
	tables []Table
}

// parts returns the sources of {SOURCE, SOURCE, …}, of which one may be of several itself.
func parts(braces string) ([]string, error) {
	inner, opens := strings.CutPrefix(strings.TrimSpace(braces), "{")
	inner, closes := strings.CutSuffix(inner, "}")
	if !opens || !closes || inner == "" {
		return nil, fmt.Errorf("want {SOURCE, SOURCE}, not %q", braces)
	}
	var list []string
	depth, begin := 0, 0
	for i := range len(inner) {
		switch inner[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth < 0 {
				return nil, fmt.Errorf("a } without its { in %q", braces)
			}
		case ',':
			if depth == 0 {
				list = append(list, strings.TrimSpace(inner[begin:i]))
				begin = i + 1
			}
		}
	}
	if list = append(list, strings.TrimSpace(inner[begin:])); depth > 0 {
		return nil, fmt.Errorf("no } for a { in %q", braces)
	}
	return list, nil
}

func openCombined(s Source, o Options) (Table, error) {
	c := &combined{source: s.Text, pipe: s.Scheme == "pipemap"}
	list, err := parts(s.Rest)
	if err != nil {
		return nil, err // Parse has refused it
	}
	for _, part := range list {
		t, err := Open(part, o)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.tables = append(c.tables, t)
	}
	return c, nil
}

// Lookup asks the tables in their order. The value acts as nobody unless all that
// contributed to it have the same owner.
func (c *combined) Lookup(ctx context.Context, key string) (Value, bool, error) {
	var all []Value
	for _, t := range c.tables {
		v, ok, err := t.Lookup(ctx, key)
		switch {
		case err != nil:
			return Value{}, false, fmt.Errorf("%s: %w", c.source, err)
		case ok:
			all = append(all, v)
			if c.pipe {
				key = v.Text
			}
		case c.pipe:
			return Value{}, false, nil
		}
	}
	if len(all) == 0 {
		return Value{}, false, nil
	}
	value := all[len(all)-1]
	var texts, places []string
	for _, v := range all {
		if v.UID != value.UID {
			value.UID = Nobody
		}
		texts, places = append(texts, v.Text), append(places, v.Where)
	}
	if !c.pipe {
		value.Text = strings.Join(texts, ", ")
	}
	value.Where = strings.Join(places, ", ")
	return value, true, nil
}

// Close closes the tables.
func (c *combined) Close() error {
	var errs []error
	for _, t := range c.tables {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}
