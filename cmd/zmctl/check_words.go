package main

import "fmt"

// severity is how bad a finding is; its number is the exit code.
type severity int

const (
	fine severity = iota
	warning
	wrong
)

func (v severity) String() string { return [...]string{"ok", "warning", "error"}[v] }

// MarshalText makes JSON hold the word.
func (v severity) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// problem is one word for what is wrong with a file. Programs rely on the words, and
// docs/check.md explains each.
type problem string

const (
	daemonMissing    problem = "daemon-missing"
	unreadable       problem = "unreadable"
	foreignName      problem = "foreign"
	missingDirectory problem = "missing-directory"
	wrongMode        problem = "mode"
	wrongOwner       problem = "owner"
	otherDevice      problem = "other-device"
	noRename         problem = "no-rename"
	unfinished       problem = "unfinished"
	incomplete       problem = "incomplete"
	orphanReport     problem = "orphan-report"
	brokenMessage    problem = "broken-message"
	misnumbered      problem = "misnumbered"
	staleClaim       problem = "stale-claim"
	staleWork        problem = "stale-work-file"
	noSpec           problem = "no-specification"
	cutSpec          problem = "specification-cut"
	badSpec          problem = "specification-unreadable"
	unknownFormat    problem = "unknown-format"
	mismatch         problem = "mismatch"
	otherNumber      problem = "other-number"
	hashDepths       problem = "hash-depths"
	double           problem = "double"
	messageGone      problem = "message-gone"
	superseded       problem = "superseded"
	unserved         problem = "unserved"
	deadLock         problem = "dead-lock"
	foreignLock      problem = "foreign-lock"
	noProgress       problem = "no-progress"
	tooOld           problem = "too-old"
	duplicate        problem = "duplicate"
	contentCopy      problem = "copy"
	waitsForPerson   problem = "waits-for-a-person"
	quarantined      problem = "quarantined"
)

// severityOf is how bad a problem is: an error is mail that is lost or that nothing
// takes care of by itself, or a danger to what comes next.
func severityOf(p problem) severity {
	switch p {
	case unreadable, otherDevice, noRename, badSpec, unknownFormat, mismatch, double, messageGone, duplicate:
		return wrong
	}
	return warning
}

// finding is what check says of one file or directory.
type finding struct {
	File     string    `json:"file"` // below the postoffice
	Severity severity  `json:"severity"`
	State    string    `json:"state"`
	Problems []problem `json:"problems"` // empty if all is as it should be
	Text     string    `json:"text"`     // what it is, what is wrong, what happens next

	key string // the file, or the name in queue/ and transport/: what a second look is for
	// part tells findings about one file apart: "" is about the file by itself.
	part string
	// id tells the message from another that gets the same name: numbers are used again.
	id string
}

// report is a finding that is being put together.
type report struct {
	finding
	text []string
}

func about(file, state string) *report {
	return &report{finding: finding{File: file, State: state, Problems: []problem{}, key: file}}
}

// say adds a sentence.
func (r *report) say(format string, args ...any) *report {
	text := format
	if len(args) > 0 {
		text = fmt.Sprintf(format, args...)
	}
	r.text = append(r.text, text)
	return r
}

// wrong adds a problem with a sentence about it.
func (r *report) wrong(p problem, format string, args ...any) *report {
	r.Severity = max(r.Severity, severityOf(p))
	for _, had := range r.Problems {
		if had == p {
			p = ""
		}
	}
	if p != "" {
		r.Problems = append(r.Problems, p)
	}
	if format == "" {
		return r
	}
	return r.say(format, args...)
}
