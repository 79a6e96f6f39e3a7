package postoffice

import (
	"io"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
)

// Atk1: a draft that was written out in parts, as one with many recipients is, becomes a whole
// message or none, wherever the power goes: an accepted one is in router/, and a torn one is set
// aside in quarantine/ (an unanswered submitter sends it again).
func TestEveryCutOfADraftInPartsLeavesAWholeMessageOrNone(t *testing.T) {
	recipients := strings.Repeat("to <b@example.org>\n", 300)
	parts := []string{"from <a@example.net>\n" + recipients, recipients}
	const content = "env-end\nSubject: x\n\nhi\n"
	size := int64(octetsLine + len(parts[0]) + len(parts[1]) + len(content))
	for _, abandoned := range []bool{false, true} {
		accepted := false
		start := func() (*cutfs.FS, func()) {
			base := cutfs.New()
			assert.Must(t, Init(base))
			disk := base.Restart(cutfs.KeepAll())
			p := assert.Get(Open(Config{FS: disk, Strict: true}))(t)
			accepted = false
			return disk, func() {
				d, err := p.Submissions.NewDraft("smtp")
				for _, part := range parts {
					if err == nil {
						err = d.WriteOut([]byte(part))
					}
				}
				if err == nil && !abandoned {
					_, err = io.WriteString(d, content)
				}
				switch {
				case d == nil:
				case abandoned || err != nil:
					_ = d.Abort() // a dead disk removes nothing
				default:
					_, err = d.Commit()
					accepted = err == nil
				}
				if err != nil && !disk.Dead() {
					t.Error(err)
				}
			}
		}
		everyCut(t, 5, start, func(what string, _ cutfs.Loss, after *cutfs.FS) {
			p := assert.Get(Open(Config{FS: after}))(t)
			assert.Get(p.Router.Recover(RouterRecovery{Complete: func([]byte) bool { return true }}))(t)
			later := time.Now().Add(2 * time.Hour)
			assert.Get(p.Submissions.SweepDrafts(later))(t)
			assert.Get(p.Submissions.SettleUnfinished(later, later, false))(t)
			if left := assert.Get(after.ReadDir(Public))(t); len(left) > 0 {
				t.Errorf("%s: public/ holds %v", what, left)
			}
			messages := assert.Get(after.ReadDir(Router))(t)
			for _, e := range messages {
				if info, err := after.Stat(Router + "/" + e.Name); err != nil || info.Size != size {
					t.Errorf("%s: %s has %d bytes, %v, want %d", what, e.Name, info.Size, err, size)
				}
			}
			if n := len(messages); accepted && n != 1 || abandoned && n > 0 || n > 1 {
				t.Errorf("%s: accepted %v, abandoned %v, %d messages in router/", what, accepted, abandoned, n)
			}
		})
	}
}
