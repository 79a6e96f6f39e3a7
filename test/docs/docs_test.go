package docs

import (
	"flag"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/stage/tasmtp/mx/mxtest"
	"zmailer/test/suite"
)

var update = flag.Bool("update", false, "write what commands print into the pages; to be read and shortened then")

// bin is where TestMain has built the programs.
var bin string

func TestMain(m *testing.M) {
	suite.AtOnce(4)
	built := flag.String("bin", "", "programs that are built already, for who writes a page")
	flag.Parse()
	if *built != "" {
		bin = *built
		os.Exit(m.Run())
	}
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// documents returns the texts of all files that may have commands, by their paths below docs/.
func documents(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, file := range append(files, "../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel("../../docs", file)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	return texts
}

// Every command that a page shows in a console block is run, and prints what the page says.
func TestCommandsPrintWhatThePagesShow(t *testing.T) {
	ran := 0
	for name, text := range documents(t) {
		if p, err := parsePage(name, text); err == nil && len(p.steps) == 0 {
			continue
		}
		ran++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runPage(t, name, text)
		})
	}
	if ran == 0 {
		t.Error("no page has commands")
	}
}

func runPage(t *testing.T, name, text string) {
	p, err := parsePage(name, text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, why := range p.notRun {
		t.Logf("%s: a block is not run: %s", name, why)
	}
	dir := t.TempDir()
	open755(t, dir)
	as, credential := whoever(t, needsRoot(p))
	r, err := begin(name, dir, bin, as, credential)
	if err != nil {
		t.Fatal(err)
	}
	defer r.end()
	if *update {
		r.settling = 2 * time.Second
	}
	r.logf = t.Logf
	r.names = func(zone string) string {
		s := mxtest.Start(t, zone)
		for _, name := range signed(zone) {
			s.Sign(name)
		}
		return s.Addr
	}
	r.failed = func(line int, text string) { t.Errorf("%s:%d: %s", name, line, text) }
	if err := r.steps(p); err != nil {
		t.Error(err)
	}
	if *update && len(r.new) > 0 {
		if err := rewrite(filepath.Join("../../docs", name), r.new); err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(r.root, "*", "*", "*log*"))
		for _, file := range logs {
			text, _ := os.ReadFile(file)
			t.Logf("%s:\n%s", file, text[max(0, len(text)-4000):])
		}
	}
}

// A command that a page shows is run, or the page says why it is not.
func TestEveryCommandIsRun(t *testing.T) {
	for name, text := range documents(t) {
		p, err := parsePage(name, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, s := range p.loose {
			t.Errorf("%s:%d: this command is not run: %s", name, s.line, s.text)
		}
	}
}

// open755 lets every user into a test's directory.
func open755(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func needsRoot(p page) bool {
	for _, s := range p.steps {
		if s.kind == root {
			return true
		}
	}
	return false
}

// whoever is who runs a page: an ordinary user also where the test is root, because
// readers are told that they need no more.
func whoever(t *testing.T, needsRoot bool) (*user.User, *syscall.Credential) {
	t.Helper()
	if os.Getuid() != 0 || needsRoot {
		me, err := user.LookupId(strconv.Itoa(os.Getuid()))
		if err != nil {
			t.Skipf("the pages are for users who have a name: %v", err)
		}
		return me, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	return nobody, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
