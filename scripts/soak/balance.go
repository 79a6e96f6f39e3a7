package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// imbalance is what zmctl check --ledger --json says of one message.
type imbalance struct {
	ID         string `json:"id"`
	Kind       string `json:"kind"`
	Recipients int64  `json:"recipients"`
	Ledger     string `json:"ledger"`
	Disk       string `json:"disk"`
}

// balance has the ledger compared with the disk. What does not balance must be a
// message that was removed by hand; these are settled, as a postmaster does, and then
// nothing may be left.
func (s *soak) balance() error {
	list, err := s.imbalances()
	if err != nil {
		return err
	}
	var ids, strange []string
	for _, w := range list {
		s.plan.say("drain", fmt.Sprintf("the ledger: %+v", w))
		if s.books.wasRemoved(w.ID) {
			ids = append(ids, w.ID)
		} else {
			strange = append(strange, fmt.Sprintf("%+v", w))
		}
	}
	s.settledByHand = len(ids)
	if len(strange) > 0 {
		return fmt.Errorf("the ledger does not balance, and no one removed these: %s", strings.Join(strange, " "))
	}
	if len(ids) == 0 {
		return nil
	}
	if out, code, err := s.zmctl(append([]string{"settle"}, ids...)...); err != nil || code != 0 {
		return fmt.Errorf("zmctl settle: exit code %d: %w %s", code, err, out)
	}
	list, err = s.imbalances()
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("the ledger does not balance after %d messages were settled: %+v", len(ids), list)
	}
	return err
}

func (s *soak) imbalances() ([]imbalance, error) {
	out, code, err := s.zmctl("check", "--ledger", "--json")
	if err != nil {
		return nil, err
	}
	var b struct {
		Difference struct{ Recipients, Messages int64 }
		Wrong      []imbalance
		BadLines   int `json:"bad_lines"`
	}
	if err := json.Unmarshal([]byte(out), &b); err != nil || code != 0 && code != 2 {
		return nil, fmt.Errorf("zmctl check --ledger: exit code %d: %w: %s", code, err, out)
	}
	if code == 2 && len(b.Wrong) == 0 {
		return nil, fmt.Errorf("the ledger does not balance and names no message: %s", out)
	}
	return b.Wrong, nil
}

// wasRemoved reports whether a spool ID is that of a message, or a report on one, that was
// removed by hand, or of a copy of one, or of what tidy took away. A message that was
// touched, and then routed again without its specification or put back by a clerk, has
// another ID, and to the ledger the first is missing.
func (b *books) wasRemoved(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tidied[id] {
		return true
	}
	if m := b.messages[b.ids[id]]; m != nil {
		return m.removed || m.touched
	}
	if m := b.messages[b.reports[id]]; m != nil {
		return m.reports.removed || m.touched
	}
	return false
}
