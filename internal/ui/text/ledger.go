package text

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"

	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// row is a line of the table; messages is noMessages if it has no count.
type row struct {
	name       string
	recipients int64
	messages   int64
}

const noMessages = -1

// balanceRows returns the rows of the table: accepted recipients, and their outcomes.
func balanceRows(b *ledger.Balance) (in, out []row) {
	in = []row{
		{"accepted", b.Accepted, b.Messages.Accepted},
		{"added by aliases and lists", b.Added, noMessages},
		{"not routed yet", b.NotEntered.Recipients, b.NotEntered.Messages},
		{"found on disk", b.Found, b.Messages.Found},
	}
	out = []row{
		{"delivered", b.Delivered, noMessages}, {"failed, reported", b.Failed, noMessages},
		{"failed, no report", b.Silent, noMessages}, {"expired", b.Expired, noMessages}, {"removed", b.Removed, noMessages},
		{"rerouted", b.Rerouted, noMessages},
		{"all of these", b.Delivered + b.Failed + b.Silent + b.Expired + b.Removed + b.Rerouted, b.Messages.Done},
		{"gone", b.Gone, b.Messages.Gone}, {"unknown after a power loss", b.Unknown, b.Messages.Unknown},
	}
	for _, list := range []struct {
		what  string
		count map[string]ledger.Count
	}{{"queued in ", b.Queued}, {"held in ", b.Held}} {
		for _, dir := range slices.Sorted(maps.Keys(list.count)) {
			n := list.count[dir]
			out = append(out, row{list.what + dir + "/", n.Recipients, n.Messages})
		}
	}
	if b.Moving != (ledger.Count{}) {
		out = append(out, row{"changed during the check", b.Moving.Recipients, b.Moving.Messages})
	}
	return in, out
}

func PrintBalance(w io.Writer, b *ledger.Balance) error {
	in, out := balanceRows(b)
	var errs []error
	say := func(w io.Writer, format string, args ...any) {
		_, err := fmt.Fprintf(w, format, args...)
		errs = append(errs, err)
	}
	if b.Since.IsZero() {
		say(w, "the ledger has no entries yet\n\n")
	} else {
		say(w, "since %s\n\n", b.Since.Format(human.TimeFormat))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	say(t, "\tRECIPIENTS\tMESSAGES\t\n")
	line := func(r row) {
		messages := "-"
		if r.messages != noMessages {
			messages = strconv.FormatInt(r.messages, 10)
		}
		say(t, "%s\t%d\t%s\t\n", r.name, r.recipients, messages)
	}
	var sum row
	sum.name = "in all"
	for _, r := range in {
		line(r)
		sum.recipients += r.recipients
		sum.messages += max(r.messages, 0)
	}
	line(sum)
	for _, r := range out {
		line(r)
	}
	line(row{"difference", b.Difference.Recipients, noMessages})
	errs = append(errs, t.Flush())
	if b.BadLines > 0 {
		say(w, "\n%s of the ledger cannot be read and were skipped\n", human.Count(b.BadLines, "line"))
	}
	p := term.For(w)
	for i := range b.Wrong {
		m := &b.Wrong[i]
		say(w, "\n%s  %s, %s\n    ledger: %s\n    disk: %s\n", p.Bold(m.ID.String()), p.Red(string(m.Kind)), human.Count(int(max(m.Recipients, -m.Recipients)), "recipient"), m.Ledger, human.Clean(m.Disk))
	}
	return errors.Join(errs...)
}
