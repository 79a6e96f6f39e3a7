package confimport

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zmailer/internal/run/config"
)

// converter makes our files from a configuration of Postfix.
type converter struct {
	p       *postfix
	b       builder
	rows    []Row
	done    map[string]bool   // settings that have a row
	written map[string]bool   // files made from tables
	clause  map[string]string // what replaces parts of the built-in scheduler.conf

	daemonNames []string // milter_macro_daemon_name of ports
}

// Postfix converts the configuration in dir, in which main.cf and master.cf are. The settings
// in keep that are not empty are put into zmailer.conf.
func Postfix(dir string, keep map[string]string) (*Result, error) {
	p, err := read(dir)
	if err != nil {
		return nil, err
	}
	c := &converter{p: p, done: map[string]bool{}, written: map[string]bool{}, clause: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(keep)) {
		if keep[name] != "" {
			c.b.set(name, keep[name], "")
		}
	}
	for _, convert := range []func(*converter){
		convertNames, convertDomains, convertVirtual, convertRelay, convertRoutes, convertRewriting, convertPorts, convertPeers, convertTLS, convertAuth, convertRestrictions,
		convertContent, convertContentFilter, convertLimits, convertQueue, convertMailboxes, convertOthers,
	} {
		convert(c)
	}
	if p.excess != "" {
		return nil, &config.Error{File: filepath.Join(dir, "main.cf"), Reason: "parameters that stand for others make it too long, at: " + p.excess}
	}
	writeScheduler(c)
	slices.SortStableFunc(c.rows, func(a, b Row) int { return strings.Compare(a.Setting, b.Setting) })
	return &Result{Files: c.b.files(fmt.Sprintf("# Made by zmctl import-config from %s; report.txt says what became of each setting.\n", dir)), Rows: c.rows}, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// note adds the row of a setting if main.cf has it and no row was added before.
func (c *converter) note(name string, outcome Outcome, page, format string, args ...any) {
	i := slices.IndexFunc(c.p.settings, func(s setting) bool { return s.name == name })
	if i < 0 || c.done[name] {
		return
	}
	s := c.p.settings[i]
	c.done[name] = true
	c.rows = append(c.rows, Row{name, s.value, fmt.Sprintf("%s:%d", s.file, s.line), outcome, fmt.Sprintf(format, args...), page})
}

func (c *converter) converted(name, page, format string, args ...any) {
	c.note(name, Converted, page, format, args...)
}

func (c *converter) byHand(name, page, format string, args ...any) {
	c.note(name, ByHand, page, format, args...)
}

func (c *converter) notNeeded(name, format string, args ...any) {
	c.note(name, NotNeeded, "", format, args...)
}

// report adds the row of a setting whose parts are converted, or not, by their own.
func (c *converter) report(name, page, became string, trouble []string) {
	trouble = firstOf(trouble)
	switch {
	case len(trouble) > 0 && became != "":
		c.byHand(name, page, "%s; but %s", became, strings.Join(trouble, "; "))
	case len(trouble) > 0:
		c.byHand(name, page, "%s", strings.Join(trouble, "; "))
	default:
		c.converted(name, page, "%s", became)
	}
}

// firstOf returns what fits into a row.
func firstOf(trouble []string) []string {
	const most = 20
	if len(trouble) > most {
		return append(trouble[:most:most], fmt.Sprintf("and %d more", len(trouble)-most))
	}
	return trouble
}

// socket returns the path of a socket: relative ones are in the queue directory.
func (c *converter) socket(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(c.p.get("queue_directory"), path)
}

// convertOthers gives a row to each setting that has none yet.
func convertOthers(c *converter) {
	known := knownParameters()
	for _, s := range c.p.settings {
		if c.done[s.name] {
			continue
		}
		if k := parameter(known, s.name); k != nil {
			if k.outcome == ByHand && c.p.get(s.name) == "" {
				c.notNeeded(s.name, "empty: %s", k.text)
				continue
			}
			c.note(s.name, k.outcome, k.page, "%s", k.text)
			continue
		}
		referenced := slices.ContainsFunc(c.p.settings, func(o setting) bool { return o.name != s.name && strings.Contains(o.value, "$"+s.name) }) ||
			slices.ContainsFunc(c.p.services, func(v service) bool {
				return slices.ContainsFunc(v.options, func(o setting) bool { return strings.Contains(o.value, "$"+s.name) })
			})
		if referenced {
			c.notNeeded(s.name, "used in other settings")
			continue
		}
		c.byHand(s.name, "coming-from-postfix.md", "no counterpart is known")
	}
}
