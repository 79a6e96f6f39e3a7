package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"zmailer/internal/run/config"
)

// manual is what the pages are made of.
type manual struct {
	programs []config.Program
	docs     []document
}

// document is one file of docs/.
type document struct {
	name string // "spool" of docs/spool.md
	text string
	entry
}

// page is one manual page, in Markdown without its title.
type page struct {
	name    string
	also    []string // other names under which it is found
	section int
	about   string // what stands behind the dash
	body    string
}

func (p page) file() string { return fmt.Sprintf("%s.%d", p.name, p.section) }

// entry says which page a document is.
type entry struct {
	name    string
	section int
	also    []string
	files   []string // default files that are shown at its end
}

// formats returns the documents that describe a file or a protocol; every other document is a
// page of section 7, zmailer-NAME.
func formats() map[string]entry {
	five := func(name string, more ...string) entry { return entry{name: name, section: 5, also: more} }
	with := func(e entry, files ...string) entry { e.files = files; return e }
	return map[string]entry{
		"scheduler.conf": with(five("scheduler.conf"), "scheduler.conf"),
		"router.star":    five("router.star"),
		"routing": with(five("zmailer-routing", "zmailer-aliases", "zmailer-fqdnaliases", "zmailer-localnames", "zmailer-routes", "zmailer-lists"),
			"aliases", "fqdnaliases", "localnames", "routes"),
		"replies":     with(five("zmailer-replies"), "replies"),
		"access":      five("zmailer-access", "zmailer-senderlogin"),
		"tls":         five("zmailer-tls", "zmailer-credentials"),
		"dkim":        five("zmailer-dkim"),
		"headers":     five("zmailer-headers", "zmailer-masquerade"),
		"tables":      five("zmailer-tables"),
		"auth":        five("zmailer-auth", "zmailer-accounts"),
		"spool":       five("zmailer-spool"),
		"envelope":    five("zmailer-envelope"),
		"workspec":    five("zmailer-workspec"),
		"ledger":      five("zmailer-ledger"),
		"log":         five("zmailer-log"),
		"mailq":       five("zmailer-mailq"),
		"ta-protocol": five("zmailer-ta-protocol"),
		"reports":     five("zmailer-reports"),
		"alarms":      five("zmailer-alarms"),
		"metrics":     five("zmailer-metrics"),
	}
}

// place returns the page that a document is.
func place(doc string) entry {
	if e, ok := formats()[doc]; ok {
		return e
	}
	return entry{name: "zmailer-" + strings.ToLower(doc), section: 7}
}

// load asks the programs and reads the documents.
func load(bin, docs string) (*manual, error) {
	m := &manual{}
	programs, err := os.ReadDir(bin)
	if err != nil {
		return nil, err
	}
	for _, e := range programs {
		if e.IsDir() {
			continue
		}
		out, err := exec.Command(filepath.Join(bin, e.Name()), "--print-app").Output()
		if err != nil {
			return nil, fmt.Errorf("ask %s what it is: %w", e.Name(), err)
		}
		var p config.Program
		if err := json.Unmarshal(out, &p); err != nil {
			return nil, fmt.Errorf("what %s says it is: %w", e.Name(), err)
		}
		m.programs = append(m.programs, p)
	}
	files, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if name != "HACKING" {
			m.docs = append(m.docs, document{name: name, text: string(text), entry: place(name)})
		}
	}
	return m, nil
}

// pages returns all of them, sorted by name.
func (m *manual) pages() []page {
	list := []page{m.overview(), settingsPage()}
	for _, p := range m.programs {
		list = append(list, programPages(p)...)
	}
	for _, d := range m.docs {
		list = append(list, d.page())
	}
	slices.SortFunc(list, func(a, b page) int { return strings.Compare(a.file(), b.file()) })
	return list
}

// overview is zmailer(7), which names all others.
func (m *manual) overview() page {
	var b strings.Builder
	b.WriteString("# DESCRIPTION\n\nA mail transfer agent of small programs that meet only in directories. Every message is a file, " +
		"every state of a message a file name, every change of state one rename, link or append. " +
		"**zmailer-tutorial**(7) is the first hour with it, **zmailer-architecture**(7) says how it is made, " +
		"**zmailer-admin-guide**(7) how it is kept, **zmctl**(8) is the command for all of it.\n\n# PROGRAMS\n\n")
	for _, p := range m.programs {
		fmt.Fprintf(&b, "**%s**(8)\n: %s\n\n", plain(p.Name), plain(p.Usage))
	}
	list := func(title string, section int, first string) {
		fmt.Fprintf(&b, "# %s\n\n%s", title, first)
		for _, d := range m.docs {
			if d.section == section {
				fmt.Fprintf(&b, "**%s**(%d)\n: %s\n\n", plain(d.entry.name), section, plain(d.about()))
			}
		}
	}
	list("FILES AND PROTOCOLS", 5, "**zmailer.conf**(5)\n: settings of all programs\n\n")
	list("SUBJECTS", 7, "")
	return page{name: "zmailer", section: 7, about: "a mail system of files and small programs", body: b.String()}
}
