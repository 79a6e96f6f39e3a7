package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"os/user"
	"strconv"
	"syscall"
	"zmailer/internal/admin/setup"
	"zmailer/internal/lookup/passwd"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/term"
)

// typed runs zmctl passwd with something on its standard input.
func typed(t *testing.T, in io.Reader, args ...string) (said string, code int, err error) {
	t.Helper()
	var out strings.Builder
	a := app()
	a.Reader, a.Writer, a.ErrWriter = in, &out, io.Discard
	a.ExitErrHandler = func(*cli.Context, error) {}
	err = a.RunContext(t.Context(), append([]string{"zmctl"}, args...))
	return out.String(), config.Exit(err), err
}

// read parses a file of accounts.
func read(t *testing.T, path string) *passwd.Accounts {
	t.Helper()
	text, err := os.ReadFile(path)
	assert.Must(t, err)
	a, err := passwd.Parse(path, text)
	assert.Must(t, err)
	return a
}

func TestPasswdWritesTheFileOfAUTH(t *testing.T) {
	dir, conf := tables(t, nil)
	assert.Must(t, os.WriteFile(conf, []byte("AUTH=file:users\n"), 0o644))
	path := filepath.Join(dir, "users")
	said, code, err := typed(t, strings.NewReader("secret\n"), "--config", conf, "passwd", "jane")
	if code != 0 || said != path+": jane added\n" {
		t.Fatalf("got %d %v %q", code, err, said)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if a := read(t, path); a.Verify("jane", "secret") != nil || a.HasSCRAM() {
		t.Error("jane's password does not hold, or she has SCRAM keys")
	}
	assert.Must(t, os.Chmod(path, 0o600))
	said, code, err = typed(t, strings.NewReader("better\r\n"), "--config", conf, "passwd", "--scram", "jane")
	if code != 0 || said != path+": jane has a new password\n" {
		t.Fatalf("got %d %v %q", code, err, said)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if a := read(t, path); a.Verify("jane", "better") != nil || a.Verify("jane", "secret") == nil || !a.HasSCRAM() {
		t.Error("the change does not hold")
	}
	if said, code, err = typed(t, nil, "--config", conf, "passwd", "--remove", "jane"); code != 0 || read(t, path).Count() != 0 {
		t.Errorf("remove: got %d %v %q", code, err, said)
	}
	if _, code, _ = typed(t, nil, "--config", conf, "passwd", "--remove", "jane"); code != 1 {
		t.Errorf("remove again: got %d", code)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".passwd*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestPasswdChangesNothingWithoutAPassword(t *testing.T) {
	dir, conf := tables(t, map[string]string{"users": "ann:old\n"})
	path := filepath.Join(dir, "users")
	for name, tt := range map[string]struct {
		in   string
		args []string
		code int
	}{
		"nothing typed":   {"", []string{"--file", path, "ann"}, 1},
		"an empty line":   {"\n", []string{"--file", path, "ann"}, 1},
		"endless":         {strings.Repeat("x", passwd.MaxPassword+1), []string{"--file", path, "ann"}, 1},
		"no user":         {"x\n", []string{"--file", path}, config.ExitUsage},
		"a bad user":      {"x\n", []string{"--file", path, "a:b"}, config.ExitUsage},
		"no file is said": {"x\n", []string{"ann"}, config.ExitConfig},
		"no directory":    {"x\n", []string{"--file", filepath.Join(dir, "none", "users"), "ann"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, code, err := typed(t, strings.NewReader(tt.in), append([]string{"--config", conf, "passwd"}, tt.args...)...)
			assert.Equal(t, code, tt.code, err)
			if text, err := os.ReadFile(path); err != nil || string(text) != "ann:old\n" {
				t.Errorf("got %q, %v", text, err)
			}
		})
	}
}

// Who can write to the directory has root change and read no file of root's, and does not keep it
// waiting.
func TestPasswdChangesNoFileOfRootForOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, plant := range map[string]func(shadow, path string) error{
		"a symbolic link": func(shadow, path string) error {
			return errors.Join(os.Symlink(shadow, path), os.Lchown(path, 4711, 4711))
		},
		"one behind another": func(shadow, path string) error {
			return errors.Join(os.Symlink(filepath.Base(path)+"2", path), os.Symlink(shadow, path+"2"), os.Lchown(path+"2", 4711, 4711))
		},
		"a hard link": func(shadow, path string) error { return os.Link(shadow, path) },
		"a fifo":      func(_, path string) error { return syscall.Mkfifo(path, 0o666) },
		"a directory": func(_, path string) error { return os.Mkdir(path, 0o777) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, others := t.TempDir(), t.TempDir()
			shadow := filepath.Join(dir, "shadow")
			assert.Must(t, os.WriteFile(shadow, []byte("root:hash\n"), 0o600), os.Chown(others, 4711, 4711))
			path := filepath.Join(others, "users")
			assert.Must(t, plant(shadow, path))
			if _, err := setup.ChangeAccounts(path, passwd.Change{User: "jane", Password: "x"}, -1); err == nil {
				t.Error("done")
			}
			assert.Equal(t, string(assert.Get(os.ReadFile(shadow))(t)), "root:hash\n")
			if info, err := os.Lstat(path); err != nil || info.Mode().IsRegular() && name != "a hard link" {
				t.Errorf("it is %v, %v", info.Mode(), err)
			}
		})
	}
	// Root's own link leads to the file, also in a directory of others.
	dir, others := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "users")
	assert.Must(t, os.Chown(others, 4711, 4711), os.Symlink(path, filepath.Join(others, "users")))
	for range 2 {
		_, err := setup.ChangeAccounts(filepath.Join(others, "users"), passwd.Change{User: "jane", Password: "x"}, -1)
		assert.NoError(t, err)
	}
	assert.NoError(t, read(t, path).Verify("jane", "x"))
}

func TestPasswdsAtTheSameTimeAllHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users")
	users := []string{"a", "b", "c", "d", "e", "f"}
	var all sync.WaitGroup
	for _, user := range users {
		all.Go(func() {
			if _, err := setup.ChangeAccounts(path, passwd.Change{User: user, Password: "x"}, -1); err != nil {
				t.Errorf("%s: %v", user, err)
			}
		})
	}
	all.Wait()
	a := read(t, path)
	for _, user := range users {
		if a.Verify(user, "x") != nil {
			t.Errorf("%s is lost", user)
		}
	}
}

func TestPasswdAsksTwiceOnATerminal(t *testing.T) {
	for name, tt := range map[string]struct {
		typed string
		ok    bool
	}{
		"the same": {"secret\nsecret\n", true}, "another": {"secret\nsecreT\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			person, program := terminals(t)
			password, err := term.ReadPassword(t.Context(), program, &typist{person: person, lines: strings.SplitAfter(tt.typed, "\n")})
			if (err == nil) != tt.ok || tt.ok && password != "secret" {
				t.Errorf("got %q, %v", password, err)
			}
		})
	}
}

// Ctrl-C at a prompt ends the program, with a terminal that shows what is typed.
func TestPasswdInterruptedShowsWhatIsTyped(t *testing.T) {
	_, program := terminals(t)
	ctx, interrupt := context.WithCancel(t.Context())
	if _, err := term.ReadPassword(ctx, program, writes(func() {
		if echoes(t, program) {
			t.Error("what is typed is shown at the prompt")
		}
		interrupt()
	})); err == nil {
		t.Error("no error")
	}
	if !echoes(t, program) {
		t.Error("what is typed is hidden afterwards")
	}
}

// writes is called when something is written.
type writes func()

func (w writes) Write(b []byte) (int, error) {
	w()
	return len(b), nil
}

// echoes reports whether a terminal shows what is typed.
func echoes(t *testing.T, f *os.File) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	assert.Must(t, err)
	return state.Lflag&unix.ECHO != 0
}

// typist answers each prompt with a line, as an operator does.
type typist struct {
	person *os.File
	lines  []string
}

func (p *typist) Write(b []byte) (int, error) {
	if strings.HasSuffix(string(b), ": ") {
		line := p.lines[0]
		p.lines = p.lines[1:]
		if _, err := p.person.WriteString(line); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// Op2: a file that root writes can be read by the user of the daemons, also one that only root
// could read before.
func TestOp2DaemonsReadWhatPasswdWrites(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root writes files for another user")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("SKIPPED: no user nobody here:", err)
	}
	dir := t.TempDir()
	conf, path := filepath.Join(dir, "zmailer.conf"), filepath.Join(dir, "users")
	assert.Must(t, os.WriteFile(conf, []byte("POSTOFFICE="+dir+"/po\nDAEMONUSER=nobody\nAUTH=file:users\n"), 0o644))
	for _, before := range []string{"none", "root's"} {
		if before != "none" {
			assert.Must(t, os.Chown(path, 0, 0))
		}
		if said, code, err := typed(t, strings.NewReader("secret\n"), "--config", conf, "passwd", "jane"); code != 0 {
			t.Fatalf("%s: %d %v %s", before, code, err, said)
		}
		info := assert.Get(os.Stat(path))(t)
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode().Perm() != 0o640 || st.Uid != 0 || strconv.Itoa(int(st.Gid)) != nobody.Gid {
			t.Errorf("%s: mode %v of %d:%d, want 0640 of 0:%s", before, info.Mode(), st.Uid, st.Gid, nobody.Gid)
		}
	}
}
