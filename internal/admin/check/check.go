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
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
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

// checker is one pass over the postoffice.
type checker struct {
	*view.Spool
	Options
	only     map[string]bool // keys of the files to inspect; nil: all
	findings []Finding
	reports  map[string]string // file in public/ → specification that records it
	replaced map[string]string // name in transport/ → specification that replaces it
	mail     []Mail
	queues   []*view.Message // with open recipients
}

func look(po *postoffice.PostOffice, o Options, only map[string]bool) []Finding {
	x := &checker{Spool: view.New(po, time.Now()).With(o.Settings), Options: o, only: only, reports: map[string]string{}, replaced: map[string]string{}}
	x.Spool.Seen = o.Seen
	x.run()
	return x.findings
}

// wants reports whether this pass inspects a file.
func (x *checker) wants(key string) bool { return x.only == nil || x.only[key] }

func (x *checker) add(r *report) {
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
	// The specifications first: they record which files in public/ are reports.
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

// each inspects every name in a directory.
func (x *checker) each(dir string, look func(f view.File)) {
	files, err := x.List(dir)
	if err != nil {
		x.add(about(dir, "unreadable").wrong(Unreadable, "%v", err))
	}
	for _, f := range files {
		look(f)
	}
}

// daemons warns of missing daemons.
func (x *checker) daemons() {
	for _, role := range []string{"router", "scheduler"} {
		if x.Runs(role) {
			x.add(about(role, "running").say("It is running."))
		} else {
			x.add(about(role, "not running").wrong(DaemonMissing, "No mail is processed without it; zmctl start starts the daemons."))
		}
	}
}
