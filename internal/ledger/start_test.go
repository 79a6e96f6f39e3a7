package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a start reads is what all of the ledger says of it: in base and journals, with
// processes that have closed it and such that have not, of this boot and another, and with
// lines that are torn.
func TestStartReadsWhatTheWholeLedgerSays(t *testing.T) {
	po, dir := realOffice(t)
	same := func(when string) {
		t.Helper()
		all, err := Read(po)
		must(t, err)
		brief, err := readStart(po)
		must(t, err)
		if diff := cmp.Diff(all.writers, brief.writers, cmp.AllowUnexported(writer{})); diff != "" || all.begun != brief.begun || all.Through != brief.Through {
			t.Errorf("%s: begun %v and %v, through %d and %d, all - brief +:\n%s", when, all.begun, brief.begun, all.Through, brief.Through, diff)
		}
		if len(brief.Records) > 0 {
			t.Errorf("%s: %d messages are kept", when, len(brief.Records))
		}
	}
	same("without a ledger")
	scheduler := New(po, small("scheduler"))
	closed := New(po, small("closed"))
	for n := range uint64(40) {
		scheduler.Routed(id(n+1, 1), 2, false)
		if n%2 == 0 {
			scheduler.Done(id(n+1, 1), Outcomes{Delivered: 2})
		}
		closed.Routed(id(n+100, 1), 1, false)
		if n%10 == 0 {
			same("under way")
			must(t, scheduler.Keep())
		}
	}
	closed.Close()
	same("one has closed it")
	for n := range uint64(5) {
		scheduler.Routed(id(n+200, 1), 2, false)
		must(t, scheduler.Keep())
		same("folded")
	}
	journal := filepath.Join(dir, "ledger", "journal")
	text, err := os.ReadFile(journal)
	must(t, err)
	for _, more := range []string{"1795220010123 op", "1795220010123 open other 4711 an-earlier-boot\n", "1795220010123 boot b\n" + strings.Repeat("x", 100_000) + "\n", "1795220010123 open third 1 b"} {
		text = append(text, more...)
		must(t, os.WriteFile(journal, text, 0o600))
		same("with " + more[:min(len(more), 40)])
	}
	scheduler.Close()
	if all, err := Read(po); err != nil || all.Through == 0 {
		t.Fatalf("nothing was folded: %v, %v", all, err)
	}
	base := filepath.Join(dir, "ledger", "base")
	text, err = os.ReadFile(base)
	must(t, err)
	must(t, os.WriteFile(base, text[:len(text)-20], 0o600))
	if _, err := readStart(po); !errors.Is(err, ErrBase) {
		t.Errorf("a base that is cut: %v", err)
	}
}
