package rules

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

func TestBadLineIsNamedWithFileLineAndReason(t *testing.T) {
	tests := map[string]struct {
		file, text string
		line       int
		want       string
	}{
		"route of one word":           {"routes", "a.example smtp!\nb.example\n", 2, "want two words"},
		"route of three words":        {"routes", "b.example smtp!a b\n", 1, "want two words"},
		"route without !":             {"routes", "# x\n\nb.example smtp:x\n", 3, `no ! in "smtp:x"`},
		"next hop of transport_maps":  {"routes", "b.example lmtp:unix:/run/l\n", 1, "like lmtp!unix:/run/l"},
		"next hop of relayhost":       {"routes", ". [mx.example]:587\n", 1, "like smtp![mx.example]:587"},
		"route with an open bracket":  {"routes", "b.example smtp![192.0.2.1\n", 1, "smtp![name]:25"},
		"route with a bare port":      {"routes", "b.example smtp![192.0.2.1]25\n", 1, "smtp![name]:25"},
		"route to no channel":         {"routes", "b.example !host\n", 1, `"" is no channel`},
		"route to a shouted channel":  {"routes", "b.example SMTP!host\n", 1, `"SMTP" is no channel`},
		"route to local with a host":  {"routes", "b.example local!host\n", 1, "takes no host"},
		"route for no domain":         {"routes", "b..example smtp!\n", 1, "bad key"},
		"route for an empty suffix":   {"routes", ".. smtp!\n", 1, "bad key"},
		"two local names in a line":   {"localnames", "a.example b.example\n", 1, "one domain a line"},
		"local name that is none":     {"localnames", "-\n", 1, "bad domain"},
		"alias without colon":         {"aliases", "a b\n", 1, "no colon"},
		"alias without name":          {"aliases", ": b\n", 1, "no name"},
		"alias without value":         {"aliases", "a: b\nb:\n", 2, "/dev/null drops the mail"},
		"alias with an empty value":   {"aliases", "a: b,, c\n", 1, "empty value"},
		"alias of an address":         {"aliases", "a@b.example: c\n", 1, "belongs in fqdnaliases"},
		"alias with a blank":          {"aliases", "a b: c\n", 1, "write it in quotes"},
		"continuation of nothing":     {"aliases", "# x\n  a: b\n", 2, "begins with a blank"},
		"value on the third line":     {"aliases", "a: b,\n# x\n  c d,\n  e\n", 3, "bad alias"},
		"relative include":            {"aliases", "a: :include:lists/x\n", 1, "path from the root"},
		"unknown directive":           {"aliases", "a: :fail: no\n", 1, ":include:"},
		"no command":                  {"aliases", "a: |\n", 1, "without a command"},
		"null address":                {"aliases", "a: <>\n", 1, "no recipient"},
		"control character":           {"aliases", "a: \"|x\x01\"\n", 1, "control character"},
		"whole address without @":     {"fqdnaliases", "a: b\n", 1, "belongs in aliases"},
		"whole address, bad domain":   {"fqdnaliases", "a@b..c: b\n", 1, "bad alias"},
		"sender chooses the program":  {"fqdnaliases", "@b.example: \"|prog %1\"\n", 1, "a sender would choose"},
		"sender chooses the file":     {"fqdnaliases", "@b.example: /srv/%1\n", 1, "a sender would choose"},
		"sender chooses the list":     {"fqdnaliases", "@b.example: :include:/srv/%1\n", 1, "a sender would choose"},
		"sender chooses the domain":   {"fqdnaliases", "@b.example: \"x\"@%1.example\n", 1, "bad alias"},
		"user with a path":            {"users", "carol\n../x\n", 2, "one login name a line"},
		"two users on one line":       {"users", "carol dave\n", 1, "one login name a line"},
		"user with a comment":         {"users", "carol # x\n", 1, "one login name a line"},
		"user that hides a directory": {"users", ".\n", 1, "one login name a line"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConf(t, map[string]string{"users": "carol\n"})
			c.write(tt.file, tt.text)
			_, err := New(c.config())
			bad := (*config.Error)(nil)
			if !errors.As(err, &bad) {
				t.Fatalf("got %v, want a *config.Error", err)
			}
			if filepath.Base(bad.File) != tt.file || bad.Line != tt.line || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, want %s:%d and %q", err, tt.file, tt.line, tt.want)
			}
			assert.Equal(t, config.Exit(err), config.ExitConfig, "exit code")
		})
	}
}

// Op4: a key that is there twice is a warning, and the first of the two counts.
func TestOp4FirstOfTwoEqualKeysCounts(t *testing.T) {
	for name, tt := range map[string]struct {
		file, text string
		line       int
		rcpt, want string
	}{
		"two aliases":  {"aliases", "a: carol\nA: dave\n", 2, "a", "local carol@mx.example.org carol@mx.example.org UID"},
		"two routes":   {"routes", "b.example smtp!one\n\nB.Example. smtp!two\n", 3, "x@b.example", "smtp one x@b.example 65534"},
		"two defaults": {"routes", ". smtp!one\n. smtp!two\n", 2, "x@b.example", "smtp one x@b.example 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConf(t, map[string]string{"users": "carol\ndave\n", tt.file: tt.text})
			assert.Equal(t, strings.Join(c.resolve(tt.rcpt, false), ", "), tt.want, "target")
			if want := fmt.Sprintf("%s:%d: warning: ", tt.file, tt.line); !strings.Contains(c.log.String(), "table-warning") || !strings.Contains(c.log.String(), want) {
				t.Errorf("no warning of line %d in: %s", tt.line, c.log.String())
			}
		})
	}
}

func TestChangedTableHoldsFromTheNextLook(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n", "aliases": "a: carol\n"})
	const none = "error nouser b@mx.example.org 65534"
	const carol = "local carol@mx.example.org carol@mx.example.org UID"
	expect := func(what, rcpt, want string) {
		t.Helper()
		assert.Equal(t, strings.Join(c.resolve(rcpt, false), ", "), want, "%s: %s", what, c.log.String())
	}
	expect("before", "b", none)
	c.write("aliases", "a: carol\nb: carol\n")
	expect("within the second", "b", none)
	c.advance(period)
	expect("after a second", "b", carol)

	// A bad change is logged once and does no harm.
	c.write("aliases", "a: carol\nb\n")
	for range 3 {
		c.advance(period)
		expect("bad change", "b", carol)
	}
	assert.Equal(t, strings.Count(c.log.String(), "table-refused"), 1, "refusals in: %s", c.log.String())
	assert.Contains(t, c.log.String(), filepath.Join(c.dir, "aliases")+":2: ", "log")

	// An editor that replaces a file has it away for a moment.
	c.write("aliases", "b: carol\n")
	c.advance(period)
	expect("mended", "b", carol)
	path := filepath.Join(c.dir, "aliases")
	assert.Must(t, os.Rename(path, path+"~"))
	c.advance(period)
	expect("gone for a moment", "b", carol)
	assert.Must(t, os.Rename(path+"~", path))
	c.advance(period)
	expect("back", "b", carol)
	assert.Must(t, os.Remove(path))
	c.advance(period)
	expect("gone at the first look", "b", carol)
	c.advance(period)
	expect("gone at the second look", "b", none)
}

func TestFileThatIsBeingWrittenIsReadWhenItHasSettled(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n", "aliases": "b: carol\n"})
	c.advance(period)
	c.write("aliases", "")
	c.touch("aliases", 0)
	const carol = "local carol@mx.example.org carol@mx.example.org UID"
	if got := c.resolve("b", false); got[0] != carol {
		t.Errorf("truncated: got %q, want what was there before", got)
	}
	c.advance(settle - time.Millisecond)
	if got := c.resolve("b", false); got[0] != carol {
		t.Errorf("not settled: got %q, want what was there before", got)
	}
	c.advance(time.Millisecond)
	if got := c.resolve("b", false); got[0] == carol {
		t.Errorf("settled: got %q, want the empty table", got)
	}
}

func TestTableThatCannotBeReadStaysAsItWas(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n", "aliases": "b: carol\n"})
	path := filepath.Join(c.dir, "aliases")
	assert.Must(t, os.Remove(path))
	assert.Must(t, os.Mkdir(path, 0o755))
	c.touch("aliases", -time.Hour)
	for range 3 {
		c.advance(period)
		assert.Equal(t, c.resolve("b", false)[0], "local carol@mx.example.org carol@mx.example.org UID")
	}
	assert.Equal(t, strings.Count(c.log.String(), "not a regular file"), 1, "refusals in: %s", c.log.String())
}
