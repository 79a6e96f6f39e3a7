package store

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// K4: a report that a specification names stays; others are of a scheduler that died
// before it had named them. While a specification cannot be read, all stay.
func TestReportsThatNobodyNamesAreSwept(t *testing.T) {
	dir := t.TempDir()
	disk, err := durable.NewOS(dir)
	assert.Must(t, err)
	defer disk.Close()
	faulty := faultfs.New(disk)
	b := newBox(t, faulty)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	f, err := b.PO.Queue.Open(name)
	assert.Must(t, err)
	defer f.Close()
	event := workspec.Event{Time: time.Now(), Event: workspec.EventReport,
		Attrs: []workspec.Attr{{Key: "file", Value: "report.1.named"}, {Key: "kind", Value: report.Failed}}}
	assert.Must(t, f.Append(workspec.AppendEvent(nil, &event)))
	public := func(name string, mode os.FileMode) {
		t.Helper()
		assert.Must(t, os.WriteFile(filepath.Join(dir, "public", name), nil, mode))
	}
	public("report.1.named", 0o600)
	public("report.1.name", 0o600)
	public("report.1.submitted", 0o700)
	public("smtp.1.other", 0o600)
	recovered := func(want int) {
		t.Helper()
		assert.Must(t, b.spool.Recover())
		if got := b.List("public"); len(got) != want {
			t.Errorf("public/ holds %q, want %d files", got, want)
		}
	}
	rule := faulty.Fail(faultfs.Open, "transport/*", unix.EIO, 1)
	recovered(4)
	b.WantLog("level=ERROR", "recovered", "unreadable")
	if rule.Hits() != 1 {
		t.Errorf("the specification was read %d times, want once", rule.Hits())
	}
	recovered(3)
	b.WantLog("recovered", "swept", "report.1.name")
	if _, err := os.Stat(filepath.Join(dir, "public/report.1.named")); err != nil {
		t.Error(err)
	}
}
