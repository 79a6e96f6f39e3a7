package lastgood

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// site is a zmailer.conf with its postoffice.
type site struct {
	*testing.T
	file, dir string
}

func newSite(t *testing.T, lines string) *site {
	s := &site{t, filepath.Join(t.TempDir(), "zmailer.conf"), t.TempDir()}
	s.write(lines)
	return s
}

// write writes zmailer.conf, below the line of the postoffice.
func (s *site) write(lines string) {
	s.Helper()
	assert.Must(s.T, os.WriteFile(s.file, []byte("POSTOFFICE="+s.dir+"\n"+lines), 0o600))
}

// follow is a daemon's start.
func (s *site) follow(daemon string) *Follower {
	s.Helper()
	log := slog.New(slog.DiscardHandler)
	settings := assert.Get(config.Load(s.file))(s.T)
	return Follow(settings, daemon, Use(settings, daemon, log), log, func() (*config.Config, error) { return config.Load(s.file) })
}

// command runs a command with flags and returns what is printed to standard error.
func (s *site) command(do func(c *cli.Context), args ...string) string {
	s.Helper()
	var said bytes.Buffer
	app := &cli.App{Name: "command", Flags: config.Flags(), ErrWriter: &said, Action: func(c *cli.Context) error { do(c); return nil }}
	assert.Must(s.T, app.Run(append([]string{"command", "--config", s.file}, args...)))
	return said.String()
}

// accepted returns what MAXSIZE a command of an operator goes by; -1: it gets the error.
func (s *site) accepted(args ...string) (size int64, said string) {
	s.Helper()
	said = s.command(func(c *cli.Context) {
		for range 2 { // the warning is printed once
			settings, err := Accepted(c)
			if err != nil {
				if settings != nil || config.Exit(err) != config.ExitConfig {
					s.Errorf("got settings %v with %v", settings, err)
				}
				size = -1
				return
			}
			size = assert.Get(settings.Size("MAXSIZE", 0))(s.T)
		}
	}, args...)
	return size, said
}

// Op11, Op1: while zmailer.conf cannot be used, operators' commands go by what the daemons go by,
// and by nothing else.
func TestOp11CommandsGoByTheDaemonsSettings(t *testing.T) {
	const bad = "MAXSIZE=5\nMAXRCPT=many\nnonsense\n"
	for name, tt := range map[string]struct {
		change func(s *site)
		args   []string
		want   int64
		warns  int // lines
	}{
		"the file can be used":       {func(s *site) { s.follow("scheduler"); s.write("MAXSIZE=5\n") }, nil, 5, 0},
		"it cannot":                  {func(s *site) { s.follow("scheduler"); s.write(bad) }, nil, 7, 3},
		"it is gone":                 {func(s *site) { s.follow("scheduler"); assert.Must(s.T, os.Remove(s.file)) }, []string{"--postoffice", "."}, 7, 2},
		"no daemon has run":          {func(s *site) { s.write(bad) }, nil, -1, 0},
		"only smtpserver has run":    {func(s *site) { s.follow("smtpserver"); s.write(bad) }, nil, 7, 3},
		"a program that counts not":  {func(s *site) { s.follow("zmweb"); s.write(bad) }, nil, -1, 0},
		"the scheduler counts first": {func(s *site) { s.follow("scheduler"); s.write("MAXSIZE=8\n"); s.follow("router"); s.write(bad) }, nil, 7, 3},
		"a reload was accepted": {func(s *site) {
			f := s.follow("scheduler")
			s.write("MAXSIZE=8\n")
			assert.Get(f.Read())(s.T)
			f.Accept()
			s.write(bad)
		}, nil, 8, 3},
		"a reload was refused": {func(s *site) {
			f := s.follow("scheduler")
			s.write(bad)
			_, err := f.Read()
			f.Refuse(err)
		}, nil, 7, 3},
		"another postoffice":   {func(s *site) { s.follow("scheduler"); s.dir = s.TempDir(); s.write(bad) }, nil, -1, 0},
		"another zmailer.conf": {func(s *site) { s.follow("scheduler"); s.file += ".other"; s.write(bad) }, nil, -1, 0},
		"a flag is wrong, too": {func(s *site) { s.follow("scheduler"); s.write(bad) }, []string{"--log-level", "loud"}, -1, 0},
		"the copies are damaged": {func(s *site) {
			s.follow("scheduler")
			s.write(bad)
			for _, path := range assert.Get(filepath.Glob(filepath.Join(s.dir, Dir, "*", "*")))(s.T) {
				assert.Must(s.T, os.Truncate(path, 90))
			}
		}, nil, -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "MAXSIZE=7\n")
			tt.change(s)
			if len(tt.args) == 2 && tt.args[1] == "." {
				tt.args[1] = s.dir
			}
			got, said := s.accepted(tt.args...)
			assert.Equal(t, got, tt.want, "MAXSIZE")
			assert.Equal(t, strings.Count(said, "\n"), tt.warns, said)
		})
	}
}

// Op1: while zmailer.conf cannot be used, submit takes mail by the settings that the scheduler goes
// by; a file that is damaged, or of another zmailer.conf, counts as none.
func TestOp1SubmitGoesByThePublishedSettings(t *testing.T) {
	const bad = "MAXSIZE=5\nMAXRCPT=many\n"
	published := func(s *site) *Follower {
		f := s.follow("scheduler")
		f.Publish()
		return f
	}
	edit := func(change func(text string) string) func(s *site) {
		return func(s *site) {
			published(s)
			s.write(bad)
			path := filepath.Join(s.dir, SubmitFile)
			assert.Must(s.T, os.WriteFile(path, []byte(change(string(assert.Get(os.ReadFile(path))(s.T)))), 0o600))
		}
	}
	for name, tt := range map[string]struct {
		change func(s *site)
		want   int64 // -1: the error
	}{
		"the file can be used": {func(s *site) { published(s); s.write("MAXSIZE=5\n") }, 5},
		"it cannot":            {func(s *site) { published(s); s.write(bad) }, 7},
		"it was accepted": {func(s *site) {
			f := published(s)
			s.write("MAXSIZE=8\n")
			assert.Get(f.Read())(s.T)
			f.Accept()
			s.write(bad)
		}, 8},
		"it was refused":       {func(s *site) { f := published(s); s.write(bad); _, err := f.Read(); f.Refuse(err) }, 7},
		"nothing is published": {func(s *site) { s.follow("scheduler"); s.write(bad) }, -1},
		"another postoffice":   {func(s *site) { published(s); s.dir = s.TempDir(); s.write(bad) }, -1},
		"another zmailer.conf": {func(s *site) { published(s); s.file += ".other"; s.write(bad) }, -1},
		"cut short":            {edit(func(text string) string { return text[:len(text)-len(submitEnd)] }), -1},
		"empty":                {edit(func(string) string { return "" }), -1},
		"damaged":              {edit(func(text string) string { return strings.Replace(text, "MAXSIZE", "MAX\x00SIZE", 1) }), -1},
		"a link": {func(s *site) {
			published(s)
			s.write(bad)
			path := filepath.Join(s.dir, SubmitFile)
			assert.Must(s.T, os.Rename(path, path+"1"), os.Symlink(path+"1", path))
		}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "MAXSIZE=7\nSRSDOMAIN=secret.example\nHOSTNAME='mx.example'\n")
			tt.change(s)
			s.command(func(c *cli.Context) {
				settings, held, err := ForSubmit(c)
				if (err != nil) != (tt.want < 0) || err == nil && (held != nil) != (tt.want > 5) {
					t.Fatalf("got %v, %v, %v", settings, held, err)
				}
				if err == nil {
					assert.Equal(t, assert.Get(settings.Size("MAXSIZE", 0))(t), tt.want, "MAXSIZE")
					assert.Equal(t, settings.PostOffice(), s.dir, "postoffice")
				}
			})
		})
	}
}

// Every user may read what is published, and it has no setting that submit does not need.
func TestOp1PublishedSettingsAreThoseOfSubmit(t *testing.T) {
	s := newSite(t, "MAXSIZE=7\nAUTH=file:secret\nWEBTOKEN=secret\nSYNC=strict\n")
	s.follow("scheduler").Publish()
	path := filepath.Join(s.dir, SubmitFile)
	assert.Equal(t, assert.Get(os.Stat(path))(t).Mode(), os.FileMode(0o644), "mode")
	text := string(assert.Get(os.ReadFile(path))(t))
	if strings.Contains(text, "secret") || strings.Count(text, "\n") != 5 {
		t.Errorf("got %s", text)
	}
}

// The power fails at each write of what is published: a reader finds the old settings or the new
// ones, whole.
func TestOp1PublishedSettingsAreWholeWhereverThePowerFails(t *testing.T) {
	texts := []string{submitHead + "/x\nMAXSIZE=1\n" + submitEnd, submitHead + "/x\nMAXSIZE=2\n" + strings.Repeat("# long\n", 900) + submitEnd}
	work := func(disk durable.FS) (written int) {
		s := New(disk, "scheduler", nil, slog.New(slog.DiscardHandler))
		for _, text := range texts {
			if replacePublic(s, []byte(text)) != nil {
				return written
			}
			written++
		}
		return written
	}
	first := cutfs.New()
	work(first)
	states := map[string]int{}
	for cut := range first.Ops() {
		disk := cutfs.New()
		disk.CutAfter(cut)
		written := work(disk)
		for _, loss := range disk.Losses() {
			got, _, err := readFile(disk.Restart(loss), SubmitFile, mostSubmit)
			at := 0
			for i, text := range texts {
				if string(got) == text {
					at = i + 1
				}
			}
			if err == nil && at == 0 || at < written {
				t.Fatalf("cut %d, %v: %d bytes after %d were written", cut, loss, len(got), written)
			}
			states[string(rune('0'+at))]++
		}
	}
	if len(states) != 3 {
		t.Errorf("readers found %v", states)
	}
}

// Op11: a reload takes no zmailer.conf that is being written: it waits until the last change is over,
// and refuses a file that has lost all settings.
func TestOp11HalfWrittenZmailerConfIsNotTaken(t *testing.T) {
	s := newSite(t, "MAXSIZE=7\n")
	f := s.follow("scheduler")
	assert.Must(t, os.Truncate(s.file, 0))
	if next, err := f.Read(); err == nil {
		t.Fatalf("an empty file: got %v", next)
	} else {
		f.Refuse(err)
	}
	s.write("MAXSIZE=8\n")
	when := assert.Get(os.Stat(s.file))(t).ModTime()
	next := assert.Get(f.Read())(t)
	if age := time.Since(when); age < settled {
		t.Errorf("it was read %v after it was written", age)
	}
	assert.Equal(t, assert.Get(next.Size("MAXSIZE", 0))(t), 8, "MAXSIZE")
}

// Op11: a program that a daemon has started, and whose settings the daemon does not read, goes by those
// with which it could be started last while the others cannot be used, and the daemon's alarm names
// the file until the daemon has read it again.
func TestOp11SettingsThatTheDaemonDoesNotReadAreHeldByTheProgram(t *testing.T) {
	s := newSite(t, "MAXSIZE=7\n")
	f := s.follow("scheduler")
	t.Setenv(config.DaemonVariable, "scheduler")
	log := slog.New(slog.DiscardHandler)
	load := func() (size int64, err error) {
		s.command(func(c *cli.Context) {
			var settings *config.Config
			if settings, err = Settings(c); err == nil {
				_, size, err = Load(c, settings, "ta-smtp", Use(settings, "ta-smtp", log), log, func(x *config.Config) (int64, error) {
					size, err := x.Size("MAXSIZE", 0)
					if size == 13 {
						err = x.Invalid("MAXSIZE", "cannot be used", nil)
					}
					return size, err
				})
			}
		})
		return size, err
	}
	alarms := func() int {
		disk := assert.Get(durable.NewOS(s.dir))(t)
		defer disk.Close()
		return len(Findings(disk, time.Now()))
	}
	reload := func(lines string) {
		s.write(lines)
		assert.Get(f.Read())(t)
		f.Accept()
	}
	reload("MAXSIZE=13\n") // the daemon does not look at it
	if size, err := load(); err == nil {
		t.Errorf("with nothing to go back to: %d", size)
	}
	reload("MAXSIZE=8\n")
	assert.Equal(t, assert.Get(load())(t), 8)
	reload("MAXSIZE=13\n")
	assert.Equal(t, assert.Get(load())(t), 8)
	assert.Equal(t, alarms(), 1)
	reload("MAXSIZE=9\n")
	assert.Equal(t, alarms(), 0)
	assert.Equal(t, assert.Get(load())(t), 9)
}

// Sec1: root goes by no copy of zmailer.conf that another user could have written, but by its own.
func TestSec1RootGoesByItsOwnCopies(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := newSite(t, "MAXSIZE=7\n")
	assert.Must(t, os.Chown(s.dir, 1, 1))
	s.follow("scheduler")
	log := slog.New(slog.DiscardHandler)
	good := assert.Get(config.Load(s.file))(t)
	s.write("MAXSIZE 5\n")
	if size, _ := s.accepted(); size != -1 {
		t.Errorf("root goes by the daemon's copy: %d", size)
	}
	Approve(good, log)
	if size, said := s.accepted(); size != 7 || !strings.Contains(said, Root) {
		t.Errorf("root's own copy: %d, %s", size, said)
	}
	// What DAEMONUSER puts under the name that root writes is left alone.
	planted, mine := OpenRoot(s.dir, log), filepath.Join(t.TempDir(), "root's")
	assert.Must(t, os.WriteFile(mine, []byte("x"), 0o600), os.Link(mine, filepath.Join(s.dir, planted.temporary(name("other")))))
	planted.Good("other", []byte("y"), 0, nil)
	assert.Must(t, planted.Close())
	assert.Equal(t, string(assert.Get(os.ReadFile(mine))(t)), "x", "a file of root's that has a link there")
	own := filepath.Join(s.dir, Dir, Root, name(s.file))
	assert.Must(t, os.Chmod(own, 0o666))
	if size, _ := s.accepted(); size != -1 {
		t.Errorf("a copy that others can write: %d", size)
	}
	assert.Must(t, errors.Join(os.Chmod(own, 0o600), os.Chown(own, 1, 1)))
	if size, _ := s.accepted(); size != -1 {
		t.Errorf("another user's file: %d", size)
	}
}
