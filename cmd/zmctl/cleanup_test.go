package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
	"zmailer/test/office"
)

// M12: what was kept for long enough is dropped, an only copy never, nor any other mail
// that was accepted; a dry run says so and changes nothing.
func TestCleanupDropsWhatIsOldAndTellsTheRest(t *testing.T) {
	o := office.New(t)
	_, deferred := o.Put(t, postoffice.Deferred, "users", office.PlainMail)
	_, frozen := o.Put(t, postoffice.Freezer, "flood", office.PlainMail)
	_, hard := o.Put(t, postoffice.Postman, "broken", office.PlainMail)
	gone, goneName := o.Put(t, postoffice.Freezer, "spam", office.PlainMail)
	o.Write(t, "postman/4711_header", office.PlainMail)
	exits(t, 0, "freezer", "discard", goneName)
	later := time.Now().Add(10 * time.Hour)
	run := func(keep time.Duration, dry bool) (*act.Cleanup, string) {
		t.Helper()
		x, err := act.Clean(o.PostOffice, later, keep, keep, dry)
		var out strings.Builder
		assert.Must(t, errors.Join(err, text.PrintCleanup(x, &out, false)))
		return x, out.String()
	}
	if _, out := run(11*time.Hour, false); !strings.HasPrefix(out, "0 files dropped\n") {
		t.Errorf("what is young: %s", out)
	}
	_, out := run(9*time.Hour, true)
	wantIn(t, out, "postman/4711_header: a copy since ", "removed/"+gone.ID.String()+".freezer.spam: removed from freezer/", "would be dropped; nothing was",
		"deferred/ keeps 1 deferred", "zmctl resubmit", "freezer/ keeps 1 frozen", "postman/ keeps 1 set aside", "only copies of accepted mail")
	if got := o.Names(t, postoffice.Postman); len(got) != 2 || len(o.Names(t, postoffice.Removed)) != 1 {
		t.Fatalf("a dry run has left %q", got)
	}
	if x, _ := run(9*time.Hour, false); len(x.Dropped) != 4 || len(x.Kept) != 3 {
		t.Errorf("got %+v, want the copy, the message, the order and the text beside what was discarded", x)
	}
	for dir, want := range map[string]string{"postman": hard, "deferred": deferred, "freezer": frozen, "removed": "", "orders": ""} {
		assert.Equal(t, strings.Join(o.Names(t, dir), " "), want, "%s: left", dir)
	}
	out, code, err := invoke(t, "cleanup", "--dry-run", "--json")
	var x act.Cleanup
	if code != 0 || json.Unmarshal([]byte(out), &x) != nil || len(x.Dropped) != 0 || len(x.Kept) != 3 || !x.DryRun {
		t.Errorf("exit code %d, %v, %s", code, err, out)
	}
	exits(t, config.ExitUsage, "cleanup", "all")
}
