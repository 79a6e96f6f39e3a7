package check

import "fmt"

// Severity is how bad a finding is; its number is the exit code.
type Severity int

const (
	Fine Severity = iota
	Warning
	Wrong
)

func (v Severity) String() string { return [...]string{"ok", "warning", "error"}[v] }

// MarshalText makes JSON hold the word.
func (v Severity) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// problem is one word for what is wrong with a file. Programs rely on the words, and
// docs/check.md explains each.
type Problem string

const (
	DaemonMissing    Problem = "daemon-missing"
	Unreadable       Problem = "unreadable"
	ForeignName      Problem = "foreign"
	MissingDirectory Problem = "missing-directory"
	WrongMode        Problem = "mode"
	WrongOwner       Problem = "owner"
	OtherDevice      Problem = "other-device"
	NoRename         Problem = "no-rename"
	Unfinished       Problem = "unfinished"
	Incomplete       Problem = "incomplete"
	OrphanReport     Problem = "orphan-report"
	BrokenMessage    Problem = "broken-message"
	Misnumbered      Problem = "misnumbered"
	StaleClaim       Problem = "stale-claim"
	StaleWork        Problem = "stale-work-file"
	NoSpec           Problem = "no-specification"
	CutSpec          Problem = "specification-cut"
	BadSpec          Problem = "specification-unreadable"
	UnknownFormat    Problem = "unknown-format"
	Mismatch         Problem = "mismatch"
	OtherNumber      Problem = "other-number"
	HashDepths       Problem = "hash-depths"
	Double           Problem = "double"
	MessageGone      Problem = "message-gone"
	Superseded       Problem = "superseded"
	Unserved         Problem = "unserved"
	DeadLock         Problem = "dead-lock"
	ForeignLock      Problem = "foreign-lock"
	NoProgress       Problem = "no-progress"
	TooOld           Problem = "too-old"
	Duplicate        Problem = "duplicate"
	ContentCopy      Problem = "copy"
	WaitsForPerson   Problem = "waits-for-a-person"
	Quarantined      Problem = "quarantined"
)

// severityOf is how bad a problem is: an error is mail that is lost or that nothing
// takes care of by itself, or a danger to what comes next.
func SeverityOf(p Problem) Severity {
	switch p {
	case Unreadable, OtherDevice, NoRename, BadSpec, UnknownFormat, Mismatch, Double, MessageGone, Duplicate:
		return Wrong
	}
	return Warning
}

// finding is what check says of one file or directory.
type Finding struct {
	File     string    `json:"file"` // below the postoffice
	Severity Severity  `json:"severity"`
	State    string    `json:"state"`
	Problems []Problem `json:"problems"` // empty if all is as it should be
	Text     string    `json:"text"`     // what it is, what is wrong, what happens next

	key string // the file, or the name in queue/ and transport/: what a second look is for
	// part tells findings about one file apart: "" is about the file by itself.
	part string
	// id tells the message from another that gets the same name: numbers are used again.
	id string
}

// report is a finding that is being put together.
type report struct {
	Finding
	text []string
}

func about(file, state string) *report {
	return &report{Finding: Finding{File: file, State: state, Problems: []Problem{}, key: file}}
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
func (r *report) wrong(p Problem, format string, args ...any) *report {
	r.Severity = max(r.Severity, SeverityOf(p))
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
