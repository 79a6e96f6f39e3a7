package main

import (
	"debug/buildinfo"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/completion"
	"zmailer/internal/ui/text"
)

func exportCommand() *cli.Command {
	return &cli.Command{
		Name: "export", Usage: "send events to another system", UsageText: "zmctl export otlp [flags]",
		Description: `Follows the postoffice and sends the events of its mail to another system. OTLP is the only
format:

    zmctl export otlp --endpoint http://127.0.0.1:4318/v1/traces`,
		Subcommands: []*cli.Command{{
			Name: "otlp", Usage: "send a trace of each finished message to OpenTelemetry",
			UsageText: "zmctl export otlp [--endpoint URL] [--percent N] [--addresses]",
			Description: `Sends the output of zmctl trace --otlp for each message that finishes from now on, until it
is interrupted. It does not affect the daemons or the mail. Senders, recipients and the
replies of hosts are sent only with --addresses.

    zmctl export otlp --endpoint http://127.0.0.1:4318/v1/traces
    zmctl export otlp --percent 5 --addresses

Without --endpoint, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT in the environment is the endpoint.
OTEL_EXPORTER_OTLP_HEADERS contains headers that the collector requires. This command
executes the program zmotlp.

Exit codes: 0 ended by a signal, 1 it cannot read the postoffice, 64 bad flags, 71 a program
is missing, 78 bad configuration or no postoffice.`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "endpoint", Usage: "send OTLP/HTTP in JSON to the collector at `URL` instead of http://127.0.0.1:4318/v1/traces"},
				&cli.IntFlag{Name: "percent", Value: 100, Usage: "send `N` of 100 messages, chosen by their spool ID"},
				&cli.BoolFlag{Name: "addresses", Usage: "also send senders, recipients and the replies of hosts"},
			},
			Action: func(c *cli.Context) error { return become(c, "zmotlp") },
		}},
		Action: needsVerb,
	}
}

// become executes another program of this system with the flags of the command.
func become(c *cli.Context, name string) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	path, err := service.Program(name)
	if err != nil {
		return cli.Exit(err, config.ExitOSErr)
	}
	args := append([]string{name}, logFlags(c)...)
	for _, f := range c.Command.Flags {
		flag := f.Names()[0]
		if value := fmt.Sprint(c.Value(flag)); c.IsSet(flag) {
			args = append(args, "--"+flag+"="+value)
		}
	}
	if err := syscall.Exec(path, args, service.Environment(settings)); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}

func completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print a script that completes zmctl's commands and flags in a shell",
		UsageText: "zmctl completion bash|zsh|fish",
		Description: `Prints a script for the shell; packages install it. By hand, for this shell or permanently:

    . <(zmctl completion bash)
    zmctl completion zsh > ~/.zfunc/_zmctl
    zmctl completion fish > ~/.config/fish/completions/zmctl.fish

Commands, flags, daemons and the spool IDs of queued mail are completed.

Exit codes: 0 printed, 64 bad arguments.`,
		Action: func(c *cli.Context) error {
			script, ok := completion.Script(c.App, c.Args().First())
			if !ok || c.NArg() != 1 {
				return cli.Exit("zmctl completion needs a shell: bash, zsh or fish", config.ExitUsage)
			}
			_, err := fmt.Fprint(c.App.Writer, script)
			return err
		},
	}
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "show the version, and check that all programs are from the same build",
		UsageText: "zmctl version [--json]",
		Description: `Shows the version of zmctl, the commit it was built from if known, the version of Go, and
the paths of the other programs. It reports each program that was built with other versions
of the libraries or another Go, which means that an upgrade is incomplete. zmctl status
reports daemons that still run an older program.

Exit codes: 0 shown, 1 a program is missing or from another build, 64 bad arguments.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON object"}},
		Action: runVersion,
	}
}

// build describes how the programs were built.
type build struct {
	Version  string    `json:"version"`
	Commit   string    `json:"commit,omitempty"`
	Go       string    `json:"go"`
	Platform string    `json:"platform"`
	Programs []builtAs `json:"programs"`
}

type builtAs struct {
	Program string `json:"program"`
	Path    string `json:"path,omitempty"`
	Problem string `json:"problem,omitempty"`
}

func programs() []string {
	return []string{"smtpserver", "router", "scheduler", "ta-smtp", "ta-mailbox", "lookup", "submit", "zmtop", "zmweb", "zmotlp"}
}

func runVersion(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	b, same := thisBuild()
	var err error
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, b)
	} else {
		err = b.print(c)
	}
	if err == nil && !same {
		return cli.Exit("", 1)
	}
	return err
}

// thisBuild inspects zmctl and the other programs; same reports whether all exist and are
// from the same build.
func thisBuild() (b *build, same bool) {
	b = &build{Version: config.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	own, ok := debug.ReadBuildInfo()
	if ok {
		b.Commit = setting(own, "vcs.revision")
		if setting(own, "vcs.modified") == "true" {
			b.Commit += ", changed"
		}
	}
	same = true
	for _, name := range programs() {
		p := builtAs{Program: name}
		path, err := service.Program(name)
		if err == nil {
			p.Path = path
			var other *debug.BuildInfo
			if other, err = buildinfo.ReadFile(path); err == nil && ok {
				p.Problem = differs(own, other)
			}
		}
		if err != nil {
			p.Problem = err.Error()
		}
		same = same && p.Problem == ""
		b.Programs = append(b.Programs, p)
	}
	return b, same
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// differs describes the first difference between two builds, "" if there is none.
func differs(own, other *debug.BuildInfo) string {
	switch {
	case other.Main.Path != own.Main.Path:
		return "not a program of this system"
	case other.GoVersion != own.GoVersion:
		return "built with " + other.GoVersion
	case setting(other, "vcs.revision") != setting(own, "vcs.revision"):
		return "built from commit " + setting(other, "vcs.revision")
	case other.Main.Version != own.Main.Version:
		return "of version " + other.Main.Version
	}
	versions := map[string]string{}
	for _, d := range own.Deps {
		versions[d.Path] = d.Version
	}
	for _, d := range other.Deps {
		if v, ok := versions[d.Path]; ok && v != d.Version {
			return fmt.Sprintf("built with %s %s, zmctl with %s", d.Path, d.Version, v)
		}
	}
	return ""
}

func (b *build) print(c *cli.Context) error {
	w := c.App.Writer
	fmt.Fprintf(w, "zmctl %s, %s, %s\n", b.Version, b.Go, b.Platform)
	if b.Commit != "" {
		fmt.Fprintln(w, "commit", b.Commit)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range b.Programs {
		fmt.Fprintln(t, strings.TrimRight(p.Program+"\t"+p.Path+"\t"+p.Problem, "\t"))
	}
	return t.Flush()
}
