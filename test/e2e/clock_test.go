package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

const day = 24 * time.Hour

// aDayAhead makes the files of a stopped postoffice what they are when the clock was a
// day ahead while they were written, and has been set back since.
func aDayAhead(t *testing.T, s *suite.Suite) {
	t.Helper()
	left, err := s.Left()
	must(t, err)
	times := regexp.MustCompile(`(?m)^(h )(\d{13})( )|( next=)(\d{13})( )`)
	for _, name := range left {
		path := filepath.Join(s.PostOffice(), name)
		if strings.HasPrefix(name, "transport/") {
			b, err := os.ReadFile(path)
			must(t, err)
			b = times.ReplaceAllFunc(b, func(m []byte) []byte {
				digits := regexp.MustCompile(`\d{13}`)
				return digits.ReplaceAllFunc(m, func(d []byte) []byte {
					ms, _ := strconv.ParseInt(string(d), 10, 64)
					return strconv.AppendInt(nil, ms+day.Milliseconds(), 10)
				})
			})
			// In place: the scheduler knows the file by its number.
			must(t, os.WriteFile(path, b, 0o600))
		}
		at := time.Now().Add(day)
		must(t, os.Chtimes(path, at, at))
	}
}

// A5 M4 K4: files from before the clock was set back by a day: what waited is tried
// within its interval, what was accepted is routed, an abandoned draft is swept.
func TestFilesFromBeforeTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	var deferring atomic.Bool
	deferring.Store(true)
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string {
		if deferring.Load() {
			return "451 4.2.1 later"
		}
		return ""
	}})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, `interval=1s retries="1 1 2 3"`, `interval=4s retries="1"`, 1)
		s.Settings = map[string]string{"ROUTERPOLL": "1s"}
	})
	for i := range 3 {
		submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", fmt.Sprintf("u%d@sink.example", i))
	}
	await(t, s, "three deferrals", func() (bool, error) { return s.Count("deferred") >= 3, nil })
	stop(t, s)
	// Accepted, and not routed yet; and what a dead submitter has begun to write.
	accepted := filepath.Join(s.PostOffice(), "public", "accepted")
	must(t, os.WriteFile(accepted, []byte("from <bob@mta.example>\nto <u3@sink.example>\nenv-end\nSubject: x\n\n"), 0o700))
	draft := filepath.Join(s.PostOffice(), "public", "smtp.77.dn0kpsb1upkv.1i")
	must(t, os.WriteFile(draft, []byte("comment oct"), 0o600))
	aDayAhead(t, s)
	deferring.Store(false)
	restart(t, s)
	must(t, sink.Wait(4, patience))
	awaitEmpty(t, s)
	wantNone(t, s, "expired")
}
