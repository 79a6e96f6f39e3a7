package confimport

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// fill writes files into a new directory.
func fill(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return dir
}

// A directory that somebody else has made is read without a hang and within bounds: the result is
// a report that names the table, or an error that names the file.
func TestHostileConfigurationsAreReadWithinBounds(t *testing.T) {
	const head = "myhostname = a.example\nmydestination = a.example\n"
	repeat := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	var doubling strings.Builder // each parameter stands for the next one, many times
	for i := range 15 {
		fmt.Fprintf(&doubling, "p%d = %s\n", i, strings.Repeat(fmt.Sprintf("$p%d ", i+1), 200))
	}
	for name, tt := range map[string]struct {
		files   map[string]string
		prepare func(dir string) error
		file    string // that the error names; "": there is a report
		byHand  string // a setting of it
	}{
		"parameters that double":   {map[string]string{"main.cf": head + "virtual_alias_maps = $p0\n" + doubling.String() + "p15 = x\n"}, nil, "main.cf", ""},
		"parameters in a circle":   {map[string]string{"main.cf": head + "relay_domains = $p\np = $q$q\nq = $p$p\n"}, nil, "", ""},
		"conditions in conditions": {map[string]string{"main.cf": head + "relay_domains = " + strings.Repeat("${myhostname?", 50_000) + "\n"}, nil, "", ""},
		"many parameters":          {map[string]string{"main.cf": head + repeat("p%d = x\n", 100_000)}, nil, "main.cf", ""},
		"many services":            {map[string]string{"main.cf": head, "master.cf": repeat("s%d inet n - n - - smtpd\n", 100_000)}, nil, "master.cf", ""},
		"one long value":           {map[string]string{"main.cf": head + "relay_domains =\n" + strings.Repeat(" x\n", 200_000)}, nil, "", ""},
		"a large map":              {map[string]string{"main.cf": head + "virtual_alias_maps = hash:/etc/postfix/v\n", "v": repeat("u%d@b.example x@c.example\n", 100_000)}, nil, "", ""},
		"a map above the bound":    {map[string]string{"main.cf": head + "virtual_alias_maps = hash:/etc/postfix/v\n", "v": strings.Repeat("x", maxFile+1)}, nil, "", "virtual_alias_maps"},
		"a map with NUL":           {map[string]string{"main.cf": head + "virtual_alias_maps = hash:/etc/postfix/v\n", "v": "a@b.example \x00\n"}, nil, "", "virtual_alias_maps"},
		"a map in Latin-1":         {map[string]string{"main.cf": head + "virtual_alias_maps = hash:/etc/postfix/v\n", "v": "j\xf6rg@b.example x@c.example\n# f\xfcr\na@b.example y\n"}, nil, "", "virtual_alias_maps"},
		"a pipe for a map": {map[string]string{"main.cf": head + "virtual_alias_maps = hash:/etc/postfix/v\n"}, func(dir string) error {
			return unix.Mkfifo(filepath.Join(dir, "v"), 0o644)
		}, "", "virtual_alias_maps"},
		"a link to itself": {map[string]string{"main.cf": head + "virtual_alias_maps = hash:/etc/postfix/v\n"}, func(dir string) error {
			return os.Symlink("v", filepath.Join(dir, "v"))
		}, "", "virtual_alias_maps"},
		"a directory for a map": {map[string]string{"main.cf": head + "alias_maps = hash:/etc/postfix/v\n"}, func(dir string) error {
			return os.Mkdir(filepath.Join(dir, "v"), 0o755)
		}, "", "alias_maps"},
		"a pipe for main.cf":   {nil, func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "main.cf"), 0o644) }, "main.cf", ""},
		"a device for main.cf": {nil, func(dir string) error { return os.Symlink("/dev/zero", filepath.Join(dir, "main.cf")) }, "main.cf", ""},
		"main.cf is binary":    {map[string]string{"main.cf": "\x7fELF\x00\x01"}, nil, "main.cf", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := fill(t, tt.files)
			if tt.prepare != nil {
				assert.Must(t, tt.prepare(dir))
			}
			r, err := Postfix(dir, nil)
			if tt.file != "" {
				if e := (*config.Error)(nil); !errors.As(err, &e) || filepath.Base(e.File) != tt.file {
					t.Errorf("got %v, want an error about %s", err, tt.file)
				}
				return
			}
			assert.Must(t, err)
			if n := len(r.Report()); n > 8<<20 {
				t.Errorf("a report of %d bytes", n)
			}
			for _, row := range r.Rows {
				if row.Setting == tt.byHand && row.Outcome != ByHand {
					t.Errorf("%s: %+v", tt.byHand, row)
				}
			}
			_, err = json.Marshal(r.Rows)
			assert.NoError(t, err)
		})
	}
}

// What root alone may read is not copied into files for everybody, and the report has nothing that
// a terminal obeys.
func TestPrivateFilesStayPrivateAndReportsArePlain(t *testing.T) {
	dir := fill(t, map[string]string{"main.cf": "myhostname = a.example\nalias_maps = hash:/etc/postfix/aliases\nvirtual_alias_maps = hash:/etc/postfix/v\nmail_name = \x1b]0;x\x07\n", "aliases": "root: alice\n", "v": "a@b.example c\n"})
	assert.Must(t, os.Chmod(filepath.Join(dir, "aliases"), 0o640))
	r := assert.Get(Postfix(dir, nil))(t)
	for _, f := range r.Files {
		if want := f.Name == "aliases"; f.Secret != want {
			t.Errorf("%s: secret %v", f.Name, f.Secret)
		}
	}
	if strings.ContainsAny(r.Report(), "\x1b\x07") {
		t.Error("the report has control characters")
	}
}

// Exim's files are bounded in the same way, and what is no configuration is an error.
func TestHostileEximConfigurationsAreReadWithinBounds(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		ok   bool
	}{
		"macros that double":  {"A = xxxxxxxxxxxxxxxx\n" + doubledMacros(40) + "begin routers\n", false},
		"a macro of itself":   {"A = A A\n", false},
		"many lines":          {strings.Repeat("x = y\n", 10_000), false},
		"empty":               {"# nothing\n\n", false},
		"a setting twice":     {"primary_hostname = a.example\nprimary_hostname = b.example\n", false},
		"includes":            {"primary_hostname = a.example\n.include /dev/zero\n.include_if_exists /proc/self/mem\n", true},
		"an unfinished line":  {"primary_hostname = a.example\ndomainlist local_domains = @ : \\\n", true},
		"strange domains":     {"primary_hostname = a.example\ndomainlist local_domains = @ : @mx_any : *.b : ^x : lsearch;/etc/passwd : +other : \xff\xfe\n", true},
		"a router of nothing": {"primary_hostname = a.example\nbegin routers\nx:\n  driver = manualroute\n  domains = ! +local_domains\n  route_list = *\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fill(t, map[string]string{"exim.conf": tt.text})
			r, err := Exim(filepath.Join(dir, "exim.conf"), nil)
			if (err == nil) != tt.ok {
				t.Fatalf("got %v", err)
			}
			if !tt.ok {
				if e := (*config.Error)(nil); !errors.As(err, &e) || filepath.Base(e.File) != "exim.conf" {
					t.Errorf("%v names no file", err)
				}
				return
			}
			for _, f := range r.Files {
				if f.Name == "localnames" && (strings.ContainsAny(f.Text, "*^;+") || strings.Contains(f.Text, "\xff")) {
					t.Errorf("localnames: %q", f.Text)
				}
			}
		})
	}
}

// doubledMacros are macros of which each has the one before twice.
func doubledMacros(n int) string {
	var b strings.Builder
	last := "A"
	for i := range n {
		name := fmt.Sprintf("M%dX", i)
		fmt.Fprintf(&b, "%s = %s%s\n", name, last, last)
		last = name
	}
	return b.String()
}

func FuzzExim(f *testing.F) {
	f.Add("primary_hostname = a.example\ndomainlist local_domains = @\nbegin routers\nx:\n driver = accept\n check_local_user\n")
	f.Add("dc_eximconfig_configtype='smarthost'\ndc_smarthost='a::587'\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range []string{"exim.conf", debianConf} {
			dir := fill(t, map[string]string{name: text, "mailname": "a.example\n", "aliases": text, "email-addresses": text, "passwd.client": text, "hubbed_hosts": text})
			r, err := Exim(filepath.Join(dir, name), nil)
			if err != nil {
				continue
			}
			for _, file := range r.Files {
				if file.Name == "zmailer.conf" {
					continue
				}
				if (file.Name == "credentials") != file.Secret && len(file.Text) > 0 {
					t.Errorf("%s: secret %v", file.Name, file.Secret)
				}
			}
		}
	})
}
