package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/suite"
)

var made struct {
	dir string
	m   *manual
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(suite.WithPrograms(func(bin string) int {
		dir, err := os.MkdirTemp("", "man-")
		if err == nil {
			defer os.RemoveAll(dir)
			_, err = write(dir, bin, "../../docs", "2026-11-22")
		}
		if err == nil {
			made.dir = dir
			made.m, err = load(bin, "../../docs")
		}
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
		return m.Run()
	}))
}

// read returns a page as roff, without the signs that keep characters as they are.
func read(t *testing.T, name string) string {
	t.Helper()
	text := assert.Get(os.ReadFile(filepath.Join(made.dir, "man"+name[len(name)-1:], name)))(t)
	return strings.NewReplacer(`\-`, "-", `\(aq`, "'", `\(ga`, "`", `\(ha`, "^", `\(ti`, "~").Replace(string(text))
}

func TestEveryProgramCommandAndFlagHasItsPlace(t *testing.T) {
	programs := assert.Get(filepath.Glob("../../cmd/*"))(t)
	assert.Equal(t, len(programs), len(made.m.programs), "programs described")
	for _, p := range made.m.programs {
		text := read(t, p.Name+".8")
		checkFlags(t, p.Name, text, p.Flags)
		for _, section := range []string{".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS", ".SH SEE ALSO", ".SH ENVIRONMENT"} {
			if !strings.Contains(text, section) {
				t.Errorf("%s.8 has no %s", p.Name, section)
			}
		}
		for _, c := range p.Commands {
			name := p.Name + "-" + c.Name
			if !strings.Contains(text, `\fB`+name+`\fP(8)`) {
				t.Errorf("%s.8 does not name %s", p.Name, name)
			}
			checkCommand(t, name, read(t, name+".8"), c)
		}
	}
}

func checkCommand(t *testing.T, name, text string, c config.Program) {
	t.Helper()
	checkFlags(t, name, text, c.Flags)
	for _, sub := range c.Commands {
		if !strings.Contains(text, ".SH "+strings.ToUpper(sub.Name)) {
			t.Errorf("%s.8 does not tell of %s", name, sub.Name)
		}
		checkCommand(t, name, text, sub)
	}
}

func checkFlags(t *testing.T, name, text string, flags []config.Flag) {
	t.Helper()
	for _, f := range flags {
		dashes := "--"
		if len(f.Names[0]) == 1 {
			dashes = "-"
		}
		if !strings.Contains(text, `\fB`+dashes+f.Names[0]+`\fP`) {
			t.Errorf("%s.8 does not tell of %s", name, dashes+f.Names[0])
		}
	}
}

func TestEverySettingHasItsPlace(t *testing.T) {
	text := read(t, "zmailer.conf.5")
	for _, v := range config.Variables() {
		if !strings.Contains(text, `\fB`+v.Name+`\fP`) {
			t.Errorf("zmailer.conf.5 does not tell of %s", v.Name)
		}
	}
}

func TestEveryFileThatIsMadeHasAPage(t *testing.T) {
	for _, file := range config.Files() {
		name := "zmailer-" + file + ".5"
		if strings.Contains(file, ".conf") {
			name = file + ".5"
		}
		read(t, name)
	}
	// And those that an operator or the programs make.
	for _, name := range []string{"zmailer-access.5", "zmailer-tls.5", "zmailer-credentials.5", "zmailer-dkim.5", "zmailer-masquerade.5",
		"zmailer-accounts.5", "router.star.5", "zmailer-spool.5", "zmailer-envelope.5", "zmailer-workspec.5", "zmailer-ledger.5",
		"zmailer-log.5", "zmailer-mailq.5", "zmailer-ta-protocol.5", "zmailer.7"} {
		read(t, name)
	}
}

func TestEveryDocumentIsAPage(t *testing.T) {
	files := assert.Get(filepath.Glob("../../docs/*.md"))(t)
	overview := read(t, "zmailer.7")
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if name == "HACKING" {
			continue
		}
		e := place(name)
		read(t, page{name: e.name, section: e.section}.file())
		if !strings.Contains(overview, `\fB`+e.name+`\fP(`) {
			t.Errorf("zmailer.7 does not name %s", e.name)
		}
	}
}

// Every page that another one refers to is there.
func TestPagesReferToPagesThatThereAre(t *testing.T) {
	ref := regexp.MustCompile(`(?:\\fB|\b)((?:zmailer|zmctl|scheduler|router)[a-z.-]*)(?:\\f[PR])?\(([578])\)`)
	for _, file := range all(t) {
		for _, m := range ref.FindAllStringSubmatch(read(t, filepath.Base(file)), -1) {
			if _, err := os.Stat(filepath.Join(made.dir, "man"+m[2], m[1]+"."+m[2])); err != nil {
				t.Errorf("%s: there is no %s(%s)", filepath.Base(file), m[1], m[2])
			}
		}
	}
}

func all(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(made.dir, "man?", "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	return files
}

func TestManShowsPagesWithoutWarnings(t *testing.T) {
	if _, err := exec.LookPath("man"); err != nil {
		t.Skip("there is no man")
	}
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip("there is no groff")
	}
	files := all(t)
	if testing.Short() {
		files = slices.DeleteFunc(files, func(f string) bool { return !strings.HasSuffix(f, ".5") })
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err != nil || strings.HasPrefix(string(text), ".so ") {
			continue // another name of a page
		}
		cmd := exec.Command("man", "--warnings=w", "-E", "UTF-8", "-l", file)
		cmd.Dir = made.dir
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=80")
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil || said.Len() > 0 {
			t.Errorf("%s: %v\n%s", filepath.Base(file), err, said.String())
		}
		if len(out) < 200 {
			t.Errorf("%s: shows %q", filepath.Base(file), out)
		}
	}
}

func TestMandocHasNoErrors(t *testing.T) {
	if _, err := exec.LookPath("mandoc"); err != nil {
		t.Skip("there is no mandoc")
	}
	for _, file := range all(t) {
		if text, err := os.ReadFile(file); err != nil || strings.HasPrefix(string(text), ".so ") {
			continue // another name of a page
		}
		out, err := exec.Command("mandoc", "-Tlint", "-Wwarning", file).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(file), err, out)
		}
	}
}

func TestHelpTextsKeepTheirExamples(t *testing.T) {
	text := "Does * things:\n    prog *x*\n    prog -y\nand more, see docs/queue.md.\n\nExit codes: 0 done, 1 not done; 75 try\nagain."
	rest, exits := cutExits(text)
	want := "Does \\* things:\n\n```\nprog *x*\nprog -y\n```\n\nand more, see zmailer-queue(7).\n\n"
	assert.Equal(t, prose(rest), want)
	var b strings.Builder
	writeExits(&b, exits)
	assert.Equal(t, b.String(), "# EXIT STATUS\n\n**0**\n: done\n\n**1**\n: not done\n\n**75**\n: try again\n\n")
}

func TestTablesBecomeColumnsOrLists(t *testing.T) {
	narrow := "| a | b |\n|---|---|\n| `x` | one \\| two |\n"
	assert.Equal(t, adapt(narrow), "\n```\na  b\nx  one | two\n```\n\n")
	long := strings.Repeat("long ", 20)
	wide := "| key | default | meaning |\n|---|---|---|\n| `x` | | " + long + "|\n| `y` | 7 | see [spool.md](spool.md) |\n"
	want := "\n`x`\n: *meaning*: " + strings.TrimSpace(long) + "\n\n`y`\n: *default*: 7  \n*meaning*: see **zmailer-spool**(5)\n\n\n"
	assert.Equal(t, adapt(wide), want)
}
