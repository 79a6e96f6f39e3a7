package policy

import (
	"fmt"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// Fate is what becomes of a message or recipient.
type Fate string

// Fates. None: nothing was decided.
const (
	None     Fate = ""
	Accept   Fate = "accept"   // the tables decide, and no other process is asked
	Route    Fate = "route"    // to Channel and Host
	Reject   Fate = "reject"   // with Code and Text
	Freeze   Fate = "freeze"   // the message, as freezer/<ino>.<Cause>
	Defer    Fate = "defer"    // the message, as deferred/<ino>.policy
	Redirect Fate = "redirect" // to Addresses, for which the tables decide
	Drop     Fate = "drop"     // delivered nowhere, without a report
)

// What an action does that decides no fate.
const (
	AddHeader    Fate = "add_header"
	RemoveHeader Fate = "remove_header"
	SetSender    Fate = "set_sender"
	Split        Fate = "split"
	Copy         Fate = "copy"
)

// Action is one thing that a program decided.
type Action struct {
	Fate    Fate
	Channel string // of Route
	Host    string // of Route; "": the recipient's domain
	Code    string // of Reject
	Text    string // of Reject, Freeze, Defer
	Cause   string // of Freeze
	// Addresses of Redirect and copy.
	Addresses []string
	// Name is that of a header field, a group, or the address of SetSender.
	Name  string
	Value string // of AddHeader
	pos   syntax.Position
}

// Where is file and line.
func (a *Action) Where() string { return fmt.Sprintf("%s:%d", a.pos.Filename(), a.pos.Line) }

// Rule returns the same with the file's last element alone.
func (a *Action) Rule() string {
	file := a.pos.Filename()
	return fmt.Sprintf("%s:%d", file[strings.LastIndexByte(file, '/')+1:], a.pos.Line)
}

// Sentence describes the action for operators.
func (a *Action) Sentence() string {
	switch a.Fate {
	case Accept:
		return "accept: the tables decide"
	case Route:
		return "route to " + a.Channel + "!" + a.Host
	case Reject:
		return "reject " + a.Code + ": " + a.Text
	case Freeze:
		return "freeze (" + a.Cause + "): " + a.Text
	case Defer:
		return "defer: " + a.Text
	case Redirect:
		return "redirect to " + some(a.Addresses)
	case Copy:
		return "copy to " + some(a.Addresses)
	case AddHeader:
		return "add header " + a.Name + ": " + a.Value
	case RemoveHeader:
		return "remove header " + a.Name
	case SetSender:
		return "set sender <" + a.Name + ">"
	case Split:
		return "split off as " + a.Name
	}
	return string(a.Fate)
}

func some(list []string) string {
	const few = 5
	if len(list) <= few {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), len(list)-few)
}

// An Action is a value of the language that only we make.
func (a *Action) String() string        { return string(a.Fate) + "()" }
func (a *Action) Type() string          { return "action" }
func (a *Action) Freeze()               {}
func (a *Action) Truth() starlark.Bool  { return true }
func (a *Action) Hash() (uint32, error) { return 0, fmt.Errorf("unhashable: action") }

// Decision is what message or recipient came to.
type Decision struct {
	// Fate is the one that was decided; its Fate is None if none was.
	Fate Action
	// Edits are AddHeader, RemoveHeader, SetSender and Split, for the recipients that it
	// is about: those with other edits get a group of their own in the specification.
	Edits []*Action
	// Copies are addresses that get the message too.
	Copies []string
	// Actions is all of it, in the program's order.
	Actions []*Action
}

func decide(what string, v starlark.Value) (Decision, error) {
	var d Decision
	err := d.take(what, v, true)
	return d, err
}

func (d *Decision) take(what string, v starlark.Value, lists bool) error {
	switch v := v.(type) {
	case starlark.NoneType:
		return nil
	case *Action:
		return d.add(v)
	case *starlark.List, starlark.Tuple:
		if lists {
			list := v.(starlark.Indexable)
			for i := range list.Len() {
				if err := d.take(what, list.Index(i), false); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return fmt.Errorf("%s returned a value of type %s where None, an action or a list of actions is wanted", what, v.Type())
}

// maxActions bounds what one call may decide.
const maxActions = 200

func (d *Decision) add(a *Action) error {
	if d.Actions = append(d.Actions, a); len(d.Actions) > maxActions {
		return fmt.Errorf("more than %d actions", maxActions)
	}
	switch a.Fate {
	case AddHeader, RemoveHeader, SetSender, Split:
		return d.edit(a)
	case Copy:
		d.Copies = append(d.Copies, a.Addresses...)
		return nil
	}
	if d.Fate.Fate != None {
		return fmt.Errorf("two decisions: %s in line %d and %s in line %d; return one of them",
			d.Fate.Fate, d.Fate.pos.Line, a.Fate, a.pos.Line)
	}
	d.Fate = *a
	return nil
}

// maxEdits bounds what is added to one header. Bytes.
const maxEdits = 64 << 10

// edit takes a change of the header, the sender or the group.
func (d *Decision) edit(a *Action) error {
	size := 0
	for _, e := range d.Edits {
		size += len(e.Name) + len(e.Value)
		if e.Fate == a.Fate && (a.Fate == SetSender || a.Fate == Split) {
			return fmt.Errorf("%s twice: in line %d and in line %d", a.Fate, e.pos.Line, a.pos.Line)
		}
	}
	if size+len(a.Name)+len(a.Value) > maxEdits {
		return fmt.Errorf("more than %d kB of header fields", maxEdits>>10)
	}
	d.Edits = append(d.Edits, a)
	return nil
}
