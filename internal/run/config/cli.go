package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// Flags returns the flags that every program has: --postoffice (POSTOFFICE), --config
// (ZCONFIG, path of zmailer.conf), --log-format, --log-level.
func Flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "postoffice", EnvVars: []string{"POSTOFFICE"}, Usage: "use the queues in `DIR` instead of the configured ones"},
		&cli.StringFlag{Name: "config", EnvVars: []string{"ZCONFIG"}, Usage: "read `FILE` (zmailer.conf) and the files beside it; without it, that of the machine if these programs were installed, else built-in defaults"},
		&cli.StringFlag{Name: "log-format", Usage: "`FORMAT` of the log on standard error: auto, text, json or tint"},
		&cli.StringFlag{Name: "log-level", Usage: "log from `LEVEL` up: debug, info, warn or error"},
	}
}

// FromCLI loads the configuration that the flags name. --postoffice overrides the
// file's POSTOFFICE, --log-format LOG and --log-level LOGLEVEL.
func FromCLI(c *cli.Context) (*Config, error) {
	fixed, err := fixedBy(c)
	if err != nil {
		return nil, err
	}
	return load(chosen(c), fixed)
}

// FileOf returns the path of the zmailer.conf that the flags name; "": the built-in one.
func FileOf(c *cli.Context) string { return chosen(c) }

// DaemonVariable names, in the environment of a process that a daemon has started, that daemon: the
// process goes by the same version of zmailer.conf (lastgood.Settings).
const DaemonVariable = "ZCONFIGOF"

// FromCopy is FromCLI with a text in the place of the file's.
func FromCopy(c *cli.Context, text []byte) (*Config, error) {
	fixed, err := fixedBy(c)
	if err != nil {
		return nil, err
	}
	return loadFrom(chosen(c), fixed, text)
}

// ForInit is FromCLI for who makes the configuration. If there is nothing under the path that
// the flags name, the built-in one holds, and missing is that path.
func ForInit(c *cli.Context) (settings *Config, missing string, err error) {
	missing = chosen(c)
	if _, err := os.Lstat(missing); missing == "" || !errors.Is(err, fs.ErrNotExist) {
		settings, err = FromCLI(c)
		return settings, "", err
	}
	fixed, err := fixedBy(c)
	if err == nil {
		missing, err = filepath.Abs(missing)
	}
	if err == nil {
		settings, err = load("", fixed)
	}
	return settings, missing, err
}

// fixedBy returns the values set by flags, which override the file.
func fixedBy(c *cli.Context) (map[string]string, error) {
	fixed := map[string]string{}
	if dir := c.String("postoffice"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, &Error{File: "command line", Reason: "POSTOFFICE=" + dir + " cannot be made absolute", Err: err}
		}
		fixed["POSTOFFICE"] = abs
	}
	for flag, name := range map[string]string{"log-format": "LOG", "log-level": "LOGLEVEL"} {
		text := c.String(flag)
		switch {
		case text == "":
			continue
		case flag == "log-format" && text == "postfix":
			name = "LOGFORMAT"
		case flag == "log-format":
			fixed["LOGFORMAT"] = "native"
		}
		fixed[name] = text
	}
	return fixed, nil
}

// Main runs a program: it prints an error to standard error as "program: error" and
// exits with Exit's code; nil exits 0. The actions' Context is done at the first
// SIGTERM or SIGINT; a second one ends the program at once. With --print-app as its only
// argument a program describes itself as JSON: see Program.
func Main(app *cli.App) {
	withhold()
	os.Exit(run(app, os.Args, os.Stderr))
}

// Hangups returns the signals that ask a daemon to read its configuration again.
func Hangups() <-chan os.Signal {
	c := make(chan os.Signal, 1) // further ones while one is answered are one
	signal.Notify(c, syscall.SIGHUP)
	return c
}

// withhold keeps descriptors that whoever started us left open from what we start ourselves,
// users' programs in the end: but for the first three it gets what it is given. A kernel
// before Linux 5.11 knows no such call; then what was left open stays so.
func withhold() { _ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }

func run(app *cli.App, args []string, stderr io.Writer) int {
	if len(args) == 2 && args[1] == printApp {
		return Exit(writeApp(os.Stdout, app))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop)
	// The library would exit by itself and print its own way.
	app.ExitErrHandler = func(*cli.Context, error) {}
	app.OnUsageError = usageError
	app.Version = Version
	cli.VersionFlag = &cli.BoolFlag{Name: "version", Usage: "print the version", DisableDefaultText: true}
	cli.FlagStringer = helpLine(cli.FlagStringer)
	for _, c := range app.Commands {
		setUsageError(c)
	}
	err := app.RunContext(ctx, flagsFirst(app, args))
	if err == nil {
		return 0
	}
	// "zmctl hold needs ..." names the command, with the program's name before it already.
	if text := strings.TrimPrefix(err.Error(), app.Name+" "); text != "" {
		fmt.Fprintf(stderr, "%s: %s\n", app.Name, text)
	}
	return Exit(err)
}

// helpLine returns a flag's line of --help, without a default that says nothing, like false,
// and without saying twice how a flag is written that may be repeated.
func helpLine(line cli.FlagStringFunc) cli.FlagStringFunc {
	before, after := " (default: ", ")"
	return func(f cli.Flag) string {
		text := line(f)
		if names, usage, ok := strings.Cut(text, "\t"); ok {
			if once, _, twice := strings.Cut(names, " [ "); twice {
				text = once + " ...\t" + usage
			}
		}
		begin := strings.LastIndex(text, before)
		if begin < 0 {
			return text
		}
		value, rest, ok := strings.Cut(text[begin+len(before):], after)
		switch short := shortDefault(value); {
		case !ok:
			return text
		case short == "":
			return text[:begin] + rest
		default:
			return text[:begin] + before + short + after + rest
		}
	}
}

func setUsageError(c *cli.Command) {
	c.HideHelpCommand = true
	if c.OnUsageError == nil {
		c.OnUsageError = usageError
	}
	for _, sub := range c.Subcommands {
		setUsageError(sub)
	}
}

func usageError(_ *cli.Context, err error, _ bool) error {
	for _, name := range []string{"postoffice", "config", "log-format", "log-level"} {
		if strings.HasSuffix(err.Error(), "not defined: -"+name) {
			return cli.Exit(fmt.Errorf("%w; it belongs before the command", err), ExitUsage)
		}
	}
	return cli.Exit(fmt.Errorf("%w; see --help", err), ExitUsage)
}

// Exit returns the exit code for an error: ExitConfig for an *Error, the code of a
// cli.ExitCoder, else 1.
func Exit(err error) int {
	if err == nil {
		return 0
	}
	if coder := cli.ExitCoder(nil); errors.As(err, &coder) {
		return coder.ExitCode()
	}
	if bad := (*Error)(nil); errors.As(err, &bad) {
		return ExitConfig
	}
	return 1
}
