package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// replace puts an edited copy into a specification's place, as an editor does.
func (s *spool) replace(name string, edit func(text string) string) {
	s.Helper()
	assert.Must(s, os.WriteFile(s.Path("edited"), []byte(edit(s.Text(name))), 0o600))
	assert.Must(s, os.Rename(s.Path("edited"), s.Path(name)))
}

// withoutZ makes a specification that of a writer that writes no z line, which may be
// edited, and gives it an l line.
func withoutZ(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "z "):
		case strings.HasPrefix(line, "i "):
			b.WriteString(line + "l x\n")
		default:
			b.WriteString(line)
		}
	}
	return b.String()
}

// K10: the specification is replaced by an edited copy, with our locks in it, while we
// deliver: the results are marked in the new file, wherever the recipients stand there.
func TestResultsFollowAReplacedSpecification(t *testing.T) {
	tests := map[string]struct {
		edit   func(string) string
		tags   string
		logged string
	}{
		"the same text":        {func(s string) string { return s }, "+- ", ""},
		"a longer line before": {func(s string) string { return strings.Replace(s, "\nl x\n", "\nl longer than before\n", 1) }, "+- ", ""},
		"without our locks": {func(s string) string {
			i := strings.IndexByte(s, '~')
			return strings.ReplaceAll(s, s[i:i+7], "       ")
		}, "+- ", ""},
		"one recipient less": {func(s string) string {
			i := strings.Index(s, "\nr")
			return s[:i] + s[i+1+strings.Index(s[i+1:], "\n"):]
		}, "- ", "msg=replaced"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file := s.queue(rcpt{"smtp", "h", "ok@h", ""}, rcpt{"smtp", "h", "bad@h", ""}, rcpt{"smtp", "h", "later@h", ""})
			s.replace(file, withoutZ)
			results := []Result{ok, noUser, later}
			lines := s.do(file, "h", deliverFunc(func(_ context.Context, d *Delivery) {
				s.replace(file, tt.edit)
				for i, r := range d.Recipients {
					d.Done(r, results[i])
				}
			}))
			assert.Equal(t, s.Tags(file), tt.tags, "tags; answers %s %s", lines, s.Text(file))
			if got := s.log.String(); tt.logged == "" && strings.Contains(got, "msg=replaced") || !strings.Contains(got, tt.logged) {
				t.Errorf("logged %s", got)
			}
			for _, d := range s.Spec(file).Diagnostics {
				if r := s.Spec(file).Groups[0].Recipients; d.Recipient != r[len(r)-2].Offset {
					t.Errorf("a diagnostic of byte %d, want %d", d.Recipient, r[len(r)-2].Offset)
				}
			}
		})
	}
}

// K10: the files are moved to another hash directory while we deliver, and given to
// us again from there: the lock is our own, and the delivery under way.
func TestMovedSpecificationIsNotDeliveredTwice(t *testing.T) {
	s := newSpool(t)
	file := s.queue(rcpt{"smtp", "h", "once@h", ""})
	again := ""
	s.do(file, "h", deliverFunc(func(_ context.Context, d *Delivery) {
		for _, dir := range []string{"queue", "transport"} {
			sub := filepath.Join(s.Dir, dir, "A")
			assert.Must(t, os.Mkdir(sub, 0o755))
			assert.Must(t, os.Rename(filepath.Join(s.Dir, dir, file), filepath.Join(sub, file)))
		}
		again = s.do("A/"+file, "h", give(noUser))
		d.Done(d.Recipients[0], ok)
	}))
	if got := s.Tags("A/" + file); got != "+" || again != "#resync A/"+file+"\n" {
		t.Errorf("tags %q, the second job was answered by %q", got, again)
	}
}

// A15: a recipient that an operator has removed is left alone, even if its tag does not say
// so yet.
func TestRemovedRecipientIsNotDelivered(t *testing.T) {
	s := newSpool(t)
	file := s.queue(rcpt{"smtp", "h", "removed@h", ""}, rcpt{"smtp", "h", "open@h", ""})
	off := s.Spec(file).Groups[0].Recipients[0].Offset
	s.Event(file, workspec.RemovedEvent(testTime, workspec.EventRemoved, "S1A1", []int64{off}, "test"))
	s.do(file, "h", give(ok))
	assert.Equal(t, s.Tags(file), " +", "tags")
	s.Event(file, workspec.RemovedEvent(testTime, workspec.EventRestored, "S1A1", []int64{off}, "test"))
	s.do(file, "h", give(ok))
	assert.Equal(t, s.Tags(file), "++", "tags after it was put back")
}

// Del2 K10: the scheduler replaces the file by a copy with a shorter history while the agent,
// of a scheduler that was killed, waits for its lock: no recipient is delivered to by the old file.
func TestClaimAfterASummaryStartsAnew(t *testing.T) {
	s := newSpool(t)
	name := s.queue(rcpt{channel: "smtp", host: "h", address: "a@h"})
	for n := range 9 {
		s.Event(name, workspec.DeferredEvent(testTime, s.Spec(name).Groups[0].Recipients[0].Offset, n+1, testTime, status.MailboxFull, "452 full"))
	}
	summarise := func() {
		f, err := s.PostOffice.Queue.Open(name)
		assert.Must(t, err)
		defer f.Close()
		raw, err := f.Read()
		assert.Must(t, err)
		note := workspec.SupersededEvent(testTime)
		assert.Must(t, f.Replace(workspec.Summarise(raw, testTime), raw, workspec.AppendEvent(nil, &note)))
	}
	s.fs.waiting = func(string) {
		s.fs.waiting = nil
		summarise()
	}
	delivered := 0
	to := deliverFunc(func(_ context.Context, d *Delivery) {
		delivered++
		d.Done(d.Recipients[0], Result{Outcome: status.Delivered, Reply: "250 Ok"})
	})
	if got := s.do(name, "h", to); got != "#resync "+name+"\n" || delivered != 0 {
		t.Errorf("the agent sent %q, delivered %d", got, delivered)
	}
	if got := s.do(name, "h", to); delivered != 1 || s.Tags(name) != "+" {
		t.Errorf("afterwards: %q, delivered %d, tags %q", got, delivered, s.Tags(name))
	}
}

// A recipient in a replaced specification is done only when the line about it is on the disk.
func TestResultInAReplacedSpecificationIsSyncedBeforeItsTag(t *testing.T) {
	s := newSpool(t)
	file := s.queue(rcpt{"smtp", "h", "bad@h", ""})
	s.replace(file, withoutZ)
	syncs := 0
	s.do(file, "h", deliverFunc(func(_ context.Context, d *Delivery) {
		s.replace(file, func(text string) string { return text })
		s.fs.failing(func(op, _ string) error {
			if op != "sync" {
				return nil
			}
			syncs++
			return unix.EIO
		})
		d.Done(d.Recipients[0], noUser)
	}))
	s.fs.failing(nil)
	if tags := s.Tags(file); syncs == 0 || strings.Contains(tags, "-") {
		t.Errorf("after %d syncs that failed the tags are %q", syncs, tags)
	}
}
