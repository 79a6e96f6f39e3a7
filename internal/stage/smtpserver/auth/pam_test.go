package auth

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// lookupSays puts a program lookup into a directory that answers as a script does.
func lookupSays(t *testing.T, script string) Backend {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.WriteFile(filepath.Join(dir, "lookup"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	return assert.Get(Open("pam:smtp", Options{Programs: dir}))(t)
}

// The child decides, and whatever becomes of it is no more than a login that does
// not work now. internal/lookup/pam has the other side with PAM itself.
func TestChildOfPAMDecides(t *testing.T) {
	for name, tt := range map[string]struct {
		script, user string
		err          error // nil and no user: any other error
	}{
		"ok":             {`read q; [ "$q" = '{"user":"jane","password":"secret","host":"192.0.2.7"}' ] && [ "$*" = "pam smtp" ] && echo '{"result":"ok","user":"Jane"}'`, "Jane", nil},
		"refused":        {`echo '{"result":"refused"}'`, "", ErrRefused},
		"trouble":        {`echo '{"result":"trouble","reason":"no such module"}'`, "", nil},
		"ok for no one":  {`echo '{"result":"ok"}'`, "", nil},
		"nonsense":       {`echo yes`, "", nil},
		"nothing":        {`:`, "", nil},
		"a crash":        {`kill -SEGV $$`, "", nil},
		"ok and a crash": {`echo '{"result":"ok","user":"jane"}'; kill -SEGV $$`, "", nil},
		"an endless one": {`while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done | head -c 1000000`, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := lookupSays(t, tt.script)
			user, err := try(t, b, Plain, []byte("\x00jane\x00secret"))
			temporary := tt.err == nil && tt.user == ""
			if user != tt.user || tt.err != nil && !errors.Is(err, tt.err) || temporary && (err == nil || errors.Is(err, ErrRefused)) {
				t.Errorf("got %q, %v", user, err)
			}
		})
	}
	t.Run("one that hangs is killed with what it started", func(t *testing.T) {
		b := lookupSays(t, "sleep 1000 & wait")
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		e := assert.Get(b.Start(ctx, Plain, Peer{}))(t)
		start := time.Now()
		_, _, err := e.Next(ctx, []byte("\x00jane\x00secret"))
		if err == nil || errors.Is(err, ErrRefused) || time.Since(start) > patience {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

func TestSourcesAreChecked(t *testing.T) {
	dir := t.TempDir()
	for source, ok := range map[string]bool{
		"": false, "file": false, "file:": false, "ldap:x": false, "oauth2:x": false, "saslauthd:run/mux": false, "saslauthd:/run/mux": true, "file:users nis:x": false, "dovecot:run/auth": false, "pam:../x": false, "pam:-x": false, "pam:a b": false,
		"file:users": false, "dovecot:/run/dovecot/auth": true,
	} {
		if b, err := Open(source, Options{Dir: dir, Programs: dir}); (err == nil) != ok || ok && b == nil {
			t.Errorf("%q: %v", source, err)
		}
	}
	path := filepath.Join(dir, "users")
	assert.Must(t, os.WriteFile(path, nil, 0o644))
	if _, err := Open("file:users", Options{Dir: dir}); err == nil {
		t.Error("a file of passwords that everybody may read is used")
	}
	assert.Must(t, os.Chmod(path, 0o640))
	if _, err := Open("file:users", Options{Dir: dir}); err != nil {
		t.Error(err)
	}
}
