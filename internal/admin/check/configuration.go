package check

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/admin/service"
	"zmailer/internal/admin/webconf"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/helper"
	"zmailer/internal/run/human"
	"zmailer/internal/run/keys"
	"zmailer/internal/run/logfile"
	"zmailer/internal/stage/mailbox"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/stage/scheduler"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/stage/tasmtp"
	"zmailer/internal/stage/tasmtp/tlspolicy"
	"zmailer/internal/table/text"
)

// Loader is what one program does with its configuration before it serves. The program itself
// starts, and reads its configuration again, with the same functions.
type Loader struct {
	Program string
	// Check returns all errors and warnings, joined.
	Check func(*config.Config) error
	// Start returns those that keep the program from starting: a server that does not answer
	// now is none.
	Start func(*config.Config) error
	// Fine returns what is printed when there is no error; nil: nothing.
	Fine func(*config.Config) string
}

// Loaders returns those of all programs that serve a postoffice. A new setting or file is read
// by the loader of its stage (docs/HACKING.md).
func Loaders() []Loader {
	return []Loader{
		{"zmctl", checkCommon, checkCommon, nil},
		{"scheduler", checkScheduler, checkScheduler, scheduler.Describe},
		{"router", checkRouter, startRouter, says("the router's tables can be used")},
		{"smtpserver", smtpserver.CheckConfig, smtpserver.CheckStart, says("the files of smtpserver can be used")},
		{"ta-smtp", tasmtp.CheckConfig, tasmtp.CheckStart, says("the tables of ta-smtp can be used")},
		{"ta-mailbox", mailbox.CheckConfig, startMailbox, nil},
		// They are started by themselves: what is wrong with the pages keeps no mail system from starting.
		{"zmweb", webconf.Check, nothing, nil},
		{"zmotlp", checkTraces, nothing, nil},
	}
}

func nothing(*config.Config) error { return nil }

// checkTraces checks what zmotlp reads.
func checkTraces(c *config.Config) error {
	r := config.NewReader(c)
	r.Int("HASHLEVELS", 0)
	return r.Err()
}

func says(text string) func(*config.Config) string {
	return func(*config.Config) string { return text }
}

// checkCommon checks what concerns all programs.
func checkCommon(c *config.Config) error {
	var odd []error
	for _, w := range append(c.Doubled(), c.Retired()...) {
		w := *w
		w.Warning = true
		odd = append(odd, &w)
	}
	if path := c.String("LOGFILE", ""); path != "" {
		if err := logfile.Check(path); err != nil {
			odd = append(odd, c.Invalid("LOGFILE", "cannot be used", err))
		}
	}
	return errors.Join(append(odd, confine.Check(c))...)
}

func checkScheduler(c *config.Config) error {
	return scheduler.CheckConfig(c, func(policy string) error {
		_, err := tlspolicy.ParsePolicy(policy, "")
		return err
	})
}

func checkRouter(c *config.Config) error {
	cfg, err := router.ConfigFrom(c)
	err = errors.Join(err, route.CheckTables(cfg.Config))
	if bad, _ := config.Sort(err); bad == nil {
		err = errors.Join(err, checkVerified(c, cfg.Config), checkFilters(c, cfg.Config.Rules.Dir))
	}
	return c.Locate(err)
}

// checkVerified reports domains whose recipients are to be verified where nothing can ask for
// them: their mail would be refused with 451 for ever.
func checkVerified(c *config.Config, cfg route.Config) error {
	domains, err := route.VerifiedDomains(context.Background(), cfg)
	if err != nil {
		return err
	}
	command := agents.Prober(c, rcptcheck.ProbeCommand)
	var errs []error
	for _, d := range domains {
		if _, _, err := command(d.Channel, d.Host); err != nil {
			errs = append(errs, &config.Error{File: d.File, Line: d.Line, Err: err,
				Reason: fmt.Sprintf("recipients of %s cannot be verified at %s/%s, and all of its mail would be refused with 451", d.Domain, d.Channel, d.Host),
				Remedy: fmt.Sprintf("have a clause of scheduler.conf with ta-smtp serve %s/%s, or take the domain out of ADDRESSVERIFY with verify=no", d.Channel, d.Host)})
		}
	}
	return errors.Join(errs...)
}

// checkFilters warns of FILTER actions of the rules about header and body whose channel no agent
// serves: their mail would wait until it expires.
func checkFilters(c *config.Config, dir string) error {
	rules, err := contentrules.Open(dir, contentrules.Options{})
	if err != nil {
		return nil // it is reported where the files are read
	}
	command := agents.Prober(c, func(argv []string) ([]string, error) { return argv, nil })
	var errs []error
	for _, f := range rules.Filters() {
		to := text.FilterRoute(f.To)
		if _, _, err := command(to.Channel, cmp.Or(to.Host, "example.org")); err != nil {
			file, number, _ := strings.Cut(f.Rule, ":")
			line, _ := strconv.Atoi(number) // of our own making
			errs = append(errs, &config.Error{File: path.Join(dir, file), Line: line, Warning: true, Err: err,
				Reason: fmt.Sprintf("FILTER %s leads to the channel %s, and mail for it would wait until it expires", f.To, to.Channel),
				Remedy: "write smtp:[HOST]:PORT, or have a clause of scheduler.conf with a command serve " + to.Channel + "/*"})
		}
	}
	return errors.Join(errs...)
}

func startRouter(c *config.Config) error {
	cfg, err := router.ConfigFrom(c)
	return c.Locate(errors.Join(err, route.CheckStart(cfg.Config)))
}

func startMailbox(c *config.Config) error {
	_, err := mailbox.ConfigFrom(c)
	return c.Locate(err)
}

// Depth is how much is checked.
type Depth string

// Depths.
const (
	Everything Depth = ""        // also what a program meets later, like a server that does not answer
	Restart    Depth = "restart" // what keeps a program from starting
	Start      Depth = "start"   // the same, where the copy of a file that cannot be used will do
)

// Configuration is what the programs report about a configuration.
type Configuration struct {
	Usable bool         `json:"usable"`
	Lines  []ConfigLine `json:"lines"`
	Code   int          `json:"-"` // the exit code of the program with the worst one
}

// ConfigLine is a line about what one program reads.
type ConfigLine struct {
	Program string `json:"program"`
	Text    string `json:"text"`
	// File, Line, Cause and Remedy are those of an error or a warning.
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Cause   string `json:"cause,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	Warning bool   `json:"warning,omitempty"`
	Wrong   bool   `json:"error,omitempty"` // the program cannot use its configuration
	// Held is an error in a file of which a start uses a copy.
	Held bool `json:"held,omitempty"`
}

// Config runs the loader of each program, as the user that this process is. parse is the error
// of reading zmailer.conf, if there was one.
func Config(settings *config.Config, parse error, depth Depth) *Configuration {
	return configuration(settings, parse, depth, keys.FromEnvironment())
}

func configuration(settings *config.Config, parse error, depth Depth, opener *keys.Client) *Configuration {
	c := &Configuration{Usable: true, Lines: []ConfigLine{}}
	seen := map[string]bool{}
	c.result("zmctl", parse, seen)
	if settings == nil {
		return c
	}
	for _, l := range Loaders() {
		notes := &collector{opener: opener, handed: map[string]bool{}}
		do := l.Check
		if depth != Everything {
			do = l.Start
		}
		if depth == Start {
			// Without a postoffice there are no copies.
			notes.copies, _ = lastgood.Open(settings.PostOffice(), l.Program, slog.New(slog.DiscardHandler))
		}
		if depth != Everything && l.Program == "ta-smtp" {
			// No agent may have read its files yet when one turns bad: the next start must not
			// fail for want of a copy.
			notes.saves, _ = lastgood.Open(settings.PostOffice(), l.Program, slog.New(slog.DiscardHandler))
		}
		settings.SetKeeper(notes)
		err := do(settings)
		settings.SetKeeper(nil)
		notes.locate(settings)
		if c.result(l.Program, errors.Join(err, notes.take()), seen) && l.Fine != nil {
			c.Lines = append(c.Lines, ConfigLine{Program: l.Program, Text: l.Fine(settings)})
		}
		c.handed(l.Program, notes.handed, seen)
	}
	return c
}

// handed names the keys that root alone can read, and that were opened as they are for a daemon.
func (c *Configuration) handed(program string, files map[string]bool, seen map[string]bool) {
	for _, file := range slices.Sorted(maps.Keys(files)) {
		line := ConfigLine{Program: program, File: file, Text: human.Clean(file) + ": readable by root only: handed over at start and when it changes"}
		if !seen[line.Text] {
			seen[line.Text] = true
			c.Lines = append(c.Lines, line)
		}
	}
}

// collector is told of warnings in files that can be used.
type collector struct {
	copies *lastgood.Store // nil: none are used
	saves  *lastgood.Store // nil: no copies are made
	opener *keys.Client    // nil: no keys are handed over

	mu     sync.Mutex
	list   []error
	handed map[string]bool // keys that were
}

// Open opens a key as a daemon's helper process would.
func (c *collector) Open(path string) (*os.File, error) {
	f, err := c.opener.Open(path)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.handed[path] = true
	}
	return f, err
}

// Attach implements config.Keeper.
func (c *collector) Attach(cmd *exec.Cmd, path string) (done func(), err error) {
	return c.opener.AttachFor(cmd, path)
}

// locate adds the lines of zmailer.conf that name the files.
func (c *collector) locate(settings *config.Config) {
	for i, err := range c.list {
		held := (*heldError)(nil)
		if !errors.As(err, &held) {
			c.list[i] = settings.Locate(err)
			continue
		}
		c.list[i] = &heldError{settings.Locate(held.error)}
	}
}

func (c *collector) Good(path string, text []byte, uid uint32, warnings error) {
	if c.saves != nil {
		c.saves.Good(path, text, uid, nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, config.Errors(warnings)...)
}

// Bad collects an error in a file of which there is a copy; the loader returns any other one.
func (c *collector) Bad(_ string, reason error, held bool) {
	if !held {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range config.Errors(reason) {
		c.list = append(c.list, &heldError{err})
	}
}

// heldError is an error in a file of which a copy is used.
type heldError struct{ error }

func (e *heldError) Unwrap() error { return e.error }

func (c *collector) Last(path string) *config.Kept {
	if c.copies == nil {
		return nil
	}
	return c.copies.Last(path)
}

// Names does nothing: a check asks by itself.
func (c *collector) Names(string) {}

// OutageAfter implements config.Keeper: a check raises no alarm.
func (c *collector) OutageAfter() time.Duration { return -1 }

// Away implements config.Keeper.
func (c *collector) Away(string, time.Time, error, string) {}

// Expires warns of a certificate that ends soon.
func (c *collector) Expires(path string, at time.Time) {
	if c.saves != nil {
		c.saves.Expires(path, at)
	}
	if time.Until(at) >= lastgood.Warning {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, &config.Error{File: path, Warning: true, Reason: "the certificate ends at " + at.UTC().Format(time.RFC3339), Remedy: "renew it: clients that verify it will not send"})
}

func (c *collector) take() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return errors.Join(list...)
}

// result adds what a program reports, and reports whether that can be used. What two of them
// report alike is said once.
func (c *Configuration) result(program string, err error, seen map[string]bool) (usable bool) {
	usable = true
	for _, err := range config.Errors(err) {
		line := lineOf(program, err)
		usable = usable && !line.Wrong
		if line.Wrong {
			c.fail(config.ExitConfig)
		}
		if !seen[line.Text] {
			seen[line.Text] = true
			c.Lines = append(c.Lines, line)
		}
	}
	return usable
}

func lineOf(program string, err error) ConfigLine {
	line := ConfigLine{Program: program, Text: human.Clean(err.Error()), Wrong: true}
	bad := (*config.Error)(nil)
	if !errors.As(err, &bad) {
		line.Cause = line.Text
		return line
	}
	line.File, line.Line, line.Column, line.Remedy = bad.File, bad.Line, bad.Column, human.Clean(bad.Remedy)
	line.Cause = human.Clean(bad.Reason)
	if bad.Err != nil {
		line.Cause += ": " + human.Clean(bad.Err.Error())
	}
	line.Warning, line.Wrong = bad.Warning, !bad.Warning
	if held := (*heldError)(nil); errors.As(err, &held) {
		line.Held, line.Wrong = true, false
		line.Text += "; a start uses the copy of what it had before"
	}
	return line
}

func (c *Configuration) fail(code int) { c.Usable, c.Code = false, max(c.Code, code) }

// HereFlag has zmctl check-config read as the user of the daemons, in its own process.
const HereFlag = "as-daemon"

// ConfigAsDaemon is Config as the user that a start would use: root has a process of its own
// check, which becomes DAEMONUSER first.
func ConfigAsDaemon(ctx context.Context, settings *config.Config, parse error, depth Depth) (*Configuration, error) {
	holds, held, err := daemonsRights(settings)
	if err != nil || !holds {
		return Config(settings, parse, depth), nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	var stderr bytes.Buffer
	args := []string{"check-config", "--json", "--" + HereFlag}
	if depth != Everything {
		args = append(args, "--"+string(depth))
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env, cmd.Stderr = append(service.Environment(settings), scheduler.LauncherHere), &stderr
	if held {
		opener, stop, err := openKeys(settings)
		if err != nil {
			return nil, err
		}
		defer stop()
		attached, err := opener.Attach(cmd)
		if err != nil {
			return nil, err
		}
		defer attached()
	}
	out, err := cmd.Output()
	found := &Configuration{}
	if jerr := json.Unmarshal(out, found); jerr != nil {
		return nil, fmt.Errorf("check the configuration as %s: %w: %s", settings.String("DAEMONUSER", ""), errors.Join(err, jerr), strings.TrimSpace(stderr.String()))
	}
	if !found.Usable {
		found.Code = config.ExitConfig
	}
	return found, nil
}

// daemonsRights reports whether this process has more rights than the daemons keep, so that
// another one has to check for them, and whether it can open keys as the daemons' helpers do.
func daemonsRights(settings *config.Config) (more, opens bool, err error) {
	if settings == nil || settings.String("DAEMONUSER", "") == "" {
		return false, false, nil
	}
	if err := confine.Check(settings); err != nil {
		return false, false, err
	}
	opens, err = confine.PlanFor("opener", settings).Holds()
	return os.Geteuid() == 0 || opens, opens, err
}

// openKeys opens keys in this process, for all programs, until stop is called.
func openKeys(settings *config.Config) (opener *keys.Client, stop func(), err error) {
	ours, theirs, err := helper.Pair()
	if err != nil {
		return nil, nil, err
	}
	go func() {
		// What ends it is the end of the check.
		_ = keys.Serve(theirs, keys.NewPolicy(settings.File, "smtpserver", "router", "ta-smtp", "zmweb"))
	}()
	return keys.NewClient(ours), func() { _ = ours.Close() }, nil
}
