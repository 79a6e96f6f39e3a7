package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The names that programs know a mail system by are links to ours.
func TestNamesOfSendmailWork(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	dir := t.TempDir()
	for name, program := range map[string]string{"sendmail": "submit", "mailq": "zmctl", "newaliases": "zmctl"} {
		if err := os.Symlink(filepath.Join(s.Bin, program), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	say := func(stdin, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, name), args...)
		cmd.Env, cmd.Stdin = s.Env(), strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	say("Subject: x\n\nhello\n", "sendmail", "-oi", "-t", "alice")
	queue := say("", "mailq")
	if !strings.Contains(queue, "1 message") {
		t.Errorf("mailq: %s", queue)
	}
	for _, args := range [][]string{{"-bp"}, {"-v", "-bp"}} {
		if got := say("", "sendmail", args...); !strings.Contains(got, "1 message") {
			t.Errorf("sendmail %v: %s", args, got)
		}
	}
	if got := say("", "mailq", "-v", "-Ac"); !strings.Contains(got, "1 message") {
		t.Errorf("mailq -v -Ac: %s", got)
	}
	if got := say("", "newaliases"); !strings.Contains(got, "can be used") {
		t.Errorf("newaliases: %s", got)
	}
}
