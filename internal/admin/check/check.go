// Package check inspects every file of a postoffice and returns a Finding for each: its state,
// what is wrong, and what happens next. It also checks the configuration as the programs read
// it, and whether the programs are confined.
//
// It changes nothing and keeps nothing, so a crash cannot harm anything; a file system of an
// unknown kind is tested with one empty file, which is renamed and then removed. It may run while
// mail flows: what looks wrong is inspected again before it is reported.
//
// Diagnostics: what is wrong is in the findings, by its Problem; there are no errors.
package check

import (
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// Options say from when on something is reported.
type Options struct {
	Older time.Duration // mail is too old after this time; 0: after the expiry of its clause
	Stuck time.Duration // mail that a running daemon has left alone for this time is reported
	// Settings are zmailer.conf; nil: the defaults apply.
	Settings *config.Config
	Seen     func() // called for each file; may be nil
}

// looks is how often something that seems wrong is inspected before it is reported.
const looks = 3

// All inspects everything, and again what seems wrong: a file that moves, and a number that is
// used again, can look like almost anything once. A problem is reported if every look finds it.
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

// confirm keeps of the findings with problems those that another look has found too.
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

// checker is one look at the postoffice.
type checker struct {
	*view.Spool
	Options
	only     map[string]bool // keys of what is inspected; nil: everything
	findings []Finding
	reports  map[string]string // file in public/ → specification that records it
	replaced map[string]string // name in transport/ → specification that was made of it
	mail     []Mail
	queues   []*view.Message // with open recipients
}

func look(po *postoffice.PostOffice, o Options, only map[string]bool) []Finding {
	x := &checker{Spool: view.New(po, time.Now()).With(o.Settings), Options: o, only: only, reports: map[string]string{}, replaced: map[string]string{}}
	x.Spool.Seen = o.Seen
	x.run()
	return x.findings
}

// wants reports whether a file is to be looked at in this look.
func (x *checker) wants(key string) bool { return x.only == nil || x.only[key] }

// tell ends a report.
func (x *checker) tell(r *report) {
	if x.wants(r.key) {
		r.Text = strings.Join(r.text, " ")
		x.findings = append(x.findings, r.Finding)
	}
}

func (x *checker) run() {
	x.daemons()
	x.fileSystem()
	x.top()
	x.directories()
	// The specifications first: they tell which files in public/ are reports.
	x.queue()
	for _, dir := range x.PO.Submissions.Inboxes() {
		x.each(dir, x.public)
	}
	for _, dir := range x.RouterDirs() {
		x.each(dir, x.router)
	}
	for _, dir := range []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		x.each(dir, x.aside)
	}
	x.kept()
	x.owned()
	x.twice()
	x.aged()
}

// each looks at every name in a directory.
func (x *checker) each(dir string, look func(f view.File)) {
	files, err := x.List(dir)
	if err != nil {
		x.tell(about(dir, "unreadable").wrong(Unreadable, "%v", err))
	}
	for _, f := range files {
		look(f)
	}
}

// daemons warns when nobody is there to move mail on.
func (x *checker) daemons() {
	for _, role := range []string{"router", "scheduler"} {
		if x.Runs(role) {
			x.tell(about(role, "running").say("It lives."))
		} else {
			x.tell(about(role, "not running").wrong(DaemonMissing, "Nothing moves on without it; zmctl start starts the daemons."))
		}
	}
}
