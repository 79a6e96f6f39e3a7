package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/assert"
)

// runCLI runs a program with our flags and gives what it loaded.
func runCLI(t *testing.T, args ...string) (c *Config, code int, stderr string) {
	t.Helper()
	var out bytes.Buffer
	app := &cli.App{Name: "prog", Flags: Flags(), Writer: &out, ErrWriter: &out}
	app.Action = func(ctx *cli.Context) (err error) {
		c, err = FromCLI(ctx)
		return err
	}
	app.Commands = []*cli.Command{{Name: "sub", Action: app.Action, Flags: []cli.Flag{&cli.BoolFlag{Name: "x", Usage: "x it"}, &cli.DurationFlag{Name: "y", Value: 5 * time.Minute, Usage: "so long"}, &cli.StringSliceFlag{Name: "z", Usage: "and `Z`"}}},
		{Name: "picky", Action: func(*cli.Context) error { return cli.Exit("prog picky needs a name", ExitUsage) }}}
	code = run(app, append([]string{"prog"}, args...), &out)
	return c, code, out.String()
}

func clearEnv(t *testing.T) {
	t.Setenv("POSTOFFICE", "")
	t.Setenv("ZCONFIG", "")
}

func TestFlagsOverrideEnvironmentOverridesFile(t *testing.T) {
	clearEnv(t)
	conf := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(conf, []byte("POSTOFFICE=/file\nLOCALUSERS=${POSTOFFICE}/users\nLOG=json\n"), 0o600))
	c, code, out := runCLI(t, "--config", conf)
	if code != 0 || c.PostOffice() != "/file" || c.String("LOG", "") != "json" || c.Path("routes") != filepath.Join(filepath.Dir(conf), "routes") {
		t.Errorf("file: got %d %+v %s", code, c, out)
	}
	t.Setenv("ZCONFIG", conf)
	t.Setenv("POSTOFFICE", "/env")
	c, code, out = runCLI(t, "--log-format", "text", "--log-level", "debug", "sub")
	if code != 0 || c.PostOffice() != "/env" || c.String("LOCALUSERS", "") != "/env/users" || c.String("LOG", "") != "text" || c.String("LOGLEVEL", "") != "debug" {
		t.Errorf("environment: got %d %+v %s", code, c, out)
	}
	c, code, out = runCLI(t, "--postoffice", "/flag/../flag2")
	if code != 0 || c.PostOffice() != "/flag2" {
		t.Errorf("flag: got %d %+v %s", code, c, out)
	}
}

func TestRelativePathsBecomeAbsolute(t *testing.T) {
	clearEnv(t)
	t.Chdir(t.TempDir())
	assert.Must(t, WriteDefaults("etc"))
	c, code, out := runCLI(t, "--config", "etc/zmailer.conf", "--postoffice", "po")
	if code != 0 || !filepath.IsAbs(c.File) || !filepath.IsAbs(c.PostOffice()) {
		t.Errorf("got %d %+v %s", code, c, out)
	}
}

func TestErrorsArePrintedOnceWithTheirExitCode(t *testing.T) {
	clearEnv(t)
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"no such file":       {[]string{"--config", "/nonexistent"}, ExitConfig, "prog: /nonexistent: cannot be read: no such file or directory\n"},
		"bad flag value":     {[]string{"--log-format", "xml"}, ExitConfig, "prog: command line: LOG=xml cannot be used: it must be one of auto, text, json, tint\n"},
		"unknown flag":       {[]string{"--nosuch"}, ExitUsage, "prog: flag provided but not defined: -nosuch; see --help\n"},
		"unknown sub flag":   {[]string{"sub", "--nosuch"}, ExitUsage, "prog: flag provided but not defined: -nosuch; see --help\n"},
		"bad sub flag":       {[]string{"sub", "--x=7"}, ExitUsage, "see --help\n"},
		"named in full":      {[]string{"picky"}, ExitUsage, "prog: picky needs a name\n"},
		"nothing is wrong":   {nil, 0, ""},
		"help is no error":   {[]string{"--help"}, 0, "--postoffice"},
		"false says nothing": {[]string{"sub", "--help"}, 0, "   -x          x it\n"},
		"said once":          {[]string{"sub", "--help"}, 0, "   -z Z ...    and Z\n"},
		"a time is short":    {[]string{"sub", "--help"}, 0, "so long (default: 5m)\n"},
		"sub help no error":  {[]string{"sub", "--help"}, 0, "-x"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, code, out := runCLI(t, tt.args...)
			if code != tt.code || !strings.HasSuffix(out, tt.want) && (code != 0 || !strings.Contains(out, tt.want)) {
				t.Errorf("got %d %q, want %d %q", code, out, tt.code, tt.want)
			}
			if strings.Count(out, "prog: ") > 1 {
				t.Errorf("printed more than once: %q", out)
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	tests := map[string]struct {
		err  error
		want int
	}{
		"nothing":               {nil, 0},
		"any error":             {errors.New("x"), 1},
		"wrapped configuration": {fmt.Errorf("start: %w", &Error{File: "f", Reason: "r"}), ExitConfig},
		"wrapped exit coder":    {fmt.Errorf("start: %w", cli.Exit("try later", ExitTempFail)), ExitTempFail},
		"coder over an *Error":  {cli.Exit(&Error{File: "f", Reason: "r"}, ExitTempFail), ExitTempFail},
	}
	for name, tt := range tests {
		assert.Equal(t, Exit(tt.err), tt.want, name)
	}
}

func TestSignalEndsTheActionsContext(t *testing.T) {
	var out bytes.Buffer
	app := &cli.App{Name: "prog", Writer: &out, ErrWriter: &out, Action: func(c *cli.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-c.Context.Done():
			return nil
		case <-t.Context().Done():
			return t.Context().Err()
		}
	}}
	assert.Equal(t, run(app, []string{"prog"}, &out), 0, out.String())
}
