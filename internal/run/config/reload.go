package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Programs returns the programs that read the setting.
func (v Variable) Programs() (names []string) {
	for _, w := range strings.Fields(v.by) {
		names = append(names, strings.TrimSuffix(w, "!"))
	}
	return names
}

// Restart returns those of Programs to which a reload does not apply it: they have to be started
// again.
func (v Variable) Restart() (names []string) {
	for _, w := range strings.Fields(v.by) {
		if name, ok := strings.CutSuffix(w, "!"); ok {
			names = append(names, name)
		}
	}
	return names
}

// Agents are the programs that the scheduler starts. It replaces those of which a setting has
// changed, when they have finished their deliveries.
func Agents() []string { return []string{"ta-smtp", "ta-mailbox"} }

// Change is what differs between two versions of zmailer.conf for one program. Applied and
// Restart are names of settings, in the order of Variables.
type Change struct {
	Applied []string // a reload applies them
	Restart []string // they hold when the program is started again
}

// Empty reports whether nothing is different.
func (c Change) Empty() bool { return len(c.Applied)+len(c.Restart) == 0 }

// ChangeFor returns which of some settings concern a program, and how. Those of its agents are
// the scheduler's.
func ChangeFor(program string, names []string) (c Change) {
	readers := []string{program}
	if program == "scheduler" {
		readers = append(readers, Agents()...)
	}
	for _, v := range Variables() {
		if !slices.Contains(names, v.Name) {
			continue
		}
		read, restart := v.Programs(), v.Restart()
		concerns := func(list []string) bool {
			return slices.ContainsFunc(readers, func(p string) bool { return slices.Contains(list, p) })
		}
		switch {
		case concerns(restart):
			c.Restart = append(c.Restart, v.Name)
		case concerns(read):
			c.Applied = append(c.Applied, v.Name)
		}
	}
	return c
}

// Source returns the text of File as it was read.
func (c *Config) Source() []byte { return c.source }

// Empty reports whether File sets nothing.
func (c *Config) Empty() bool {
	for _, v := range c.values {
		if v.line > 0 {
			return false
		}
	}
	return true
}

// Lines returns some settings as lines of zmailer.conf; those that are not set are left out.
func (c *Config) Lines(names ...string) (lines []byte) {
	for _, name := range names {
		if v, set := c.values[name]; set {
			lines = fmt.Appendf(lines, "%s=%s\n", name, quote(v.text))
		}
	}
	return lines
}

// ChangedFrom returns the names of the settings whose values differ from those in old, in the
// order of Variables.
func (c *Config) ChangedFrom(old *Config) (names []string) {
	for _, v := range Variables() {
		if now := c.values[v.Name]; !now.fixed && now.text != old.values[v.Name].text {
			names = append(names, v.Name)
		}
	}
	return names
}

// Keeping returns the settings of c with the values that some of them have in old.
func (c *Config) Keeping(old *Config, names []string) *Config {
	mixed := *c
	mixed.values = maps.Clone(c.values)
	for _, name := range names {
		if v, set := old.values[name]; set {
			mixed.values[name] = v
		} else {
			delete(mixed.values, name)
		}
	}
	return &mixed
}

// Fingerprint identifies the values of the settings that a program reads. A program that
// is not part of this system may read any.
func (c *Config) Fingerprint(program string) string {
	program = filepath.Base(program)
	all := Variables()
	ours := slices.ContainsFunc(all, func(v Variable) bool { return slices.Contains(v.Programs(), program) })
	h := sha256.New()
	for _, v := range all {
		if text := c.values[v.Name].text; text != "" && (!ours || slices.Contains(v.Programs(), program)) {
			fmt.Fprintf(h, "%s=%q\n", v.Name, text)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// OnRead has f called with the name of each setting that is read from c, set or not, so that
// tests can compare what a program reads with what Variables declares.
func (c *Config) OnRead(f func(name string)) { c.onRead = f }

// get returns the value of a setting.
func (c *Config) get(name string) (v value, set bool) {
	if c.onRead != nil {
		c.onRead(name)
	}
	v, set = c.values[name]
	return v, set
}
