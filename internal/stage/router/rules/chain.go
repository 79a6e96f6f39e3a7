package rules

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// MaxDepth is how deep aliases may lead into one another.
const MaxDepth = 64

// maxRetagged is how often names may be expanded again for another tag, for one recipient: each of
// some aliases with two tags of its own would double the work. Postfix has a
// virtual_alias_expansion_limit of 1000.
const maxRetagged = 1000

// kinds of steps on the way from a recipient to its targets.
const (
	inFQDN       = 'f' // fqdnaliases
	inAliases    = 'a'
	inList       = 'l'
	inOwner      = 'o' // the owner of a list
	inInclude    = 'i'
	inForward    = 'h'
	inSRS        = 's' // the sender behind an address of package srs
	inPostmaster = 'p' // the POSTMASTER setting
)

// step is one thing that is being expanded.
type step struct {
	table byte
	key   string
	tag   string // that each of its values gets: with another one it is done anew
}

// frame is a step on the way to what is expanded now.
type frame struct {
	step
	name  string // for operators
	where where  // of the value that is expanded now
}

// trail is the way from a recipient to what is expanded now.
type trail []frame

// has reports whether a step is on the way, with whatever tag.
func (p trail) has(s step) bool {
	return slices.ContainsFunc(p, func(f frame) bool { return f.table == s.table && f.key == s.key })
}

// Of a chain that is longer than the two together only its beginning and end are shown.
const (
	chainHead = 8
	chainTail = 4
)

// chain returns the way to where we are, for people: "a (aliases:1) -> b (aliases:2) -> a".
func (p trail) chain(last string) string {
	var b strings.Builder
	n := len(p)
	for i := range p {
		if n > chainHead+chainTail && i == chainHead {
			fmt.Fprintf(&b, "(%d more) -> ", n-chainHead-chainTail)
		}
		if n > chainHead+chainTail && i >= chainHead && i < n-chainTail {
			continue
		}
		f := &p[i]
		b.WriteString(f.name)
		if f.where.file != "" {
			fmt.Fprintf(&b, " (%s)", f.where)
		}
		b.WriteString(" -> ")
	}
	b.WriteString(last)
	return b.String()
}

// within does one step of the way, once per recipient.
func (x *expansion) within(f frame, do func() error) error {
	id := x.t.stepID(f.step)
	if _, again := x.done[id]; again {
		return nil
	}
	if f.tag != "" {
		name := x.t.stepID(step{table: f.table, key: f.key})
		if _, again := x.tagged[name]; again {
			if x.retagged++; x.retagged > maxRetagged {
				return x.failText(ErrLoop, x.rcpt, fmt.Sprintf("more than %d tags for names that were found before: %s", maxRetagged, x.path.chain(f.name)))
			}
		}
		if x.tagged == nil {
			x.tagged = map[stepID]struct{}{}
		}
		x.tagged[name] = struct{}{}
	}
	if len(x.path) >= MaxDepth {
		return x.failText(ErrLoop, x.rcpt, fmt.Sprintf("more than %d steps: %s", MaxDepth, x.path.chain(f.name)))
	}
	via := x.via
	x.path = append(x.path, f)
	x.via = append(via[:len(via):len(via)], f.name)
	err := do()
	x.path, x.via = x.path[:len(x.path)-1], via
	if x.done == nil {
		x.done = map[stepID]struct{}{}
	}
	x.done[id] = struct{}{}
	if x.logDone {
		x.doneLog = append(x.doneLog, id)
	}
	return err
}

// stepID identifies a step that was done: of a list's members there may be a hundred
// thousand. That two of n steps have the same is less likely than n*n/2^129.
type stepID [2]uint64

func (t *Tables) stepID(s step) (id stepID) {
	for i := range id {
		id[i] = maphash.Comparable(t.seeds[i], s)
	}
	return id
}
