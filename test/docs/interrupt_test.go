package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A reader's Ctrl-C ends what goes on, a page ends where a program is missing, and what it
// has copied from the sources is there.
const interruptible = `# A page
<!-- run: source internal/admin/importer/opensmtpd/testdata/spool /srv/old -->
~~~console
$ ls /srv/old
queue
$ sh -c 'echo $$; exec sleep 1000'
4711
^C
$ kill -0 4711 2>&1 | grep -c 'No such'
1
$ echo done > ~/mark
~~~
<!-- needs: no-such-program-here -->
~~~console
$ echo more > ~/mark
~~~
`

func TestReadersCtrlCEndsACommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open755(t, dir)
	as, credential := whoever(t, false)
	r, err := begin("interruptible", dir, bin, as, credential)
	if err != nil {
		t.Fatal(err)
	}
	defer r.end()
	r.logf = t.Logf
	r.failed = func(line int, text string) { t.Errorf("line %d: %s", line, text) }
	p, err := parse(strings.ReplaceAll(interruptible, "~~~", "```"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.steps(p); err != nil {
		t.Fatal(err)
	}
	if mark, err := os.ReadFile(filepath.Join(r.root, "home", login, "mark")); string(mark) != "done\n" {
		t.Errorf("got %q, %v: want done", mark, err)
	}
}

// A command that ends by itself is none that a reader interrupts.
func TestCommandThatEndsIsNotInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open755(t, dir)
	as, credential := whoever(t, false)
	r, err := begin("ends", dir, bin, as, credential)
	if err != nil {
		t.Fatal(err)
	}
	defer r.end()
	r.failed = func(int, string) {}
	if err := r.steps(page{steps: []step{{kind: shown, text: "echo here", want: "here\n^C"}}}); err == nil {
		t.Error("got no error")
	}
}
