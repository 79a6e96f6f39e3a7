package text

import (
	"fmt"
	"io"
	"strings"

	"zmailer/internal/admin/view"
	"zmailer/internal/ui/term"
)

// PrintExplanation prints why a message waits. Trouble of the writer is met by the next command.
func PrintExplanation(w io.Writer, r *view.Explanation) {
	p := term.For(w)
	for i, line := range r.Lines {
		if painted := p.State(r.States[i], line); painted != line {
			line = painted
		} else {
			line = strings.ReplaceAll(line, r.ID, p.Bold(r.ID))
		}
		fmt.Fprintln(w, line)
	}
}
