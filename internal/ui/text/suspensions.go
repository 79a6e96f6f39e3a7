package text

import (
	"fmt"
	"io"
	"time"

	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// PrintSuspensions prints suspensions that are in force, in two lines each.
func PrintSuspensions(w io.Writer, list []*suspension.Suspension, now time.Time) {
	p := term.For(w)
	for _, s := range list {
		state, end := "suspended: ", "zmctl resume "+string(s.Order)+" ends it"
		if s.Accepting {
			state, end = "refused: ", "zmctl start --accepting ends it"
		}
		fmt.Fprintf(w, "%s, %s\n    order %s; %s\n", p.Yellow(state+human.Clean(s.Subject())), human.Clean(s.Details(now)), s.Order, end)
	}
}
