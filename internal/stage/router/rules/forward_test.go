package rules

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// newHomes returns a conf whose users carol and dave are us, with homes; erin's home is not
// there, and ghost has none.
func newHomes(t *testing.T, forward string, files map[string]string) *conf {
	t.Helper()
	users := system{}
	return newSystem(t, users, files, func(k *Config) {
		me := uint32(os.Geteuid())
		for login, home := range map[string]string{"carol": "home/carol", "dave": "home/dave", "erin": "away/erin"} {
			users[login] = User{UID: me, Home: filepath.Join(k.Dir, home)}
		}
		users["ghost"] = User{UID: me, Home: "/nonexistent"}
		for _, home := range []string{"home/carol", "home/dave"} {
			assert.Must(t, os.MkdirAll(filepath.Join(k.Dir, home), 0o755))
		}
		k.Forward = forward
	})
}

const (
	carolsMailbox = "local carol@mx.example.org carol@mx.example.org UID"
	davesMailbox  = "local dave@mx.example.org dave@mx.example.org UID"
)

func TestForwardSendsAUsersMailOn(t *testing.T) {
	const away = "smtp example.net carol@example.net 65534"
	tests := map[string]struct {
		forward string // of carol; -: none
		want    []string
	}{
		"none":                        {"-", []string{carolsMailbox}},
		"empty":                       {"# not now\n\n", []string{carolsMailbox}},
		"elsewhere":                   {"carol@example.net\n", []string{away}},
		"elsewhere and a copy":        {"\\carol, carol@example.net\n", []string{carolsMailbox, away}},
		"elsewhere and herself":       {"carol@example.net\ncarol\n", []string{away, carolsMailbox}},
		"another user, who has one":   {"dave\n", []string{"file file /srv/dave UID"}},
		"another's mailbox":           {"\\dave\n", []string{davesMailbox}},
		"a program":                   {"\"|/usr/bin/vacation carol\"\n", []string{"pipe pipe |/usr/bin/vacation carol UID"}},
		"a file and a Maildir":        {"/srv/a, /srv/b/\n", []string{"file file /srv/a UID", "file file /srv/b/ UID"}},
		"nothing":                     {"/dev/null\n", []string{"bitbucket - /dev/null 65534"}},
		"a list of hers":              {":include:@DIR/home/carol/friends\n", []string{away, "pipe pipe |/bin/prog UID"}},
		"who sends it back":           {"back\n", []string{carolsMailbox}},
		"not to be understood":        {"carol@example.net\na b\n", []string{carolsMailbox}},
		"too large":                   {strings.Repeat("# x\n", keptRoll/4+1) + "carol@example.net\n", []string{carolsMailbox}},
		"an address that is not here": {"nobody-here\n", []string{"error nouser nobody-here@mx.example.org 65534"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newHomes(t, "~/.forward", map[string]string{
				"home/dave/.forward": "/srv/dave\n", "home/carol/friends": "carol@example.net\n|/bin/prog\n", "aliases": "back: carol\n",
			})
			if tt.forward != "-" {
				c.write("home/carol/.forward", tt.forward)
			}
			assert.Same(t, c.resolve("carol", false), tt.want, c.log.String())
		})
	}
}

func TestForwardThatIsNotSafeIsIgnoredAndSaidOnce(t *testing.T) {
	tests := map[string]struct {
		spoil func(dir, path string) error
		want  string // in the log
		root  bool
	}{
		"its group may write it":      {func(_, path string) error { return os.Chmod(path, 0o664) }, "/.forward may be written by its group", false},
		"everybody may write it":      {func(_, path string) error { return os.Chmod(path, 0o646) }, "/.forward may be written by everybody", false},
		"everybody may write home":    {func(_, path string) error { return os.Chmod(filepath.Dir(path), 0o777) }, "home/carol may be written by everybody", false},
		"group may write above home":  {func(dir, _ string) error { return os.Chmod(filepath.Join(dir, "home"), 0o775) }, "/home may be written by its group", false},
		"it is a directory":           {func(_, path string) error { return os.Mkdir(path+"x", 0o755) }, "not a regular file", false},
		"it is a FIFO":                {func(_, path string) error { return joinErr(os.Remove(path), syscall.Mkfifo(path, 0o644)) }, "not a regular file", false},
		"it is another user's":        {func(_, path string) error { return os.Chown(path, 70001, -1) }, "it belongs to uid 70001, not to carol", true},
		"it is a link to another's":   {func(dir, path string) error { return linkToOther(dir, path, 70001, -1) }, "it belongs to uid 70001, not to carol", true},
		"it is another's link":        {func(dir, path string) error { return linkToOther(dir, path, -1, 70001) }, ".forward on the way to", true},
		"home is another user's":      {func(_, path string) error { return os.Chown(filepath.Dir(path), 70001, -1) }, "belongs to uid 70001, neither root nor the file's owner", true},
		"it says what means nothing":  {func(_, path string) error { return os.WriteFile(path, []byte("a b\n"), 0o644) }, ".forward:1: bad line of a list", false},
		"it is a link to itself":      {func(_, path string) error { return joinErr(os.Remove(path), os.Symlink(path, path)) }, "", false},
		"it is a link to what is not": {func(dir, path string) error { return joinErr(os.Remove(path), os.Symlink(dir+"/gone", path)) }, "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.root && os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			c := newHomes(t, "~/.forward", map[string]string{"home/carol/.forward": "carol@example.net\n"})
			path := filepath.Join(c.dir, "home/carol/.forward")
			if name == "it is a directory" {
				assert.Must(t, joinErr(os.Remove(path), os.Mkdir(path, 0o755)))
			} else if err := tt.spoil(c.dir, path); err != nil {
				t.Fatal(err)
			}
			if tt.want == "" {
				// What a link leads to may come back: with a file gone for good it is no .forward, with
				// ELOOP the answer is unknown.
				got := c.resolve("carol", false)
				if name == "it is a link to itself" && !strings.HasPrefix(got[0], "trouble: ") || name != "it is a link to itself" && got[0] != carolsMailbox {
					t.Errorf("got %q", got)
				}
				return
			}
			for range 3 {
				c.touchIf(path)
				if got, want := c.resolve("carol", false), []string{carolsMailbox}; !cmp.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			log := c.log.String()
			if n := strings.Count(log, "forward-ignored"); n != 1 || !strings.Contains(log, tt.want) {
				t.Errorf("said %d times, want once, with %q:\n%s", n, tt.want, log)
			}
		})
	}
}

// touchIf makes a regular file's change an hour old.
func (c *conf) touchIf(path string) {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		rel := assert.Get(filepath.Rel(c.dir, path))(c.t)
		c.touch(rel, -1e9*3600)
	}
}

func joinErr(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

// linkToOther puts a symbolic link in the place of a file, and gives file and link to
// uids.
func linkToOther(dir, path string, file, link int) error {
	to := filepath.Join(dir, "other")
	return joinErr(os.Rename(path, to), os.Chown(to, file, -1), os.Symlink(to, path), os.Lchown(path, link, -1))
}

func TestForwardThatCannotBeToldIsTrouble(t *testing.T) {
	c := newHomes(t, "~/.forward", map[string]string{"home/dave/.forward": "carol\n"})
	// A home that is not mounted.
	if got, want := c.resolve("erin", false), "trouble: "+filepath.Join(c.dir, "away/erin/.forward")+": "+filepath.Join(c.dir, "away/erin")+" is not there"; len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// One that is not meant to be there.
	if got, want := c.resolve("ghost", false), []string{"local ghost@mx.example.org ghost@mx.example.org UID"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// One that is being written.
	c.Tables().rolls.tries = 2
	c.touch("home/dave/.forward", 0)
	if got := c.resolve("dave", false); len(got) != 1 || !strings.Contains(got[0], "dave/.forward: it is being changed") {
		t.Errorf("got %q, want trouble", got)
	}
}

// A home below a directory that the router may not enter: that it is not there it has to be told.
func TestClosedDirectoryHidesNoMissingHome(t *testing.T) {
	above := t.TempDir()
	home := filepath.Join(above, "erin")
	known := lookedUp{}
	for at := above; ; at = filepath.Dir(at) {
		info := assert.Get(os.Lstat(at))(t)
		known[at] = info
		if at == "/" {
			break
		}
	}
	assert.Must(t, os.Chmod(above, 0))
	t.Cleanup(func() { _ = os.Chmod(above, 0o700) })
	if os.Geteuid() == 0 {
		// This thread looks without root's rights to files; it ends with the goroutine.
		runtime.LockOSThread()
		assert.Must(t, unix.Setfsuid(4711))
		t.Cleanup(func() { _ = unix.Setfsuid(0) }) // before the directory is removed
	}
	if _, err := os.Stat(home); !errors.Is(err, fs.ErrPermission) {
		t.Fatalf("the directory is not closed: %v", err)
	}
	f := newForwards("~/.forward", nil)
	u := User{Login: "erin", Home: home}
	file := filepath.Join(home, ".forward")
	why, trouble := f.failed(reach{known}, u, file, home, fs.ErrNotExist)
	if why != "" || trouble == nil || !strings.Contains(trouble.Error(), home+" is not there; mount it") {
		t.Errorf("got %q, %v", why, trouble)
	}
	known[home] = known[above]
	if why, trouble := f.failed(reach{known}, u, file, home, fs.ErrNotExist); why != "" || trouble != nil {
		t.Errorf("a home that is there: got %q, %v", why, trouble)
	}
}

// lookedUp is Closed for names that are known.
type lookedUp map[string]fs.FileInfo

func (l lookedUp) Look(path string) (fs.FileInfo, string, error) {
	if info := l[path]; info != nil {
		return info, "", nil
	}
	return nil, "", &fs.PathError{Op: "lstat", Path: path, Err: fs.ErrNotExist}
}

func (l lookedUp) Open(path string) (*os.File, error) {
	return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
}

func TestForwardSettingIsThePathOfTheFile(t *testing.T) {
	files := map[string]string{"home/carol/.forward": "dave\n", "home/carol/.fwd-carol": "a@example.net\n", "forward/carol": "b@example.net\n"}
	tests := map[string]struct{ setting, want string }{
		"usual":        {"~/.forward", davesMailbox},
		"off":          {"", carolsMailbox},
		"other name":   {"~/.fwd-%u", "smtp example.net a@example.net 65534"},
		"a directory":  {"@DIR/forward/%u", "smtp example.net b@example.net 65534"},
		"not mounted":  {"@DIR/nowhere/%u", "trouble: @DIR/nowhere/carol: @DIR/nowhere is not there; mount it, or give carol an alias, or set FORWARD=off"},
		"only for him": {"@DIR/forward/%u.mine", carolsMailbox},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newHomes(t, "", files)
			k := c.config()
			k.Passwd = system{"carol": {UID: uint32(os.Geteuid()), Home: c.dir + "/home/carol"}, "dave": {UID: uint32(os.Geteuid()), Home: c.dir + "/home/dave"}}
			k.Forward = strings.ReplaceAll(tt.setting, "@DIR", c.dir)
			r := assert.Get(New(k))(t)
			c.Rules = r
			if got, want := c.resolve("carol", false), []string{strings.ReplaceAll(tt.want, "@DIR", c.dir)}; !cmp.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	for _, bad := range []string{"forward", "/var/forward", "~carol/.forward"} {
		if CheckForward(bad) == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// What is asked, in which order, is what docs/routing.md says.
func TestTraceTellsEveryStep(t *testing.T) {
	c := newHomes(t, "~/.forward", map[string]string{
		"localnames": "example.org\n", "routes": ".example.net smtp!hub\n", "fqdnaliases": "@old.example: %1@example.org\n",
		"aliases": "# x\nsales: team+x, :include:@DIR/members\n", "lists/team": "carol\n", "members": "\nbob@a.example.net\n",
		"home/carol/.forward": "\\carol\n",
	})
	k := c.config()
	k.Passwd, k.Forward, k.Subaddress = system{"carol": {UID: uint32(os.Geteuid()), Home: c.dir + "/home/carol"}}, "~/.forward", "+"
	r := assert.Get(New(k))(t)
	c.Rules = r
	var got []string
	steps := func(s Step) {
		text := strings.NewReplacer(c.dir+"/", "", fmt.Sprint("uid ", os.Geteuid()), "uid UID").Replace(
			fmt.Sprintf("%d %s | %s | %s | %s | %s", s.Depth, s.Address, s.Table, s.Where, s.Key, s.Result))
		got = append(got, text)
	}
	m := mustParse(t, "sales@old.example")
	assert.Must(t, r.Tables().Resolve(t.Context(), Query{Recipient: m, Trace: steps}, func(Target) error { return nil }))
	want := []string{
		"0 sales@old.example | fqdnaliases | fqdnaliases:1 | @old.example | %1@example.org",
		"1 sales@example.org | fqdnaliases |  |  | no entry",
		"1 sales@example.org | localnames | localnames:1 | example.org | example.org is ours",
		"1 sales@example.org | aliases | aliases:2 | sales | team+x, :include:members",
		"2 team+x | fqdnaliases |  |  | no entry",
		"2 team+x | aliases |  |  | no entry",
		"2 team+x | lists |  |  | no entry",
		"2 team+x | users |  |  | no user team+x",
		"2 team+x | aliases |  |  | no entry",
		"2 team+x | lists | lists/team | team | list; mail to members comes from owner-team@mx.example.org; its programs and files as uid UID",
		"3 carol | fqdnaliases |  |  | no entry",
		"3 carol | aliases |  |  | no entry",
		"3 carol | lists |  |  | no entry",
		"3 carol | .forward | home/carol/.forward | carol | its programs and files as uid UID",
		"4 carol | users |  | carol | mailbox of carol, uid UID",
		"2 sales@example.org | :include: | members | members | its programs and files as uid UID",
		"3 bob@a.example.net | fqdnaliases |  |  | no entry",
		"3 bob@a.example.net | localnames |  |  | no entry",
		"3 bob@a.example.net | routes | routes:1 | .example.net | smtp!hub",
	}
	assert.Same(t, got, want)
}

// K9: a .forward that includes a file which cannot be read is that user's affair: his mail
// is in his mailbox, every other recipient's goes its way, and the log says so once.
func TestForwardWithTroubleHarmsNobodyElse(t *testing.T) {
	for name, tt := range map[string]struct {
		forward string // of carol
		aliases string
		rcpt    string
		want    []string
	}{
		"a file that is not there": {
			"carol@example.net\n:include:@DIR/gone\n", "", "team", []string{"smtp a.example.net bob@a.example.net 65534", carolsMailbox, "file file /srv/dave UID"}},
		"a file in a file of hers": {
			":include:@DIR/home/carol/friends\n", "", "team", []string{"smtp a.example.net bob@a.example.net 65534", carolsMailbox, "file file /srv/dave UID"}},
		"what she had led to before goes on from elsewhere": {
			"dave, :include:@DIR/gone\n", "", "team", []string{"smtp a.example.net bob@a.example.net 65534", carolsMailbox, "file file /srv/dave UID"}},
		"by another's .forward": {
			":include:@DIR/gone\n", "", "dave2", []string{carolsMailbox, "smtp b.example.net dave@b.example.net 65534"}},
		"an alias of the system's with that trouble is everybody's": {
			"broken\n", "broken: :include:@DIR/gone\n", "team", []string{"trouble"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newHomes(t, "~/.forward", map[string]string{
				"home/carol/.forward": tt.forward, "home/dave/.forward": "/srv/dave\n",
				"home/carol/friends": "x@example.net\n:include:@DIR/gone\n",
				"lists/team":         "bob@a.example.net\ncarol\ndave\n",
				"aliases":            "dave2: carol, dave@b.example.net\n" + tt.aliases,
			})
			for range 2 {
				got := c.resolve(tt.rcpt, false)
				if len(tt.want) == 1 && strings.HasPrefix(got[0], tt.want[0]) {
					return
				}
				assert.Same(t, got, tt.want)
			}
			assert.Equal(t, strings.Count(c.log.String(), "forward-ignored"), 1, "lines in: %s", c.log.String())
		})
	}
}

// A router that stops, or a message that is given back since there is no place for it, may
// end the wait for a file that a .forward includes. That is no fault of the file: the mail
// must not go to the user's mailbox for it.
func TestForwardIsNotIgnoredWhenTheWaitIsEnded(t *testing.T) {
	c := newHomes(t, "~/.forward", map[string]string{
		"home/carol/.forward": "carol@example.net\n:include:@DIR/home/carol/friends\n",
		"home/carol/friends":  "x@example.net\n",
	})
	c.touch("home/carol/friends", 0) // it never settles, since the clock stands still
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var got []Target
	err := c.Tables().Resolve(ctx, Query{Recipient: mustParse(t, "carol")}, func(to Target) error {
		got = append(got, to)
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v; want the end of the wait as the error", got, err)
	}
	if strings.Contains(c.log.String(), "forward-ignored") {
		t.Errorf("the .forward was ignored:\n%s", c.log.String())
	}
}
