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
	if err != nil {
		t.Fatal(err)
	}
	times := regexp.MustCompile(`(?m)^(h )(\d{13})( )|( next=)(\d{13})( )`)
	for _, name := range left {
		path := filepath.Join(s.PostOffice(), name)
		if strings.HasPrefix(name, "transport/") {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b = times.ReplaceAllFunc(b, func(m []byte) []byte {
				digits := regexp.MustCompile(`\d{13}`)
				return digits.ReplaceAllFunc(m, func(d []byte) []byte {
					ms, _ := strconv.ParseInt(string(d), 10, 64)
					return strconv.AppendInt(nil, ms+day.Milliseconds(), 10)
				})
			})
			// In place: the scheduler knows the file by its number.
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		at := time.Now().Add(day)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
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
	if err := os.WriteFile(accepted, []byte("from <bob@mta.example>\nto <u3@sink.example>\nenv-end\nSubject: x\n\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	draft := filepath.Join(s.PostOffice(), "public", "smtp.77.dn0kpsb1upkv.1i")
	if err := os.WriteFile(draft, []byte("comment oct"), 0o600); err != nil {
		t.Fatal(err)
	}
	aDayAhead(t, s)
	deferring.Store(false)
	restart(t, s)
	if err := sink.Wait(4, patience); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, s)
	if n := s.Count("expired"); n != 0 {
		t.Errorf("%d recipients expired, want none", n)
	}
}
