package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/setup"
	"zmailer/internal/admin/view"
	"zmailer/internal/admin/webconf"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/web"
)

func TestTokenIsMadeOnceAndItsOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, web.TokenFile)
	made, err := webToken(path, dir)
	if err != nil || len(made) < 40 {
		t.Fatalf("got %q, %v", made, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if again, err := webToken(path, dir); err != nil || again != made {
		t.Errorf("got %q, %v", again, err)
	}
	assert.Must(t, os.Chmod(path, 0o640))
	if _, err := webToken(path, dir); config.Exit(err) != config.ExitConfig {
		t.Errorf("others may read it: got %v", err)
	}
	assert.Must(t, errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("short\n"), 0o600)))
	if _, err := webToken(path, dir); config.Exit(err) != config.ExitConfig {
		t.Errorf("a short one: got %v", err)
	}
}

// served returns a site that serves a zmailer.conf, with flags, until the test ends.
func served(t *testing.T, conf string, args ...string) (s *site, settings *config.Config) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "zmailer.conf")
	po := filepath.Join(dir, "po")
	assert.Must(t, setup.Make(po), os.WriteFile(file, []byte("POSTOFFICE="+po+"\nHOSTNAME=mx.example\n"+conf), 0o600))
	settings = assert.Get(config.Load(file))(t)
	opened := assert.Get(view.OpenPostOffice(settings))(t)
	s = &site{log: slog.New(slog.DiscardHandler), dir: po, source: web.Open(opened, po, settings), samples: assert.Get(web.NewSamples(opened.FS()))(t)}
	t.Cleanup(func() {
		s.source.Close()
		if s.entrance != nil {
			s.entrance.Close()
		}
	})
	app := &cli.App{Flags: append(config.Flags(), flags()...), Action: func(c *cli.Context) error { s.c = c; return nil }}
	assert.Must(t, app.Run(append([]string{"zmweb", "--config", file}, args...)))
	assert.Must(t, s.keys(settings))
	return s, settings
}

// With a certificate it may be reached from elsewhere, by its own names, over TLS alone,
// and ends on SIGTERM.
func TestPageIsServedByTLS(t *testing.T) {
	like := httptest.NewTLSServer(http.NotFoundHandler())
	defer like.Close()
	pair := like.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	assert.Must(t, err)
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "key": {Type: "PRIVATE KEY", Bytes: key}} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	s, settings := served(t, "WEBHOSTS=mail.example.com\nWEBLISTEN=:0\nWEBCERT="+dir+"/cert\nWEBKEY="+dir+"/key\n")
	page, err := s.use(settings)
	if err != nil || !page.Secure {
		t.Fatalf("got %+v, %v", page, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveWeb(ctx, s.entrance, s, slog.New(slog.DiscardHandler), nil, nil, func(ctx context.Context) { <-ctx.Done() })
	}()
	client := like.Client()
	base := "https://127.0.0.1:" + portOf(s.entrance.Addr())
	for host, want := range map[string]int{"mail.example.com": http.StatusOK, "mx.example:443": http.StatusOK, "127.0.0.1": http.StatusOK, "evil.example": http.StatusMisdirectedRequest} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/login", nil)
		assert.Must(t, err)
		r.Host = host
		answer, err := client.Do(r)
		assert.Must(t, err)
		answer.Body.Close()
		if answer.StatusCode != want || answer.Header.Get("Strict-Transport-Security") == "" {
			t.Errorf("%s: got %d", host, answer.StatusCode)
		}
	}
	client.CloseIdleConnections()
	cancel()
	select {
	case err := <-ended:
		assert.NoError(t, err)
	case <-time.After(60 * time.Second):
		t.Fatal("it did not end")
	}
}

// Nothing listens beyond this machine without a certificate.
func TestPageIsServedToThisMachineAlone(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:0", "[::]:0", ":0"} {
		s, settings := served(t, "WEBLISTEN="+listen+"\n")
		if _, err := s.use(settings); config.Exit(err) != config.ExitConfig || s.entrance != nil {
			t.Errorf("%s: got %v", listen, err)
		}
	}
}

func TestRightsByNameAndGroup(t *testing.T) {
	member := func(name string) []string {
		return map[string][]string{"anna": {"adm", "users"}, "joe": {"users"}, "root": {"root"}}[name]
	}
	for name, c := range map[string]struct {
		w    webconf.Settings
		want map[string]web.Right
	}{
		"a file, no users named": {webconf.Settings{Accounts: "/x"}, map[string]web.Right{"anna": web.MayWrite}},
		"a file with writers":    {webconf.Settings{Accounts: "/x", Writers: []string{"anna"}}, map[string]web.Right{"anna": web.MayWrite, "joe": web.MayRead}},
		"a file with readers":    {webconf.Settings{Accounts: "/x", Readers: []string{"anna"}}, map[string]web.Right{"anna": web.MayWrite, "joe": web.NoRight}},
		"PAM with writers":       {webconf.Settings{Accounts: "pam:x", Writers: []string{"@adm"}}, map[string]web.Right{"anna": web.MayWrite, "joe": web.NoRight, "root": web.NoRight, "eve": web.NoRight, "@adm": web.NoRight, "adm": web.NoRight}},
		"PAM with readers":       {webconf.Settings{Accounts: "pam:x", Readers: []string{"@users", "@"}}, map[string]web.Right{"anna": web.MayRead, "joe": web.MayRead, "root": web.NoRight, "@": web.MayRead}},
		"PAM with both":          {webconf.Settings{Accounts: "pam:x", Readers: []string{"@users"}, Writers: []string{"joe"}}, map[string]web.Right{"anna": web.MayRead, "joe": web.MayWrite, "root": web.NoRight}},
		"PAM without a list":     {webconf.Settings{Accounts: "pam:x"}, map[string]web.Right{"root": web.NoRight}},
	} {
		r := rightsOf(c.w)
		r.groups = member
		for who, want := range c.want {
			assert.Equal(t, r.of(who), want, "%s: %s", name, who)
		}
	}
	if got := groupsOf("root"); !slices.Contains(got, "root") {
		t.Errorf("root is in %q", got)
	}
	if got := groupsOf("no-such-user"); got != nil {
		t.Errorf("no address in %q", got)
	}
}

// With PAM all users of the machine have passwords: somebody must say who may come in.
func TestPAMNeedsNames(t *testing.T) {
	for name, conf := range map[string]string{
		"no user is named": "WEBACCOUNTS=pam:login", "no service": "WEBACCOUNTS=pam:\nWEBREADERS=root",
		"a path": "WEBACCOUNTS=pam:../x\nWEBREADERS=root", "no lookup": "WEBACCOUNTS=pam:login\nWEBREADERS=root",
		"no file": "WEBACCOUNTS=none",
	} {
		s, settings := served(t, conf+"\n", "--listen", "127.0.0.1:0")
		if _, err := s.use(settings); config.Exit(err) != config.ExitConfig || s.entrance != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Who reads the help of zmctl web reads of each flag that zmweb has.
func TestFlagsAreThoseOfZmctlWeb(t *testing.T) {
	text, err := os.ReadFile("../zmctl/web.go")
	assert.Must(t, err)
	own, err := os.ReadFile("settings.go")
	assert.Must(t, err)
	lines := regexp.MustCompile(`&cli\.\w+Flag\{.*\},`)
	want, got := lines.FindAllString(string(own), -1), lines.FindAllString(string(text), -1)
	if len(want) < 4 || !slices.Equal(want, got) {
		t.Errorf("zmctl web has %q, zmweb %q", got, want)
	}
}

// Who is taken out of the file, or gets another password, is another one.
func TestAccountsAreThoseOfTheFileNow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "accounts")
	write := func(text string, age time.Duration) {
		t.Helper()
		when := time.Now().Add(-age)
		assert.Must(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, when, when)))
	}
	const hash = "$2a$04$"
	anna, other := "anna:"+hash+strings.Repeat("a", 53)+"\n", "anna:"+hash+strings.Repeat("b", 53)+"\n"
	w := webconf.Settings{Accounts: path}
	write(anna, time.Hour)
	var page web.Config
	assert.Must(t, access(w, assert.Get(config.Load(""))(t), &page, t.TempDir()))
	first, err := page.Account("anna")
	if again, aerr := page.Account("anna"); err != nil || aerr != nil || first == "" || again != first {
		t.Errorf("got %x, %x, %v, %v", first, again, err, aerr)
	}
	write(other, time.Minute)
	if got, err := page.Account("anna"); err != nil || got == first || got == "" {
		t.Errorf("another password: got %x, %v", got, err)
	}
	write(anna, 0) // as long as the one after it, within a tick of its time
	if got, err := page.Account("anna"); err != nil || got != first {
		t.Errorf("the first password: got %x, %v", got, err)
	}
	write("joe"+anna[4:]+" ", 0)
	if got, err := page.Account("anna"); err == nil && got != "" {
		t.Errorf("taken out: got %x", got)
	}
	assert.Must(t, os.Remove(path))
	if _, err := page.Account("anna"); err == nil {
		t.Error("without the file: got no error")
	}
}
