package workspec

import (
	"strconv"
	"strings"
)

// OtherSource ends the text of a deferral after which the recipient's next attempt is made from
// the next source of its zone.
const OtherSource = "; the next attempt comes from another source"

// SourceMoves returns how often each recipient was given another source, by its offset; nil if
// that has not happened.
func (s *Spec) SourceMoves() map[int64]int {
	type last struct {
		attempt int
		moved   bool
	}
	var of map[int64]last
	var moves map[int64]int
	short := false
	for i := range s.History {
		e := &s.History[i]
		if e.Event != EventDeferred {
			continue
		}
		moved := strings.HasSuffix(e.Text, OtherSource)
		if !moved && of == nil {
			continue
		}
		if of == nil {
			of, moves = map[int64]last{}, map[int64]int{}
			short = s.Summarised() > s.ZOffset
		}
		attempt, _ := strconv.Atoi(e.Get("attempt"))
		for r := range s.About(e) {
			before := of[r.Offset]
			if short && before.moved && attempt > before.attempt {
				moves[r.Offset] += attempt - before.attempt - 1 // a summary leaves those out that said the same
			}
			if of[r.Offset] = (last{attempt, moved}); moved {
				moves[r.Offset]++
			}
		}
	}
	return moves
}
