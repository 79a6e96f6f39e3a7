package text

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/route"
)

func PrintVerdicts(w io.Writer, sum map[string]int) {
	var parts []string
	n := 0
	for _, word := range slices.Sorted(maps.Keys(sum)) {
		parts = append(parts, fmt.Sprintf("%d %s", sum[word], human.Clean(word)))
		n += sum[word]
	}
	// Trouble of the writer is met when it is flushed.
	fmt.Fprintf(w, "of %s now: %s; nothing was moved\n", human.Count(n, "message"), strings.Join(parts, ", "))
}

func PrintVerdict(w io.Writer, v *route.Explanation, f act.AsideMessage) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s", f.Name, f.ID, human.Clean(v.Verdict))
	if v.Why != "" {
		b.WriteString(" (" + human.Clean(v.Why) + ")")
	}
	if v.Reason != "" {
		b.WriteString(": " + human.Cut(human.Clean(view.OneLine(v.Reason)), 500))
	}
	b.WriteByte('\n')
	for i := range v.Recipients {
		r := v.Recipients[i]
		fmt.Fprintf(&b, "    <%s>", human.Clean(r.Address))
		if r.Verdict != "" && r.Verdict != v.Verdict {
			b.WriteString("  " + human.Clean(r.Verdict))
		}
		if r.Reason != "" && r.Reason != v.Reason {
			b.WriteString(": " + human.Cut(human.Clean(view.OneLine(r.Reason)), 300))
		}
		for k, t := range r.Targets[:min(len(r.Targets), targetsShown)] {
			sep := "  to "
			if k > 0 {
				sep = ", "
			}
			b.WriteString(sep + human.Clean(t.Channel+"/"+t.Host+" "+t.User))
		}
		if n := len(r.Targets) - targetsShown; n > 0 {
			fmt.Fprintf(&b, " and %d more", n)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// targetsShown is how many targets of a recipient are printed.
const targetsShown = 5
