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

// Problem is one word for a problem of a file. Programs rely on the words, and
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

// SeverityOf returns the severity of a problem: an error is mail that is lost or that no
// program will process, or a danger to later mail.
func SeverityOf(p Problem) Severity {
	switch p {
	case Unreadable, OtherDevice, NoRename, BadSpec, UnknownFormat, Mismatch, Double, MessageGone, Duplicate:
		return Wrong
	}
	return Warning
}

// Finding is the result for one file or directory.
type Finding struct {
	File     string    `json:"file"` // below the postoffice
	Severity Severity  `json:"severity"`
	State    string    `json:"state"`
	Problems []Problem `json:"problems"` // empty if there are none
	Text     string    `json:"text"`     // a description, the problems, the next step

	key string // the file, or the name in queue/ and transport/: identifies it in a second pass
	// part distinguishes findings about one file: "" is about the file itself.
	part string
	// id distinguishes messages that get the same name: inode numbers are reused.
	id string
}

// report is a finding under construction.
type report struct {
	Finding
	text []string
}

func about(file, state string) *report {
	return &report{Finding: Finding{File: file, State: state, Problems: []Problem{}, key: file}}
}

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
