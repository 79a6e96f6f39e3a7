package tasmtp_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/test/suite"
)

// programDir is the variable that names the directory for the program under test.
const programDir = "TA_SMTP_TEST_DIR"

// TestMain gives the tests a directory for the program that the first one builds.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ta-smtp")
	if err == nil {
		err = os.Setenv(programDir, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// program returns the path of ta-smtp as it is built from this tree.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(os.Getenv(programDir), "ta-smtp")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	assert.Must(t, suite.BuildOne(path, "ta-smtp"))
	return path
}

// command prepares the program to run in a spool's transport/.
func command(t *testing.T, s *Spool, conf string, args ...string) *exec.Cmd {
	t.Helper()
	file := filepath.Join(s.Dir, "zmailer.conf")
	assert.Must(t, os.WriteFile(file, []byte(conf), 0o600))
	cmd := exec.Command(program(t), args...)
	cmd.Dir = filepath.Join(s.Dir, "transport")
	cmd.Env = []string{"ZCONFIG=" + file}
	return cmd
}

// start runs it until the test ends.
func start(t *testing.T, s *Spool, conf string, args ...string) *Process {
	t.Helper()
	return Start(t, command(t, s, conf, args...))
}

// conf returns a configuration that sends to a sink.
func conf(s *Spool, sink *Sink, more ...string) string {
	return fmt.Sprintf("POSTOFFICE=%s\nHOSTNAME=mta.zm.example.org\nSMTPPORT=%d\nRESOLVER=127.0.0.1:1\n%s\n", s.Dir, sink.Port(), strings.Join(more, "\n"))
}
