package text

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/check"
	"zmailer/internal/admin/repair"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

func PrintFindings(w io.Writer, list []check.Finding, counts [3]int) error {
	var errs []error
	p := term.For(w)
	for _, f := range list {
		words := ""
		for _, problem := range f.Problems {
			words += " [" + string(problem) + "]"
		}
		severity := fmt.Sprintf("%-7s", f.Severity)
		switch f.Severity {
		case check.Fine:
			severity = p.Green(severity)
		case check.Warning:
			severity, words = p.Yellow(severity), p.Yellow(words)
		case check.Wrong:
			severity, words = p.Red(severity), p.Red(words)
		}
		_, err := fmt.Fprintf(w, "%s  %s: %s%s\n         %s\n", severity, p.Bold(human.Clean(f.File)), f.State, words, human.Clean(f.Text))
		errs = append(errs, err)
	}
	_, err := fmt.Fprintf(w, "%d ok, %s, %s\n", counts[check.Fine], human.Count(counts[check.Warning], "warning"), human.Count(counts[check.Wrong], "error"))
	return errors.Join(append(errs, err)...)
}

func PrintSteps(w io.Writer, steps []repair.Step) error {
	p := term.For(w)
	var errs []error
	for _, s := range steps {
		_, err := fmt.Fprintf(w, "%s  %s: %s\n", p.Yellow(fmt.Sprintf("%-10s", s.Action)), p.Bold(human.Clean(s.File)), human.Clean(s.Text))
		errs = append(errs, err)
		if s.Left != "" {
			_, err := fmt.Fprintf(w, "            %s\n", p.Red("left: "+human.Clean(s.Left)))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func PrintCleanup(x *act.Cleanup, w io.Writer, quiet bool) error {
	var b strings.Builder
	left := 0
	for _, d := range x.Dropped {
		if !quiet || d.Left != "" {
			fmt.Fprintf(&b, "%s: %s\n", human.Clean(d.File), human.Clean(d.Text))
		}
		if d.Left != "" {
			left++
			fmt.Fprintf(&b, "    left: %s\n", human.Clean(d.Left))
		}
	}
	done := "dropped"
	if x.DryRun {
		done = "would be dropped; nothing was"
	}
	fmt.Fprintf(&b, "%s %s\n", human.Count(len(x.Dropped)-left, "file"), done)
	for _, k := range x.Kept {
		fmt.Fprintf(&b, "%s/ keeps %d %s, the oldest since %s%s\n", k.Directory, k.Files, k.State, human.Span(time.Duration(k.OldestSeconds)*time.Second), forWhom(k))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// forWhom names the command for kept files.
func forWhom(k act.Kept) string {
	switch k.State {
	case view.StateDeferred:
		return ": zmctl resubmit"
	case view.StateFrozen:
		return ": zmctl freezer list"
	case view.StateSetAside:
		return ", only copies of accepted mail: zmctl postman list"
	case view.StateCopy:
		return ", copies that go after POSTMANKEEP"
	}
	return ": see zmctl check"
}
