package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
)

const otherUID, thirdUID = 70001, 70002

// M48
func TestWhoIsBehindAFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	tests := map[string]struct {
		make func(d string) error // d/a/b/file belongs to otherUID, all above to root
		path string               // below d; "": a/b/file
		uid  uint32
		why  string
	}{
		"its owner":                          {nil, "", otherUID, ""},
		"root":                               {func(d string) error { return os.Chown(d+"/a/b/file", 0, 0) }, "", 0, ""},
		"the user nobody's":                  {func(d string) error { return os.Chown(d+"/a/b/file", Nobody, -1) }, "", Nobody, "file belongs to the user nobody"},
		"group writes it":                    {func(d string) error { return os.Chmod(d+"/a/b/file", 0o664) }, "", Nobody, "/a/b/file may be written by its group"},
		"everybody writes it":                {func(d string) error { return os.Chmod(d+"/a/b/file", 0o602) }, "", Nobody, "/a/b/file may be written by everybody"},
		"group writes its directory":         {func(d string) error { return os.Chmod(d+"/a/b", 0o775) }, "", Nobody, "the directory DIR/a/b may be written by its group"},
		"everybody writes a directory above": {func(d string) error { return os.Chmod(d+"/a", 0o757) }, "", Nobody, "the directory DIR/a may be written by everybody"},
		"everybody writes a sticky one":      {func(d string) error { return os.Chmod(d+"/a", 0o777|os.ModeSticky) }, "", otherUID, ""},
		"a directory is the owner's":         {func(d string) error { return os.Chown(d+"/a", otherUID, -1) }, "", otherUID, ""},
		"a directory is a third one's":       {func(d string) error { return os.Chown(d+"/a", thirdUID, -1) }, "", Nobody, "DIR/a on the way to DIR/a/b/file belongs to uid 70002"},
		"root's link to it":                  {func(d string) error { return os.Symlink("a/b/file", d+"/link") }, "link", otherUID, ""},
		"its owner's link": {func(d string) error {
			return joinErr(os.Symlink(d+"/a/b/file", d+"/link"), os.Lchown(d+"/link", otherUID, -1))
		}, "link", otherUID, ""},
		"a third one's link": {func(d string) error {
			return joinErr(os.Symlink("a/b/file", d+"/link"), os.Lchown(d+"/link", thirdUID, -1))
		}, "link", Nobody, "DIR/link on the way to DIR/link belongs to uid 70002"},
		"a link to a directory":                {func(d string) error { return os.Symlink("../a/b", d+"/a/link") }, "a/link/../b/file", otherUID, ""},
		"a link through what everybody writes": {func(d string) error { return joinErr(os.Chmod(d+"/a/b", 0o777), os.Symlink("a/b", d+"/link")) }, "link/file", Nobody, "the directory DIR/a/b may be written by everybody"},
		"a link in a directory everybody writes": {func(d string) error {
			return joinErr(os.Mkdir(d+"/w", 0o777), os.Chmod(d+"/w", 0o777), os.Symlink("../a/b/file", d+"/w/link"))
		}, "w/link", Nobody, "the directory DIR/w may be written by everybody"},
		"links that lead to themselves":           {func(d string) error { return os.Symlink("link", d+"/link") }, "link", Nobody, syscall.ELOOP.Error()},
		"a file where a directory should be":      {nil, "a/b/file/x", Nobody, syscall.ENOTDIR.Error()},
		"nothing at all":                          {nil, "a/x", Nobody, syscall.ENOENT.Error()},
		"a link to nothing":                       {func(d string) error { return os.Symlink("gone", d+"/link") }, "link", Nobody, syscall.ENOENT.Error()},
		"a directory that only its owner may see": {func(d string) error { return os.Chmod(d+"/a", 0o700) }, "", otherUID, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			err := joinErr(os.MkdirAll(d+"/a/b", 0o755), os.WriteFile(d+"/a/b/file", nil, 0o600), os.Chown(d+"/a/b/file", otherUID, -1))
			if err == nil && tt.make != nil {
				err = tt.make(d)
			}
			assert.Must(t, err)
			if tt.path == "" {
				tt.path = "a/b/file"
			}
			got, _, err := guarded(d + "/" + tt.path)
			why := got.why
			if err != nil {
				why = err.Error()
			}
			if want := strings.ReplaceAll(tt.why, "DIR", d); got.uid != tt.uid || !strings.Contains(why, want) || want == "" && why != "" {
				t.Errorf("got uid %d, %q, want %d, %q", got.uid, why, tt.uid, want)
			}
		})
	}
}

// M48
func TestProgramsActAsWhoeverWroteThem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	pipe := func(uid int) []string { return []string{fmt.Sprintf("pipe pipe.%d |/bin/prog %d", uid, uid)} }
	roots := []string{"pipe pipe |/bin/prog UID"}
	refused := func(rcpt, at, why string) []string {
		return []string{"error unsafe: |/bin/prog in " + at + ": " + why + ": " + rcpt + " 65534"}
	}
	chain := func(file, by string) string {
		return file + " belongs to uid " + by
	}
	tests := map[string]struct {
		files  map[string]string
		owners map[string]int
		modes  map[string]os.FileMode
		rcpt   string
		want   []string
	}{
		"root's alias":               {map[string]string{"aliases": "x: |/bin/prog\n"}, nil, nil, "x", roots},
		"another's aliases":          {map[string]string{"aliases": "x: |/bin/prog\n"}, map[string]int{"aliases": otherUID}, nil, "x", pipe(otherUID)},
		"whole addresses":            {map[string]string{"fqdnaliases": "x@a.example: |/bin/prog\n"}, map[string]int{"fqdnaliases": otherUID}, nil, "x@a.example", pipe(otherUID)},
		"root's list":                {map[string]string{"lists/x": "|/bin/prog\n"}, nil, nil, "x", roots},
		"a user's list":              {map[string]string{"lists/x": "|/bin/prog\n"}, map[string]int{"lists/x": otherUID}, nil, "x", pipe(otherUID)},
		"a list everybody writes":    {map[string]string{"lists/x": "|/bin/prog\n"}, nil, map[string]os.FileMode{"lists/x": 0o666}, "x", refused("x", "lists/x:1", "lists/x may be written by everybody")},
		"lists that everybody makes": {map[string]string{"lists/x": "|/bin/prog\n"}, nil, map[string]os.FileMode{"lists": 0o777}, "x", refused("x", "lists/x:1", "the directory lists may be written by everybody")},
		"root's alias and a user's file": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": "|/bin/prog\n"},
			map[string]int{"f": otherUID}, nil, "x", pipe(otherUID)},
		"another's alias and a user's file": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": "|/bin/prog\n"},
			map[string]int{"f": otherUID, "aliases": thirdUID}, nil, "x", pipe(otherUID)},
		"a user's file and another of his": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": ":include:@DIR/g\n", "g": "|/bin/prog\n"},
			map[string]int{"f": otherUID, "g": otherUID}, nil, "x", pipe(otherUID)},
		"a user's file and root's": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": ":include:@DIR/g\n", "g": "|/bin/prog\n"},
			map[string]int{"f": otherUID}, nil, "x", refused("x", "g:1", chain("g", "0, and a file of uid 70001 includes it"))},
		"a user's file and another user's": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": ":include:@DIR/g\n", "g": "|/bin/prog\n"},
			map[string]int{"f": otherUID, "g": thirdUID}, nil, "x", refused("x", "g:1", chain("g", "70002, and a file of uid 70001 includes it"))},
		"root's list and a user's file": {map[string]string{"lists/x": ":include:@DIR/g\n", "g": "|/bin/prog\n"},
			map[string]int{"g": otherUID}, nil, "x", pipe(otherUID)},
		"aliases all write and root's file": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": "|/bin/prog\n"}, nil,
			map[string]os.FileMode{"aliases": 0o666}, "x", refused("x", "f:1", "aliases may be written by everybody")},
		"a user's list and root's alias": {map[string]string{"lists/x": "y\n", "aliases": "y: |/bin/prog\n"},
			map[string]int{"lists/x": otherUID}, map[string]os.FileMode{"lists/x": 0o666}, "x", roots},
		"a list all write and /dev/null": {map[string]string{"lists/x": "/dev/null\n"}, nil, map[string]os.FileMode{"lists/x": 0o666}, "x", []string{"bitbucket - /dev/null 65534"}},
		"a user's file and one he may not read": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": ":include:@DIR/g\n", "g": "a@example.net\n"},
			map[string]int{"f": otherUID}, map[string]os.FileMode{"g": 0o600}, "x", []string{"trouble: :include:DIR/g: uid 70001, whose file includes it, may not read it"}},
		"a user's file in a directory that he may not enter": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": ":include:@DIR/h/g\n", "h/g": "a@example.net\n"},
			map[string]int{"f": otherUID}, map[string]os.FileMode{"h": 0o700}, "x", []string{"trouble: :include:DIR/h/g: uid 70001, whose file includes it, may not enter DIR/h"}},
		"a user's own closed directory": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": ":include:@DIR/h/g\n", "h/g": "a@example.net\n"},
			map[string]int{"f": otherUID, "h": otherUID, "h/g": otherUID}, map[string]os.FileMode{"h": 0o700, "h/g": 0o600}, "x", []string{"smtp example.net a@example.net 65534"}},
		"by way of a file all write: what its owner may not read": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": ":include:@DIR/w\n", "w": ":include:@DIR/g\n", "g": "a@example.net\n"},
			map[string]int{"f": otherUID, "w": otherUID}, map[string]os.FileMode{"w": 0o666, "g": 0o600}, "x", []string{"trouble: :include:DIR/g: the user nobody, as whom the file acts that includes it, may not read it"}},
		"by way of a file all write: what all may read": {map[string]string{"aliases": "x: :include:@DIR/f\n", "f": ":include:@DIR/w\n", "w": ":include:@DIR/g\n", "g": "a@example.net\n"},
			map[string]int{"f": otherUID, "w": otherUID}, map[string]os.FileMode{"w": 0o666}, "x", []string{"smtp example.net a@example.net 65534"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.files["users"] = "carol\n"
			c := newConf(t, tt.files)
			for file, uid := range tt.owners {
				assert.Must(t, os.Chown(filepath.Join(c.dir, file), uid, -1))
			}
			for file, mode := range tt.modes {
				assert.Must(t, os.Chmod(filepath.Join(c.dir, file), mode))
			}
			// What the test makes temporary directories in is ours alone.
			assert.Must(t, os.Chmod(filepath.Dir(c.dir), 0o755))
			c.advance(period)
			got := c.resolve(tt.rcpt, false)
			for i := range got {
				got[i] = strings.ReplaceAll(got[i], c.dir, "DIR")
			}
			assert.Same(t, got, tt.want)
			if strings.HasPrefix(tt.want[0], "error unsafe") && !strings.Contains(c.log.String(), "target-refused") {
				t.Error("the log says nothing of it")
			}
		})
	}
}

func TestCheckNamesProgramsThatWillBeRefused(t *testing.T) {
	c := newConf(t, map[string]string{
		"users": "carol\n", "aliases": "a: carol\nb: /dev/null\nc: carol, |/bin/prog\nd: |/bin/prog\n", "lists/x": "carol\n/srv/x\n", "lists/y": "carol\n",
	})
	if err := c.Check(t.Context()); err != nil {
		t.Errorf("all is well: got %v", err)
	}
	for _, name := range []string{"aliases", "lists/x", "lists/y"} {
		assert.Must(t, os.Chmod(filepath.Join(c.dir, name), 0o664))
	}
	c.advance(period)
	got := strings.ReplaceAll(fmt.Sprint(c.Check(t.Context())), c.dir+"/", "")
	want := "aliases:3: its program or file is refused: aliases may be written by its group\nlists/x:2: /srv/x is refused: lists/x may be written by its group"
	assert.Equal(t, got, want)
}

// A shortage says nothing of a recipient: the message is to be tried again, not put away.
func TestShortageIsNoTrouble(t *testing.T) {
	for _, err := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		err = &os.PathError{Op: "open", Path: "/x", Err: err}
		if _, ok := IsTrouble(troubleWith("lists", "/x", err)); ok {
			t.Errorf("%v: got trouble", err)
		}
	}
	if trouble, ok := IsTrouble(troubleWith("lists", "/x", syscall.EIO)); !ok || trouble.Why != "lists" {
		t.Error("EIO: got no trouble with lists")
	}
}
