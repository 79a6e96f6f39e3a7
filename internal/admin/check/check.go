// Package check inspects every file of a postoffice and returns a Finding for each: its state,
// its problems, and the next step. It also checks the configuration as the programs read
// it, and whether the programs are confined.
//
//	for _, f := range check.All(po, check.Options{Settings: settings, Stuck: time.Hour}) {
//		fmt.Println(f.Severity, f.File, f.Problems, f.Text)
//	}
//
// It changes nothing and keeps nothing, so a crash cannot harm anything; a file system of an
// unknown kind is tested with one empty file, which is renamed and then removed. It may run while
// mail is processed: an apparent problem is inspected again before it is reported.
//
// Diagnostics: problems are in the findings, as a Problem each; there are no errors.
package check

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
)

// Options set the limits for reports.
type Options struct {
	Older time.Duration // mail is too old after this time; 0: after the expiry of its clause
	Stuck time.Duration // mail that a running daemon has not processed for this time is reported
	// Settings are zmailer.conf; nil: the defaults apply.
	Settings *config.Config
	Seen     func() // called for each file; may be nil
}

// looks is how often an apparent problem is inspected before it is reported.
const looks = 3

// All inspects every file, and files with an apparent problem again: a file that moves, or a
// reused inode number, can look wrong once. A problem is reported if every pass finds it.
func All(po *postoffice.PostOffice, o Options) []Finding {
	found := look(po, o, nil)
	for range looks - 1 {
		again := map[string]bool{}
		for _, f := range found {
			if f.Severity > Fine {
				again[f.key] = true
			}
		}
		if len(again) == 0 {
			break
		}
		found = confirm(found, look(po, o, again))
	}
	return found
}

// confirm keeps the problems that a second pass has found too.
func confirm(first, second []Finding) []Finding {
	type place struct{ file, part string }
	again := map[place]*Finding{}
	for i := range second {
		again[place{second[i].File, second[i].part}] = &second[i]
	}
	kept := first[:0]
	for _, f := range first {
		if f.Severity > Fine {
			now := again[place{f.File, f.part}]
			if now == nil || now.id != f.id {
				continue // it has moved on
			}
			now.Problems = slices.DeleteFunc(now.Problems, func(p Problem) bool { return !slices.Contains(f.Problems, p) })
			if now.Severity = Fine; len(now.Problems) > 0 {
				for _, p := range now.Problems {
					now.Severity = max(now.Severity, SeverityOf(p))
				}
			}
			f = *now
		}
		kept = append(kept, f)
	}
	return kept
}

// pass is one inspection of the postoffice: which files it inspects, and what it has found.
type pass struct {
	*view.Spool
	Options
	only     map[string]bool // keys of the files to inspect; nil: all
	findings []Finding
}

func look(po *postoffice.PostOffice, o Options, only map[string]bool) []Finding {
	x := &pass{Spool: view.New(po, time.Now()), Options: o, only: only}
	x.Spool.Seen = o.Seen
	explain := view.NewExplainer(x.Spool, o.Settings)
	layout := layout{x}
	layout.daemons()
	layout.fileSystem()
	layout.top()
	layout.directories()
	// The specifications first: they record which files in public/ are reports.
	mail := &duplicates{pass: x}
	q := &queue{pass: x, explain: explain, mail: mail, reports: map[string]string{}, replaced: map[string]string{}}
	q.inspectAll()
	unrouted := &unrouted{pass: x, explain: explain, mail: mail, reports: q.reports}
	for _, dir := range x.PO.Submissions.Inboxes() {
		x.each(dir, unrouted.public)
	}
	for _, dir := range x.RouterDirs() {
		x.each(dir, unrouted.router)
	}
	for _, dir := range []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		x.each(dir, unrouted.aside)
	}
	layout.kept()
	layout.owned()
	mail.report()
	q.aged()
	return x.findings
}

// wants reports whether this pass inspects a file.
func (x *pass) wants(key string) bool { return x.only == nil || x.only[key] }

func (x *pass) add(r *report) {
	if x.wants(r.key) {
		r.Text = strings.Join(r.text, " ")
		x.findings = append(x.findings, r.Finding)
	}
}

// each inspects every name in a directory.
func (x *pass) each(dir string, look func(f view.File)) {
	files, err := x.List(dir)
	if err != nil {
		x.add(about(dir, "unreadable").wrong(Unreadable, "%v", err))
	}
	for _, f := range files {
		look(f)
	}
}

// foreign reports a name that no program of this system creates.
func (x *pass) foreign(f view.File, text string) {
	r := about(f.Path(), "unknown")
	what := ""
	switch m := f.Info.Mode; {
	case m.IsDir():
		what = "A directory."
		if names, err := x.FS.ReadDir(f.Path()); err == nil {
			what = fmt.Sprintf("A directory with %s.", human.Count(len(names), "name"))
		}
	case m&fs.ModeSymlink != 0:
		what = "A symbolic link."
	case m&fs.ModeNamedPipe != 0:
		what = "A pipe."
	case m&fs.ModeSocket != 0:
		what = "A socket."
	case !m.IsRegular():
		what = "A device."
	}
	if what != "" {
		r.say("%s", what)
	}
	x.add(r.wrong(ForeignName, "%s", text).say("Remove it, or zmctl check --repair puts it into quarantine/."))
}
