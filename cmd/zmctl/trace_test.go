package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/trace"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// Z30: without --log the postoffice's own log is read, with what was rotated away from it;
// what the history says too is one step, told by both.
func TestTraceFindsTheLogAndMergesTheHistory(t *testing.T) {
	o := office.New(t)
	a, name, offsets := o.Enqueue(t, "one@a.example.com", "two@a.example.com")
	at := time.Now().Add(time.Second).Truncate(time.Millisecond)
	next := at.Add(time.Hour).Truncate(time.Second)
	o.Event(t, name, workspec.Event{Time: at, Recipient: offsets[0], Event: workspec.EventDeferred, Text: "451 later",
		Attrs: []workspec.Attr{{Key: "attempt", Value: "1"}, {Key: "next", Value: fmt.Sprint(next.UnixMilli())}, {Key: "status", Value: "4.2.1"}}})
	line := func(at time.Time, rest string) string {
		return fmt.Sprintf("time=%s level=INFO %s\n", at.UTC().Format("2006-01-02T15:04:05.000Z"), rest)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	fmt.Fprint(z, line(a.ID.Time(), fmt.Sprintf("msg=routed program=router id=%s name=%s from=sender@client.example.net rcpts=2 size=9", a.ID, name)))
	assert.Must(t, z.Close())
	assert.Must(t, os.WriteFile(filepath.Join(o.Dir, postoffice.LogFile+".1.gz"), zipped.Bytes(), 0o600))
	o.Write(t, postoffice.LogFile, "no line of ours, with "+a.ID.String()+" in it\n"+
		line(at, fmt.Sprintf(`msg=deferred program=scheduler id=%s name=%s rcpt=one@a.example.com channel=smtp host=a.example.com status=4.2.1 reply="451 later \x1b[2J" attempt=1 routing=1ms queue=2ms delivery=3ms took=1s next=%s`,
			a.ID, name, next.UTC().Format(time.RFC3339))))
	out := mustDo(t, "trace", a.ID.String())
	wantIn(t, out, a.ID.String()+" from <sender@client.example.net>", "it is queued; ", "routed to 2 recipients, in the queue as "+name,
		"deferred <one@a.example.com> over smtp/a.example.com, attempt 1: 4.2.1 451 later", "RECIPIENT", "waiting 4.2.1", "two@a.example.com")
	if strings.Contains(out, "\x1b") || strings.Count(out, "attempt 1") != 1 {
		t.Errorf("got %q", out)
	}
	var l trace.Life
	out, _, _ = invoke(t, "trace", "--json", a.ID.String())
	assert.Must(t, json.Unmarshal([]byte(out), &l))
	if len(l.Recipients) != 2 || l.Untold != 0 || l.Recipient("one@a.example.com").Routing != time.Millisecond || !l.Recipient("one@a.example.com").Next.Equal(next) {
		t.Errorf("got %+v", l.Recipients)
	}
	for _, s := range l.Steps {
		if s.Event == "deferred" && strings.Join(s.Told, " ") != "log history" {
			t.Errorf("got %+v", s)
		}
	}
	// What is not told yet is counted when the files are not asked.
	out = mustDo(t, "trace", "--logs-only", a.ID.String())
	wantIn(t, out, "and 1 recipient without an attempt so far")
}

func TestTraceIsRefused(t *testing.T) {
	office.New(t)
	for name, tt := range map[string]struct {
		args []string
		code int
	}{
		"no ID":                {[]string{"trace"}, 64},
		"short word":           {[]string{"trace", "a"}, 64},
		"no spool ID":          {[]string{"trace", "S1A2", "4711"}, 64},
		"unknown word":         {[]string{"trace", "4711"}, 1},
		"standard input twice": {[]string{"trace", "--log", "-", "--log", "-", "S1A2"}, 64},
		"unknown":              {[]string{"trace", "S1A2"}, 1},
		"no log, logs alone":   {[]string{"trace", "--logs-only", "S1A2"}, 1},
		"a log that is none":   {[]string{"trace", "--log", "/nonexistent", "S1A2"}, 1},
	} {
		if out, code, err := invoke(t, tt.args...); code != tt.code || out != "" {
			t.Errorf("%s: exit code %d, %v, %q; want %d", name, code, err, out, tt.code)
		}
	}
}
