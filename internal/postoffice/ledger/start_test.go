package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

// What a start reads is what all of the ledger says of it: in base and journals, with
// processes that have closed it and such that have not, of this boot and another, and with
// lines that are torn.
func TestStartReadsWhatTheWholeLedgerSays(t *testing.T) {
	po, dir := realOffice(t)
	same := func(when string) {
		t.Helper()
		all, err := Read(po)
		assert.Must(t, err)
		brief, err := read(po, true)
		assert.Must(t, err)
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
			assert.Must(t, scheduler.Keep())
		}
	}
	closed.Close()
	same("one has closed it")
	for n := range uint64(5) {
		scheduler.Routed(id(n+200, 1), 2, false)
		assert.Must(t, scheduler.Keep())
		same("folded")
	}
	journal := filepath.Join(dir, "ledger", "journal")
	text, err := os.ReadFile(journal)
	assert.Must(t, err)
	for _, more := range []string{"1795220010123 op", "1795220010123 open other 4711 an-earlier-boot\n", "1795220010123 boot b\n" + strings.Repeat("x", 100_000) + "\n",
		strings.Repeat("\x00", 65_516) + "1795220010123 open across-two-blocks 1 e\n", strings.Repeat("\x00", 65_536) + "1795220010123 open behind-a-block 1 c\n", strings.Repeat("\x00", 200_001) + "1795220010123 open behind-many 1 d\n",
		"1795220010123 open third 1 b"} {
		text = append(text, more...)
		assert.Must(t, os.WriteFile(journal, text, 0o600))
		same("with " + more[:min(len(more), 40)])
	}
	scheduler.Close()
	if all, err := Read(po); err != nil || all.Through == 0 {
		t.Fatalf("nothing was folded: %v, %v", all, err)
	}
}

// What is left of a line that was torn counts nothing, and the one that is joined to it is
// read, by a start too.
func TestTornLineIsNotCountedAndTheNextOneIsRead(t *testing.T) {
	for name, tail := range map[string]string{
		"a number's first digit": "1795220010123 routed S9A9 1", "without a word": "1795220010123 routed S9A9 12", "in its time": "179522001",
		"zeros": strings.Repeat("\x00", 100_000),
	} {
		po, dir := realOffice(t)
		first := New(po, small("first"))
		first.Routed(id(1, 1), 1, false)
		first.Close()
		journal := filepath.Join(dir, "ledger", "journal")
		text, err := os.ReadFile(journal)
		assert.Must(t, err)
		assert.Must(t, os.WriteFile(journal, append(text, tail...), 0o600))
		second := New(po, small("second"))
		second.Routed(id(2, 1), 1, false)
		all, err := Read(po)
		assert.Must(t, err)
		brief, err := read(po, true)
		assert.Must(t, err)
		if len(all.Records) != 2 || all.Records[id(2, 1)] == nil || all.Bad != 0 {
			t.Errorf("%s: %d messages, %d bad lines", name, len(all.Records), all.Bad)
		}
		if len(all.writers) != 1 || len(brief.writers) != 1 {
			t.Errorf("%s: open by %v, at a start by %v", name, all.writers, brief.writers)
		}
		second.Close()
	}
}
