package pam

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// program builds lookup, which a module may end.
func program(t *testing.T) string {
	t.Helper()
	found := false
	for _, dir := range []string{"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib", "/lib"} {
		_, err := os.Stat(filepath.Join(dir, "libpam.so.0"))
		found = found || err == nil
	}
	if !found {
		t.Skip("skipped: libpam.so.0 is not installed")
	}
	bin := filepath.Join(t.TempDir(), "lookup")
	assert.Must(t, suite.BuildOne(bin, "lookup"))
	return bin
}

// ask runs the program once. A crash is its error.
func ask(t *testing.T, bin, dir, service, line string) (v Verdict, err error) {
	t.Helper()
	cmd := exec.Command(bin, "--pam-dir", dir, "pam", service)
	cmd.Stdin = strings.NewReader(line)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Logf("%v: %.300s", err, said.String())
		return Verdict{}, err
	}
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatalf("answer %q: %v", out, err)
	}
	return v, nil
}

// PAM itself, with services of the test's own: pam_exec gives the password to a script.
func TestPAMDecides(t *testing.T) {
	bin, dir := program(t), t.TempDir()
	script := filepath.Join(dir, "check.sh")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	write("check.sh", "#!/bin/sh\nread -r p || [ -n \"$p\" ]\n[ \"$PAM_USER:$p:$PAM_RHOST\" = jane:secret:192.0.2.7 ]\n", 0o755)
	write("crash.sh", "#!/bin/sh\nkill -SEGV $PPID\n", 0o755)
	write("good", "auth required pam_exec.so expose_authtok quiet "+script+"\naccount required pam_permit.so\n", 0o644)
	write("expired", "auth required pam_permit.so\naccount required pam_deny.so\n", 0o644)
	write("none", "auth required pam_there_is_no_such.so\naccount required pam_permit.so\n", 0o644)
	write("crash", "auth required pam_exec.so quiet "+filepath.Join(dir, "crash.sh")+"\naccount required pam_permit.so\n", 0o644)
	write("other", "auth required pam_deny.so\naccount required pam_deny.so\n", 0o644)

	for name, tt := range map[string]struct{ service, line, want, user string }{
		"right":             {"good", `{"user":"jane","password":"secret","host":"192.0.2.7"}`, Ok, "jane"},
		"wrong password":    {"good", `{"user":"jane","password":"Secret","host":"192.0.2.7"}`, Refused, ""},
		"wrong host":        {"good", `{"user":"jane","password":"secret","host":"192.0.2.8"}`, Refused, ""},
		"another user":      {"good", `{"user":"joe","password":"secret","host":"192.0.2.7"}`, Refused, ""},
		"no user":           {"good", `{"user":"","password":"secret"}`, Refused, ""},
		"a NUL":             {"good", `{"user":"jane","password":"secret\u0000x","host":"192.0.2.7"}`, Refused, ""},
		"account is closed": {"expired", `{"user":"jane","password":"secret"}`, Refused, ""},
		// Peer9: PAM would ask the service "other", which refuses: the password may be right.
		"a misspelt service":   {"goood", `{"user":"jane","password":"secret","host":"192.0.2.7"}`, Trouble, ""},
		"a module that is not": {"none", `{"user":"jane","password":"secret"}`, Trouble, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := ask(t, bin, dir, tt.service, tt.line+"\n")
			if err != nil || v.Result != tt.want || v.User != tt.user {
				t.Errorf("got %+v, %v, want %s", v, err, tt.want)
			}
		})
	}
	t.Run("a module that crashes", func(t *testing.T) {
		v, err := ask(t, bin, dir, "crash", `{"user":"jane","password":"secret"}`+"\n")
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			t.Errorf("got %+v, %v, want a program that ended", v, err)
		}
	})
	t.Run("no question", func(t *testing.T) {
		if v, err := ask(t, bin, dir, "good", "jane:secret\n"); err == nil {
			t.Errorf("got %+v", v)
		}
	})
}
