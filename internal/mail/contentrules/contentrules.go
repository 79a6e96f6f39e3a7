// Package contentrules has the rules about the header and the body of messages: the files
// header-rules, mime-header-rules, nested-header-rules and body-rules beside zmailer.conf
// (docs/headers.md). Their lines are of our own form, or of Postfix's header_checks(5).
//
//	set, err := contentrules.Open(dir, options)
//	rules := set.Current()                        // as the files are now
//	fields := rules.Edit(fields, contentrules.External) // what is sent
//	s := rules.Scan(contentrules.External, limit) // an io.Writer
//	io.Copy(s, content)
//	outcome := s.End()                            // what is decided
//
// Smtpserver scans a message while it arrives, decides before its reply and changes what is below the
// header (Scanner.Rewrite); the router scans what came another way, and edits headers. Both get the
// same outcome from the same bytes.
//
// It owns nothing on disk; the files are read again when they change. Nothing survives a crash,
// or needs to. A scan keeps the message's header, at most MaxHeader, one field of a MIME part
// and one line of a body.
//
// Diagnostics: Open's errors are *config.Error with file and line. A later version with an error
// is logged once (table-refused), and the one before stays in use.
package contentrules

import (
	"errors"
	"log/slog"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
)

// Names of the files.
const (
	HeaderFile = "header-rules"
	MIMEFile   = "mime-header-rules"
	NestedFile = "nested-header-rules"
	BodyFile   = "body-rules"
)

// Origin is where a message comes from, and which messages a rule concerns.
type Origin uint8

const (
	All       Origin = iota // a rule about each of the following but Report
	Local                   // from submit, or a program that writes to public/
	External                // by SMTP; a rule about those concerns Submitted, too
	Submitted               // by SMTP, from one of our users
	Report                  // of this mail system: no rule concerns it
)

// Options say how the files are read.
type Options struct {
	Directory *config.Directory // that of the files; may be nil
	Keeper    config.Keeper     // may be nil
	Now       func() time.Time
	Log       *slog.Logger
}

// Set is the files. It may be used by many goroutines; nil has no rules.
type Set struct{ files [places]*config.File[*list] }

// Open reads the files beside zmailer.conf; those that are not there have no rules. dir "": none
// is.
func Open(dir string, o Options) (*Set, error) {
	if dir == "" {
		return nil, nil
	}
	s := &Set{}
	var errs []error
	for p, name := range fileNames {
		var err error
		parse := func(file string, text []byte) (*list, error) { return parseFile(place(p), file, text) }
		if s.files[p], err = config.OpenFile(path.Join(dir, name), parse, config.FileOptions{Directory: o.Directory, Keeper: o.Keeper, Now: o.Now, Log: o.Log}); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// FilterAction is a FILTER action of a rule.
type FilterAction struct {
	Rule string // file:line, without the directory
	To   string // as it is written
}

// Filters returns the FILTER actions as the files are now.
func (s *Set) Filters() (list []FilterAction) {
	if s == nil {
		return nil
	}
	for _, f := range s.files {
		for _, st := range f.Current().steps {
			if st.rule != nil && st.rule.action == filter {
				list = append(list, FilterAction{st.rule.where, string(st.rule.text)})
			}
			for i := range st.table {
				if e := &st.table[i]; e.end == 0 && e.action == filter {
					list = append(list, FilterAction{e.where, e.text})
				}
			}
		}
	}
	return list
}

// Rules are the rules as they were at one moment; the zero value has none.
type Rules struct {
	// steps of each place, in the order in which they are followed.
	steps [places][]step
}

// Current returns the rules as they are now.
func (s *Set) Current() (r Rules) {
	if s == nil {
		return r
	}
	var lists [places]*list
	plain := true
	for p, f := range s.files {
		lists[p] = f.Current()
		r.steps[p] = lists[p].steps
		plain = plain && lists[p].plain
	}
	if plain {
		return r
	}
	r.steps = [places][]step{inBody: lists[inBody].steps}
	// The default of mime_header_checks and nested_header_checks is header_checks, and
	// mime_header_checks hold for MIME's fields in each header.
	tables := [places]place{inHeader: inHeader, inPart: inHeader, inNested: inHeader}
	for _, p := range [...]place{inPart, inNested} {
		if len(lists[p].steps) > 0 {
			tables[p] = p
		}
	}
	for p := inHeader; p <= inNested; p++ {
		for _, st := range lists[p].steps {
			if st.table == nil {
				r.steps[st.at] = append(r.steps[st.at], st)
				continue
			}
			for at := inHeader; at <= inNested; at++ {
				others, mime := tables[at] == p, tables[inPart] == p
				if at == inPart {
					others = mime
				}
				switch {
				case others && mime:
					st.only = allFields
				case others:
					st.only = otherFields
				case mime:
					st.only = mimeFields
				default:
					continue
				}
				r.steps[at] = append(r.steps[at], st)
			}
		}
	}
	return r
}

// Fields returns rules about the header alone, in their order, for changes that a program makes.
func Fields(list []Rule) Rules {
	var r Rules
	for i := range list {
		r.steps[inHeader] = append(r.steps[inHeader], step{at: inHeader, rule: &list[i]})
	}
	return r
}

// Concern reports whether any rule is about messages from an origin.
func (r *Rules) Concern(from Origin) bool {
	for p := range r.steps {
		if concern(r.steps[p], from) {
			return true
		}
	}
	return false
}

// ConcernHeader reports whether one is about their header.
func (r *Rules) ConcernHeader(from Origin) bool { return concern(r.steps[inHeader], from) }

func concern(steps []step, from Origin) bool {
	for i := range steps {
		if steps[i].concerns(from) {
			return true
		}
	}
	return false
}

// ConcernContent reports whether one is about the content below the header.
func (r *Rules) ConcernContent(from Origin) bool {
	return concern(r.steps[inPart], from) || concern(r.steps[inNested], from) || concern(r.steps[inBody], from)
}

// editContent reports whether a rule changes the content below the header.
func (r *Rules) editContent(from Origin) bool {
	for p := inPart; p < places; p++ {
		if slices.ContainsFunc(r.steps[p], func(s step) bool { return s.concerns(from) && s.edits() }) {
			return true
		}
	}
	return false
}

// place is the part of a message that a rule looks at.
type place uint8

const (
	inHeader place = iota // the message's own
	inPart                // the header of a part
	inNested              // the header of an attached message
	inBody                // a line of a body
	places
)

var fileNames = [places]string{HeaderFile, MIMEFile, NestedFile, BodyFile}

// list is one file.
type list struct {
	steps []step
	plain bool // all are rules of our own form about the place of the file
}

// step is a rule of our own form, or adjacent lines of Postfix's: the first of those that fits a
// field decides about it.
type step struct {
	at    place
	rule  *Rule
	table []entry
	only  fieldKind // of a table
}

// fieldKind is which fields of a header a table is about.
type fieldKind uint8

const (
	allFields   fieldKind = iota
	mimeFields            // those that header_checks(5) leaves to mime_header_checks
	otherFields           // all others
)

var mimeNames = []string{"content-description", "content-disposition", "content-id", "content-transfer-encoding", "content-type", "mime-version"}

// has reports whether a field of that name is of the kind.
func (k fieldKind) has(name string) bool {
	return k == allFields || slices.Contains(mimeNames, strings.ToLower(name)) == (k == mimeFields)
}

func (s *step) concerns(from Origin) bool {
	if s.rule != nil {
		return s.rule.concerns(from)
	}
	return from != Report
}

func (s *step) edits() bool {
	if s.rule != nil {
		return s.rule.action.edits()
	}
	return slices.ContainsFunc(s.table, func(e entry) bool { return e.end == 0 && e.action.edits() })
}

// Rule is a line of our own form.
type Rule struct {
	where   string // file:line
	who     Origin
	action  action
	name    string         // lower case glob of the field
	pattern *regexp.Regexp // nil: any value
	line    string         // add: the field with its newline
	text    []byte         // of replace and decisions: with $1
}

// Add returns the rule that puts a field on top.
func Add(name, value string) Rule {
	return Rule{action: addField, line: string(appendField(nil, name, []byte(value)))}
}

// Remove returns the rule that removes the fields of a name.
func Remove(glob string) Rule { return Rule{action: removeField, name: strings.ToLower(glob)} }

// Key returns the same for the same rule of Add or Remove.
func (r *Rule) Key() string { return r.name + "\x00" + r.line }

func (r *Rule) concerns(from Origin) bool {
	return from != Report && (r.who == All || r.who == from || r.who == External && from == Submitted)
}

// action is what a rule does where it fits.
type action uint8

const (
	addField action = iota
	removeField
	replaceField
	prependField
	replaceLine // Postfix's REPLACE: the whole field
	reject
	discard
	hold
	redirect
	copyTo
	filter
	warn
	info
	dunno
)

func (a action) edits() bool { return a <= replaceLine }

// Action is what is decided about a message.
type Action uint8

const (
	None Action = iota
	Reject
	Discard
)

// Decision is one rule's.
type Decision struct {
	Rule string      // file:line, without the directory
	Code status.Code // of a rejection: class 5, or 4
	Text string
	// Where is what it was found in, for the log: a field or a line, not more than a part of it.
	Where string
}

// Note is a decision of WARN and INFO.
type Note struct {
	Decision
	Warn bool
}

// Outcome is what the rules decide about a message.
type Outcome struct {
	Action   Action // with Final
	Final    Decision
	Hold     *Decision // nil: it is not held
	Redirect *Decision // Text is the address; nil: none
	Filter   *Decision // Text is CHANNEL!HOST
	Copies   []string
	Notes    []Note
	// Edits is how many fields of parts and lines of bodies the rules change, EditedBy which rules.
	Edits    int
	EditedBy []string
}

// Bounds of what one message may make.
const (
	maxNotes  = 20
	maxCopies = 100
	maxWhere  = 200
)

// edit notes that a rule changes the content below the message's header.
func (o *Outcome) edit(where string) {
	o.Edits++
	if len(o.EditedBy) < maxNotes && !slices.Contains(o.EditedBy, where) {
		o.EditedBy = append(o.EditedBy, where)
	}
}

// final reports whether nothing that follows can change the outcome.
func (o *Outcome) final() bool { return o.Action != None }

func (o *Outcome) take(a action, d Decision) {
	switch a {
	case reject:
		o.Action, o.Final = Reject, d
		o.Final.Code, o.Final.Text = rejection(d.Text)
	case discard:
		o.Action, o.Final = Discard, d
	case hold:
		if o.Hold == nil {
			o.Hold = &d
		}
	case redirect:
		o.Redirect = &d
	case filter:
		o.Filter = &d
	case copyTo:
		if len(o.Copies) < maxCopies {
			o.Copies = append(o.Copies, d.Text)
		}
	case warn, info:
		if len(o.Notes) < maxNotes {
			o.Notes = append(o.Notes, Note{d, a == warn})
		}
	}
}

// rejection parts the text of a rejection: "550 5.7.1 TEXT", "5.7.1 TEXT" or "TEXT".
func rejection(s string) (status.Code, string) {
	code := status.Code{Class: 5, Subject: 7, Detail: 1}
	word, rest, _ := strings.Cut(s, " ")
	if len(word) == 3 && (word[0] == '4' || word[0] == '5') && strings.Trim(word, "0123456789") == "" {
		code.Class = uint16(word[0] - '0')
		s = strings.TrimLeft(rest, " ")
		word, rest, _ = strings.Cut(s, " ")
	}
	if c, ok := status.Parse(word); ok && c.Class != 2 {
		code, s = c, strings.TrimLeft(rest, " ")
	}
	if s == "" {
		s = "Message content rejected"
	}
	return code, s
}

// Edit returns the fields of a header as the rules want them; what no rule concerns stays, byte
// for byte.
func (r *Rules) Edit(fields []envelope.Field, from Origin) []envelope.Field {
	var o Outcome
	return r.header(fields, from, &o, true)
}
