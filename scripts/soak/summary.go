package main

import (
	"fmt"
	"time"
)

// summary returns what is printed at the end.
func (s *soak) summary(load, whole time.Duration) string {
	t := s.books.tally()
	ledger := "not looked at"
	if s.settledByHand >= 0 {
		ledger = fmt.Sprintf("looked at; misses %d messages that were removed by hand", s.settledByHand)
	}
	return fmt.Sprintf(`seed            %d
submissions     %d: %d accepted, %d refused, %d without an answer
recipients      %d: %d delivered, %d failed, %d lost to a removal by hand
again           %d deliveries, %d in doubt in the log
reports         %d
kills and stops %d
edits by hand   %d, hash depth changed %d times
orders          %d, %d questions, scheduler.conf changed %d times
pauses          %d; few descriptors %d times
at the start    %v
at the end      %v
ledger          %s
largest queue   %d messages
time            %v, of it %v load
`, s.seed, t.messages, t.accepted, t.refused, t.unsure, t.recipients, t.delivered, t.failed, t.removed,
		t.twice, t.doubts, t.reports, s.kills.Load(), s.edits.Load(), s.depths.Load(), s.orders.Load(), s.questions.Load(), s.reloaded.Load(), s.pauses.Load(), s.scarcities.Load(), s.atStart, s.atEnd, ledger, s.largest.Load(),
		whole.Round(100*time.Millisecond), load.Round(100*time.Millisecond))
}
