package conf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/run/glob"
	"zmailer/internal/stage/scheduler/builtin"
)

// Check returns what makes the file unusable besides what Load has found (errs), and what
// is allowed and hardly meant (warnings): clauses that are never reached, programs that
// are missing, routes of the text tables to channels that no clause serves. policy checks
// the tls= of a clause as the agent will; nil accepts all.
func (c *File) Check(settings *config.Config, policy func(string) error) (errs, warnings []error) {
	errs = c.badPolicies(policy)
	routes, err := c.checkRoutes(settings)
	if err != nil {
		errs = append(errs, err)
	}
	return errs, append(append(c.warnings(), c.warnHosts()...), routes...)
}

func (c *File) warn(at place, format string, args ...any) error {
	err := c.bad(at, format, args...)
	err.Warning = true
	return err
}

// warnings returns settings without effect, and programs that cannot be started.
func (c *File) warnings() (list []error) {
	for i := range c.clauses {
		cl := &c.clauses[i]
		if by := c.coveredBy(i); by != nil {
			list = append(list, c.warn(cl.at, "%s is never reached: %s in line %d has a command and matches everything that it matches", cl.name, by.name, by.at.line))
			continue
		}
		if !c.bodies[cl.body].last && !c.served(i) {
			list = append(list, c.warn(cl.at, "%s has no command, and no clause with a command follows: its mail waits until it expires", cl.name))
		}
	}
	for i := range c.bodies {
		list = append(list, c.warnBody(&c.bodies[i])...)
	}
	for _, where := range c.NoEffect {
		list = append(list, &config.Error{File: where.File, Line: where.Line, Column: where.Column, Warning: true, Reason: where.Reason + ": this setting of ZMailer has no effect"})
	}
	return list
}

// warnBody checks the settings of one body alone.
func (c *File) warnBody(b *body) (list []error) {
	s := b.settings()
	has := func(key string) bool { _, ok := b.where[key]; return ok }
	if has("start") && has("maxthr") && s.MaxThread > 0 && s.Start > s.MaxThread {
		list = append(list, c.warn(b.where["start"], "start=%d exceeds maxthr=%d, which is used", s.Start, s.MaxThread))
	}
	if has("maxthr") && has("maxring") && s.MaxRing > 0 && s.MaxThread > s.MaxRing {
		list = append(list, c.warn(b.where["maxthr"], "maxthr=%d exceeds maxring=%d, which is used", s.MaxThread, s.MaxRing))
	}
	if has("maxunproven") && has("maxring") && s.MaxRing > 0 && s.unproven >= s.MaxRing {
		list = append(list, c.warn(b.where["maxunproven"], "maxunproven=%d is not below maxring=%d: hosts that do not answer may use all deliveries", s.unproven, s.MaxRing))
	}
	for _, key := range []string{"expiry", "expiry2"} {
		d := s.Expiry
		if key == "expiry2" {
			d = s.Expiry2
		}
		if has(key) && d > 0 && d < time.Minute {
			list = append(list, c.warn(b.where[key], "%s=%v: mail is given up after %v; a number without a unit is in seconds, write %s=%dd for days", key, d, d, key, int(d.Seconds())))
		}
	}
	if has("expiry2") && has("expiry") && s.Expiry2 > 0 && s.Expiry > s.Expiry2 {
		list = append(list, c.warn(b.where["expiry"], "expiry=%v is later than expiry2=%v, which is used", s.Expiry, s.Expiry2))
	}
	if has("reporttimes") && has("expiry") && s.Expiry > 0 && len(s.ReportTimes) > 0 && s.ReportTimes[len(s.ReportTimes)-1] >= s.Expiry {
		list = append(list, c.warn(b.where["reporttimes"], "the last of reporttimes is not earlier than expiry=%v", s.Expiry))
	}
	if b.last {
		if err := checkProgram(s.Command.Words[0]); err != nil {
			list = append(list, c.warn(b.where["command"], "%v", err))
		}
	}
	return list
}

// checkProgram returns why a program cannot be started.
func checkProgram(name string) error {
	if strings.Contains(name, "$") {
		return nil // it depends on channel or host
	}
	path, err := FindProgram(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%s does not exist", path)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}

// coveredBy returns the clause before i that matches everything that i matches; nil: none.
func (c *File) coveredBy(i int) *clause {
	cl := &c.clauses[i]
	for j := range i {
		by := &c.clauses[j]
		if c.bodies[by.body].last && coverAll(by.channel, cl.channel) && coverAll(by.host, cl.host) {
			return by
		}
	}
	return nil
}

// served reports whether a clause with a command after i may match what i matches.
func (c *File) served(i int) bool {
	for j := i + 1; j < len(c.clauses); j++ {
		if c.bodies[c.clauses[j].body].last && overlap(c.clauses[i].channel, c.clauses[j].channel) {
			return true
		}
	}
	return false
}

// overlap reports whether some word may match both; it errs on the side of true.
func overlap(a, b []string) bool {
	wild := func(s string) bool { return strings.ContainsAny(s, `*?[\`) }
	for _, p := range a {
		for _, q := range b {
			if wild(p) && wild(q) || glob.Match(p, q) || glob.Match(q, p) {
				return true
			}
		}
	}
	return false
}

// coverAll reports whether each of the patterns is covered by one of by.
func coverAll(by, patterns []string) bool {
	for _, q := range patterns {
		if !slices.ContainsFunc(by, func(p string) bool { return covers(glob.Pieces(p), glob.Pieces(q)) }) {
			return false
		}
	}
	return true
}

// covers reports whether p matches everything that q matches; it errs on the side of false.
func covers(p, q []string) bool {
	// reached[j]: the pieces of p so far cover the first j pieces of q.
	reached := make([]bool, len(q)+1)
	reached[0] = true
	for _, piece := range p {
		next := make([]bool, len(q)+1)
		for j := range reached {
			switch {
			case piece == "*":
				next[j] = reached[j] || j > 0 && next[j-1]
			case j > 0 && reached[j-1] && q[j-1] != "*":
				next[j] = piece == "?" || piece == q[j-1] || len(q[j-1]) == 1 && q[j-1] != "?" && glob.Match(piece, q[j-1])
			}
		}
		reached = next
	}
	return reached[len(q)]
}

// checkRoutes checks the text tables of the setting ROUTES. Other sources cannot be listed.
func (c *File) checkRoutes(settings *config.Config) (list []error, err error) {
	if settings.String("VIRTUALMAILBOXDOMAINS", "") != "" {
		channel, _, _ := strings.Cut(settings.String("VIRTUALTRANSPORT", "virtual!"), "!")
		if !c.serves(channel) {
			list = append(list, &config.Error{File: c.Name, Warning: true, Reason: fmt.Sprintf(
				"no clause with a command serves channel %s, where mail for VIRTUALMAILBOXDOMAINS goes: it would wait until it expires; add a line %[1]s/* above a command that delivers it", channel)})
		}
	}
	sources := strings.Fields(settings.String("ROUTES", ""))
	if len(sources) == 0 {
		routes, from, err := settings.Read("routes")
		return append(list, c.unservedRoutes(from, string(routes))...), err
	}
	for _, source := range sources {
		scheme, path, ok := strings.Cut(source, ":")
		switch {
		case !ok || strings.Contains(scheme, "/"):
			path = source
		case scheme != "file":
			continue
		}
		if !filepath.IsAbs(path) {
			path = settings.Path(path)
		}
		routes, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the router's check reports it
		}
		if err != nil {
			return nil, &config.Error{File: path, Reason: "cannot be read", Err: err}
		}
		list = append(list, c.unservedRoutes(path, string(routes))...)
	}
	return list, nil
}

// unservedRoutes warns of routes to channels that no clause serves (Z8).
func (c *File) unservedRoutes(file, text string) (list []error) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		channel, _, ok := strings.Cut(fields[1], "!")
		if !ok || c.serves(channel) {
			continue
		}
		list = append(list, &config.Error{File: file, Line: number, Column: strings.Index(line, fields[1]) + 1,
			Warning: true, Reason: fmt.Sprintf("no clause of scheduler.conf with a command serves channel %s: mail for %s would wait until it expires", channel, fields[0])})
	}
	return list
}

// serves reports whether some mail of a channel has an agent, or needs none.
func (c *File) serves(channel string) bool {
	switch channel {
	case builtin.Error, builtin.Bitbucket, builtin.Hold:
		return true
	}
	return slices.ContainsFunc(c.clauses, func(cl clause) bool { return c.bodies[cl.body].last && glob.Any(cl.channel, channel) })
}

// FindProgram looks for a name without a slash in the directory of our own program, then in
// PATH.
func FindProgram(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither in the directory of the scheduler nor in PATH: %w", name, err)
	}
	return filepath.Abs(path)
}

// badPolicies checks each tls= of the file. An agent exits when it is started with a policy
// that it cannot use.
func (c *File) badPolicies(check func(string) error) (list []error) {
	if check == nil {
		return nil
	}
	for i := range c.bodies {
		b := &c.bodies[i]
		at, ok := b.where["tls"]
		if !ok {
			continue
		}
		s := b.settings()
		if err := check(s.TLS); err != nil {
			list = append(list, c.bad(at, "tls=%s: %v", s.TLS, err))
		}
	}
	return list
}
