package lookup

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/wire/socketmap"
)

// running is a Run over pipes, and a SQLite file that it asks.
type running struct {
	t     *testing.T
	conf  string // its settings
	in    *bufio.Reader
	out   io.WriteCloser
	ended chan error
}

func newRunning(t *testing.T) *running {
	t.Helper()
	if testing.Short() {
		t.Skip("SQLite is slow under the race detector")
	}
	dir := t.TempDir()
	db, err := sql.Open("sqlite", filepath.Join(dir, "users.db"))
	assert.Must(t, err)
	_, err = db.Exec("CREATE TABLE users (name TEXT, value TEXT); INSERT INTO users VALUES ('bond', 'jane')")
	assert.Must(t, errors.Join(err, db.Close()))
	r := &running{t: t, conf: filepath.Join(dir, "users.sqlite"), ended: make(chan error, 1)}
	r.write("database = users.db\nquery = SELECT value FROM users WHERE name = :key\n")
	requests, to := io.Pipe()
	from, answers := io.Pipe()
	r.in, r.out = bufio.NewReader(from), to
	go func() {
		r.ended <- Run(t.Context(), Config{
			Source: "sqlite:" + r.conf, Timeout: time.Minute, In: requests, Out: answers, Log: slog.New(slog.DiscardHandler),
		})
	}()
	return r
}

// write replaces the settings, as an editor does.
func (r *running) write(text string) {
	r.t.Helper()
	assert.Must(r.t, errors.Join(os.WriteFile(r.conf+"~", []byte(text), 0o600), os.Rename(r.conf+"~", r.conf)))
}

func (r *running) ask(key string) string {
	r.t.Helper()
	reply := assert.Get(socketmap.Ask(r.in, r.out, "aliases", key))(r.t)
	return string(reply.Status) + " " + reply.Text
}

func TestAnswersUntilItsInputEnds(t *testing.T) {
	r := newRunning(t)
	assert.Equal(t, r.ask("bond")+"|"+r.ask("q"), "OK jane|NOTFOUND ")
	assert.Must(t, r.out.Close())
	if err := <-r.ended; err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

func TestChangedSettingsHoldFromTheNextQuestion(t *testing.T) {
	r := newRunning(t)
	if got := r.ask("bond"); got != "OK jane" {
		t.Fatalf("got %q", got)
	}
	r.write("database = users.db\nquery = SELECT value || '!' FROM users WHERE name = :key\n")
	if got := r.ask("bond"); got != "OK jane!" {
		t.Errorf("changed: got %q", got)
	}
	// The error names the line, and there is no other answer meanwhile.
	r.write("database = users.db\nquery\n")
	for range 2 {
		if got := r.ask("q"); !strings.HasPrefix(got, "TEMP "+r.conf+":2: not NAME = value") {
			t.Errorf("bad: got %q", got)
		}
	}
	r.write("database = none.db\nquery = SELECT value FROM users WHERE name = :key\n")
	if got := r.ask("q"); !strings.HasPrefix(got, "TEMP ") || !strings.Contains(got, "none.db: no such file") {
		t.Errorf("no database: got %q", got)
	}
	r.write("database = users.db\nquery = SELECT value FROM users WHERE name = :key\n")
	assert.Equal(t, r.ask("bond")+"|"+r.ask("q"), "OK jane|NOTFOUND ", "mended")
}

func TestSourceThatCannotBeServedIsRefused(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	assert.Must(t, os.WriteFile(bad, []byte("url = ldap://x\nbase = dc=x\nfilter = (mail=%s\n"), 0o600))
	for source, want := range map[string]string{
		"nis:x":                 "want FILE behind one of sqlite:",
		"sqlite:" + dir + "/no": "no: cannot be read",
		"ldap:" + bad:           "filter (mail=%s",
	} {
		err := Run(context.Background(), Config{Source: source, Timeout: time.Second, In: &bytes.Buffer{}, Out: io.Discard, Log: slog.New(slog.DiscardHandler)})
		if e := (*config.Error)(nil); !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a *config.Error with %q", source, err, want)
		}
	}
}
