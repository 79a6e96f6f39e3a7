package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// TestMain serves as zmctl and, under their names, as the daemons that it starts.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); {
	case name == "smtpserver" || name == "router" || name == "scheduler":
		os.Exit(standIn(name))
	case os.Getenv("BE_ZMCTL") != "":
		main()
	}
	os.Exit(m.Run())
}

// standIn returns a daemon that logs when it starts and ends. DAEMON_name decides how it
// behaves: "" waits for SIGTERM, "stubborn" does not end on it, "78" exits so at
// once, "once" exits with 1 the first time, by the file FIRST_TIME, "once, then 78" with
// 78 later.
func standIn(name string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Fprintf(os.Stderr, "up %s %s %s %s\n", name, os.Getenv("POSTOFFICE"), os.Getenv("ZCONFIG"), strings.Join(os.Args[1:], " "))
	switch os.Getenv("DAEMON_" + name) {
	case "78":
		return config.ExitConfig
	case "once", "once, then 78":
		if err := os.Remove(os.Getenv("FIRST_TIME")); err == nil {
			return 1
		}
		if os.Getenv("DAEMON_"+name) != "once" {
			return config.ExitConfig
		}
	case "stubborn":
		for {
			<-term
			fmt.Fprintf(os.Stderr, "asked %s\n", name)
		}
	}
	<-term
	fmt.Fprintf(os.Stderr, "down %s\n", name)
	return 0
}

// invoke calls a command as from a shell.
func invoke(t *testing.T, args ...string) (stdout string, code int, err error) {
	t.Helper()
	var out bytes.Buffer
	a := app()
	a.Writer, a.ErrWriter = &out, io.Discard
	a.ExitErrHandler = func(*cli.Context, error) {}
	err = a.RunContext(t.Context(), append([]string{"zmctl"}, args...))
	return out.String(), config.Exit(err), err
}

// exits calls a command that is to exit with a code, and returns its output.
func exits(t *testing.T, code int, args ...string) string {
	t.Helper()
	out, got, err := invoke(t, args...)
	assert.Equal(t, got, code, "zmctl %q: %v\n%s\nexit code", args, err, out)
	return out
}

func wantIn(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		assert.Contains(t, text, p)
	}
}
