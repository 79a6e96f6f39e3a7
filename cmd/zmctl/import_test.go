package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/importer"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// oldMaildir has n messages.
func oldMaildir(t *testing.T, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "Maildir")
	for _, d := range []string{"new", "cur", "tmp"} {
		assert.Must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	for i := range n {
		text := fmt.Sprintf("Return-Path: <s%d@old.example>\nSubject: number %d\nTo: a@far.example, b@far.example\n\n%s\n", i, i, strings.Repeat("x", 3000))
		assert.Must(t, os.WriteFile(filepath.Join(dir, "new", fmt.Sprintf("17000%05d.M1.host", i)), []byte(text), 0o600))
	}
	return dir
}

// imported counts the messages in router/ by Subject.
func imported(o *office.Office, t *testing.T) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, name := range o.Names(t, postoffice.Router) {
		b, err := os.ReadFile(filepath.Join(o.Dir, postoffice.Router, name))
		assert.Must(t, err)
		for line := range strings.Lines(string(b)) {
			if s, ok := strings.CutPrefix(line, "Subject: "); ok {
				n[strings.TrimSpace(s)]++
			}
		}
	}
	return n
}

// M13 M43: an import that is killed and called again, as often as it takes, takes each
// message once, and empties what it moves from.
func TestImportThatIsKilledGoesOn(t *testing.T) {
	o := office.New(t)
	const messages = 400
	dir := oldMaildir(t, messages)
	kills := 0
	for {
		cmd := exec.Command(os.Args[0], "import", "maildir", "--move", "--quiet", "--to", "new@far.example", dir)
		cmd.Env = append(os.Environ(), "BE_ZMCTL=1")
		assert.Must(t, cmd.Start())
		// Later each time, so that it ends.
		at := time.Duration(10+rand.IntN(20+kills*10)) * time.Millisecond
		killer := time.AfterFunc(at, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		killer.Stop()
		if err == nil {
			break
		}
		var code *exec.ExitError
		if !errors.As(err, &code) || code.Exited() {
			t.Fatal(err)
		}
		kills++
	}
	got := imported(o, t)
	for i := range messages {
		assert.Equal(t, got[fmt.Sprintf("number %d", i)], 1, "copies of message %d after %d kills", i, kills)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("the old Maildir has %q", left)
	}
	if names := o.Names(t, postoffice.Imports); len(names) != 1 {
		t.Errorf("imports/ has %q, want the record alone", names)
	}
	t.Logf("%d kills", kills)
}

func TestImportTellsEachMessage(t *testing.T) {
	office.New(t)
	dir := oldMaildir(t, 2)
	args := []string{"import", "maildir", "--extract", "--from", "<>"}
	out := mustDo(t, append(args, "--dry-run", dir)...)
	wantIn(t, out, "would   new/1700000000.M1.host", "<>  a@far.example, b@far.example", "2 messages with 4 recipients would be taken\nnothing was changed\n")
	out = mustDo(t, append(args, "--json", dir)...)
	var r importer.Result
	first, _, _ := strings.Cut(out, "\n")
	if err := json.Unmarshal([]byte(first), &r); err != nil || r.Did != importer.Taken || len(r.IDs) != 1 || !slices.Equal(r.Recipients, []string{"a@far.example", "b@far.example"}) {
		t.Errorf("got %s, %v", first, err)
	}
	out = mustDo(t, append(args, "--move", dir)...)
	wantIn(t, out, "0 messages with 0 recipients taken, 2 taken before, 2 removed from the old queue\n")
	// It warns of daemons that do not run.
	out, _, _ = invoke(t, "check")
	wantIn(t, out, "ok       imports/maildir-", ", 0 errors")
}

func TestImportHolds(t *testing.T) {
	o := office.New(t)
	out := mustDo(t, "import", "maildir", "--hold", "--to", "new@far.example", oldMaildir(t, 2))
	wantIn(t, out, "2 messages with 2 recipients taken (2 of them to freezer/)")
	out = mustDo(t, "freezer", "list")
	wantIn(t, out, "import from maildir new/1700000000.M1.host: import --hold", "2 messages")
	assert.Equal(t, len(imported(o, t)), 0, "messages in router/")
}

func TestImportsExitCodes(t *testing.T) {
	office.New(t)
	dir := oldMaildir(t, 1)
	half := oldMaildir(t, 1)
	assert.Must(t, os.WriteFile(filepath.Join(half, "new", "1.M1.host"), []byte("Subject: no recipients\n\n"), 0o600))
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no path":           {[]string{"maildir", "--to", "a@b"}, config.ExitUsage, "PATH"},
		"no recipient":      {[]string{"maildir", dir}, config.ExitUsage, "--to ADDRESS"},
		"no address":        {[]string{"mbox", "--to", "a b", dir}, config.ExitUsage, `--to "a b"`},
		"no sender":         {[]string{"mbox", "--to", "a@b", "--from", "a b", dir}, config.ExitUsage, `--from "a b"`},
		"no queue":          {[]string{"postfix", dir}, config.ExitUsage, "no such queue"},
		"no spool":          {[]string{"exim", dir}, config.ExitUsage, "no such queue"},
		"nothing is there":  {[]string{"opensmtpd", "/nonexistent"}, config.ExitUsage, "no such queue"},
		"no mbox":           {[]string{"mbox", "--to", "a@b", "/etc/passwd"}, config.ExitUsage, "no such queue"},
		"no format":         {[]string{"sendmail"}, config.ExitUsage, "sendmail"},
		"one is not usable": {[]string{"maildir", "--extract", half}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, code, err := invoke(t, append([]string{"import"}, c.args...)...)
			if code != c.code || err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("exit %d, %v; want %d, %q", code, err, c.code, c.says)
			}
		})
	}
	t.Setenv("POSTOFFICE", "/nonexistent")
	exits(t, config.ExitConfig, "import", "maildir", "--to", "a@b", dir)
}
