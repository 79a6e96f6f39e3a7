package ledger

import (
	"testing"

	"zmailer/internal/run/assert"
)

// Dur1: the ledger names a message that has ended with a failure that is in no report, and
// keeps its account until an operator settles it.
func TestDur1LedgerFindsUnreportedFailures(t *testing.T) {
	tests := map[string]struct {
		lines func(s *spool)
		want  string // what is wrong
	}{
		"reported":     {func(s *spool) { s.j.Done(id(77, 1), Outcomes{Delivered: 1, Failed: 2}) }, ""},
		"not reported": {func(s *spool) { s.j.DoneUnreported(id(77, 1), Outcomes{Delivered: 1, Failed: 2}, 2) }, "unreported"},
		"one of two":   {func(s *spool) { s.j.DoneUnreported(id(77, 1), Outcomes{Delivered: 1, Failed: 2}, 1) }, "unreported"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			s.j.Routed(id(77, 1), 3, false)
			tt.lines(s)
			for _, folded := range []bool{false, true} {
				if folded { // the account is kept in base
					s.j.Close()
					assert.Must(t, rotate(s.po.FS()))
					if _, err := fold(s.po); err != nil {
						t.Fatal(err)
					}
				}
				b, err := Compare(t.Context(), s.po, Patience{Looks: 1})
				assert.Must(t, err)
				got := ""
				for _, w := range b.Wrong {
					got += string(w.Kind)
				}
				if got != tt.want || b.Difference != (Count{}) {
					t.Errorf("folded %v: got %q and the difference %+v, want %q", folded, got, b.Difference, tt.want)
				}
				if folded && tt.want != "" {
					j := New(s.po, Config{Role: "zmctl"})
					defer j.Close()
					assert.Must(t, j.Explain(b, id(77, 1)))
					if b, err = Compare(t.Context(), s.po, Patience{Looks: 1}); err != nil || len(b.Wrong) > 0 {
						t.Errorf("settled: %+v, %v", b.Wrong, err)
					}
				}
			}
		})
	}
}
