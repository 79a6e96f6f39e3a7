package e2e

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// M41: names and passwords of this machine, by PAM itself in a service of the test's own,
// which a mount of this process alone puts below /etc/pam.d; who may do what by name and
// group.
func TestWebPageTakesPasswordsOfPAM(t *testing.T) {
	needRoot(t)
	found, err := filepath.Glob("/lib/*/libpam.so.0")
	if err != nil || len(found) == 0 {
		t.Skip("libpam.so.0 is not installed")
	}
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	dir := t.TempDir()
	script := filepath.Join(dir, "check.sh")
	for name, text := range map[string]string{
		"check.sh": "#!/bin/sh\nread -r p || [ -n \"$p\" ]\n[ \"$p:$PAM_RHOST\" = \"secret-of-$PAM_USER:127.0.0.1\" ]\n",
		"zmweb":    "auth required pam_exec.so expose_authtok quiet " + script + "\naccount required pam_permit.so\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	conf, err := os.OpenFile(s.Config(), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = conf.WriteString("WEBREADERS=@daemon\nWEBWRITERS=games\nWEBWRITE=yes\n")
	must(t, errors.Join(err, conf.Close()))
	p := servePageBy(t, s, []string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/pam.d && exec "$@"`, dir}, "--accounts", "pam:zmweb", "--token-file", "off")
	enter := func(user, password string) string {
		return p.post("/login", url.Values{"user": {user}, "password": {password}})
	}
	if page := enter("root", "secret-of-root"); strings.Contains(page, "Log out") || strings.Contains(page, "Token") {
		t.Errorf("root has no right here:\n%s", page)
	}
	if page := enter("games", "secret-of-root"); strings.Contains(page, "Log out") {
		t.Errorf("a wrong password:\n%s", page)
	}
	if page := enter("daemon", "secret-of-daemon"); !strings.Contains(page, "web:daemon, reading") {
		t.Errorf("a reader by his group:\n%s", page)
	}
	form := url.Values{"csrf": {p.hidden(p.get("/queue"), "csrf")}, "verb": {"hold"}, "id": {id}, "sure": {"yes"}}
	wantIn(t, p.post("/act", form), "You may read here")
	if page := enter("games", "secret-of-games"); !strings.Contains(page, "web:games<") {
		t.Errorf("a writer:\n%s", page)
	}
	form.Set("csrf", p.hidden(p.get("/queue"), "csrf"))
	wantIn(t, p.post("/act", form), "web:games/", "Undo")
	p.stop()
}
