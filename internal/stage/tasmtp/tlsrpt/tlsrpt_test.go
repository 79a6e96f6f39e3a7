package tlsrpt

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

// office is a directory with tlsrpt/ in it, and a clock.
type office struct {
	dir  string
	disk *durable.OS
	now  time.Time
	log  bytes.Buffer
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{dir: t.TempDir(), now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	assert.Must(t, os.Mkdir(filepath.Join(o.dir, Dir), 0o755))
	var err error
	if o.disk, err = durable.NewOS(o.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.disk.Close() })
	return o
}

func (o *office) recorder(keep time.Duration) *Recorder {
	return New(o.disk, keep, func() time.Time { return o.now }, slog.New(slog.NewTextHandler(&o.log, nil)))
}

func (o *office) read(t *testing.T) []Session {
	t.Helper()
	f, err := os.Open(filepath.Join(o.dir, Dir, Day(o.now)))
	assert.Must(t, err)
	defer f.Close()
	list, err := Read(f)
	assert.Must(t, err)
	return list
}

// RFC 8460 §4.4: two processes count, one report comes of it.
func TestReportOfADay(t *testing.T) {
	o := newOffice(t)
	good := Session{Domain: "a.test", Type: PolicySTS, Lines: "version: STSv1\nmode: enforce", Hosts: "mx.a.test *.a.test", From: "192.0.2.1", MX: "mx.a.test", To: "192.0.2.9"}
	bad := good
	bad.Result, bad.Reason = Expired, "x509: certificate has expired"
	other := Session{Domain: "b.test", Type: PolicyNone}
	for range 2 {
		r := o.recorder(0)
		for _, s := range []Session{good, good, bad, other} {
			r.Add(s)
		}
		r.Close()
	}
	sessions := o.read(t)
	if got := Domains(sessions); len(got) != 2 {
		t.Errorf("got domains %v", got)
	}
	got, err := json.MarshalIndent(Make(sessions, "a.test", "here.test", "postmaster@here.test", o.now), "", " ")
	assert.Must(t, err)
	want := `{
 "organization-name": "here.test",
 "date-range": {
  "start-datetime": "2026-11-22T00:00:00Z",
  "end-datetime": "2026-11-22T23:59:59Z"
 },
 "contact-info": "postmaster@here.test",
 "report-id": "2026-11-22.a.test@here.test",
 "policies": [
  {
   "policy": {
    "policy-type": "sts",
    "policy-string": [
     "version: STSv1",
     "mode: enforce"
    ],
    "policy-domain": "a.test",
    "mx-host": [
     "mx.a.test",
     "*.a.test"
    ]
   },
   "summary": {
    "total-successful-session-count": 4,
    "total-failure-session-count": 2
   },
   "failure-details": [
    {
     "result-type": "certificate-expired",
     "sending-mta-ip": "192.0.2.1",
     "receiving-mx-hostname": "mx.a.test",
     "receiving-ip": "192.0.2.9",
     "failed-session-count": 2,
     "failure-reason-code": "x509: certificate has expired"
    }
   ]
  }
 ]
}`
	assert.Same(t, string(got), want)
}

func TestFilesAreBoundedAndOldOnesGo(t *testing.T) {
	o := newOffice(t)
	for _, day := range []string{"2026-10-01", "2026-11-01", "notes"} {
		assert.Must(t, os.WriteFile(filepath.Join(o.dir, Dir, day), nil, 0o644))
	}
	r := o.recorder(30 * 24 * time.Hour)
	r.Add(Session{Domain: "a.test", Lines: strings.Repeat("x", 2*maxText)})
	r.Close()
	r.Add(Session{Domain: "late.test"}) // closed: nothing happens
	var names []string
	entries, err := os.ReadDir(filepath.Join(o.dir, Dir))
	assert.Must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, strings.Join(names, " "), "2026-11-01 2026-11-22 notes")
	if got := o.read(t); len(got) != 1 || len(got[0].Lines) != maxText {
		t.Errorf("got %d sessions", len(got))
	}
	// A full day and a full disk are logged once.
	assert.Must(t, os.Truncate(filepath.Join(o.dir, Dir, Day(o.now)), maxDay))
	r = o.recorder(0)
	for i := range 2 * maxKinds {
		r.Add(Session{Domain: "a.test", MX: strings.Repeat("m", i%maxKinds)})
	}
	r.Close()
	assert.Equal(t, strings.Count(o.log.String(), "tlsrpt-not-written"), 1, "reports: %s", o.log.String())
}

func TestNilRecorderCountsNothing(t *testing.T) {
	var r *Recorder
	r.Add(Session{})
	r.Close()
}

// FuzzRead: no file ends the program, and torn lines hide no others.
func FuzzRead(f *testing.F) {
	f.Add(`{"domain":"a.test","type":"sts","count":2}` + "\n{\"domain\":")
	f.Add("\n\n[]\n{}\n")
	f.Fuzz(func(t *testing.T, text string) {
		if list, err := Read(strings.NewReader(text)); err == nil {
			for _, d := range Domains(list) {
				Make(list, d, "h", "c", time.Unix(0, 0))
			}
		}
	})
}
