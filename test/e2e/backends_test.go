package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// ownPrograms gives a system programs that it may take away.
func ownPrograms(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(openDir(t), "bin")
	assert.Must(t, os.Mkdir(dir, 0o755))
	for _, e := range assert.Get(os.ReadDir(bin))(t) {
		from, to := filepath.Join(bin, e.Name()), filepath.Join(dir, e.Name())
		if err := os.Link(from, to); err != nil { // on another file system
			assert.Must(t, os.WriteFile(to, assert.Get(os.ReadFile(from))(t), 0o755))
		}
	}
	return dir
}

// Op4: servers that are away are in zmctl status, in JSON and on the web page, with the time, the
// error and the remedy, while mail is sent that needs them; they are no longer when they are back.
func TestOp4ServersThatAreAwayAreShownUntilTheyAreBack(t *testing.T) {
	t.Parallel()
	rig.Needs(t, "/usr/sbin/opendkim")
	sink := newSink(t, &peer.Sink{})
	programs := ownPrograms(t)
	milter, filter := freeAddr(t), freeAddr(t)
	s := start(t, sink, func(s *suite.Suite) {
		s.Bin = programs
		s.Settings = map[string]string{
			"ALARMS": "backend=1s", "MILTERS": "inet:" + milter, "MILTERTROUBLE": "accept", "RCPTCHECKTROUBLE": "accept", "RCPTCHECKKEEP": "0",
			"CONTENTFILTER": "smtpx!" + filter, "REINJECTLISTEN": freeAddr(t), "ROUTERPOLL": "1s", "RELAYNETS": "192.0.2.1",
		}
	})
	router := filepath.Join(programs, "router")
	assert.Must(t, os.Rename(router, router+".away"))
	began := time.Now().Add(-time.Second)

	want := []string{"contentfilter:smtpx!" + filter, "milter:inet:" + milter, "rcpt-check"}
	alarms := func() (list []alarm.Alarm) {
		said, _ := call(t, s, "zmctl", "status", "--json")
		var status struct{ Alarms []alarm.Alarm }
		if err := json.Unmarshal([]byte(said), &status); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		return slices.DeleteFunc(status.Alarms, func(a alarm.Alarm) bool { return !slices.Contains(want, a.Subject) })
	}
	n := 0
	mail := func() {
		n++
		sendSMTP(t, s, "bob@far.example", "alice@mta.example", fmt.Sprintf("Subject: %d\n\n", n))
		_, _ = call(t, s, "zmctl", "retry", "--yes", "--host", filter) // there may be nothing yet
	}
	await(t, s, "three alarms", func() (bool, error) { mail(); return len(alarms()) == len(want), nil })
	list := alarms()
	slices.SortFunc(list, func(a, b alarm.Alarm) int { return strings.Compare(a.Subject, b.Subject) })
	said, code := call(t, s, "zmctl", "status")
	assert.Equal(t, code, 1, "exit code of status")
	page := servePage(t, s)
	page.enter(s)
	overview := page.get("/")
	for i, a := range list {
		assert.Equal(t, a.Kind, alarm.Refused, "%s", a.Subject)
		assert.Equal(t, a.Subject, want[i], "subject")
		if a.Since.Before(began) || time.Since(a.Since) < time.Second {
			t.Errorf("%s: since %v", a.Subject, a.Since)
		}
		wantIn(t, a.Text, []string{"refused", "refused", "no such file"}[i], []string{"zmctl retry", "MILTERS", "rcpt-check-trouble"}[i])
		wantIn(t, said, a.Subject)
		wantIn(t, overview, a.Subject)
	}

	assert.Must(t, os.Rename(router+".away", router))
	port := strings.TrimPrefix(milter, "127.0.0.1:")
	rig.Daemon(t, milter, exec.Command("/usr/sbin/opendkim", "-f", "-b", "v", "-p", "inet:"+port+"@127.0.0.1", "-x", "/dev/null"))
	back := newSink(t, &peer.Sink{Listen: filter})
	await(t, s, "no alarms", func() (bool, error) { mail(); return len(alarms()) == 0, nil })
	if len(back.Messages()) == 0 {
		t.Error("no mail has come to the content filter")
	}
	awaitState(t, "a page without them", func() bool {
		got := page.get("/")
		return !slices.ContainsFunc(want, func(subject string) bool { return strings.Contains(got, subject) })
	})
}
