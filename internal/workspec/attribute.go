package workspec

import (
	"slices"
	"strings"
)

// attribute finds out which recipient each diagnostic counts for: the one at its offset.
// Transport agents that are not ours may name a wrong one. Where there is no recipient, or
// one with another address, the diagnostic counts for the first recipient with its address
// that has none so far. Every reader has to decide this alike, so it is decided here.
func (s *Spec) attribute() {
	var strays []*Diagnostic
	for i := range s.Diagnostics {
		d := &s.Diagnostics[i]
		d.Of = 0
		if r := s.find(d.Recipient); r != nil && (d.Notary.Address == "" || d.Notary.Address == r.Address) {
			d.Of = r.Offset
		} else {
			strays = append(strays, d)
		}
	}
	if len(strays) == 0 {
		return
	}
	byAddress := map[string][]int64{}
	for gi := range s.Groups {
		for ri := range s.Groups[gi].Recipients {
			r := &s.Groups[gi].Recipients[ri]
			byAddress[r.Address] = append(byAddress[r.Address], r.Offset)
		}
	}
	has := map[int64]bool{}
	for i := range s.Diagnostics {
		has[s.Diagnostics[i].Of] = true
	}
	for _, d := range strays {
		list := byAddress[d.Notary.Address]
		if i := slices.IndexFunc(list, func(off int64) bool { return !has[off] }); i >= 0 {
			d.Of = list[i]
		} else if len(list) > 0 {
			d.Of = list[len(list)-1]
		} else if r := s.find(d.Recipient); r != nil {
			d.Of = r.Offset // whose address the agent has rewritten
		}
		has[d.Of] = true
	}
}

// Failed reports whether the diagnostic says that the recipient has failed: its action
// (RFC 3464 section 2.3.3) is no other one that there is.
func (d *Diagnostic) Failed() bool {
	switch strings.ToLower(d.Notary.Action) {
	case "delivered", "relayed", "expanded", "delayed":
		return false
	}
	return true
}
