package logread

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logging"
)

const (
	textLine = `time=2026-11-22T10:00:00.500Z level=WARN msg=deferred program=scheduler id=S1A1 rcpt=ann@far.example host=mx.far.example reply="451 try \"later\""`
	jsonLine = `{"time":"2026-11-22T10:00:00.5Z","level":"WARN","msg":"deferred","program":"scheduler","id":"S1A1","rcpt":"ann@far.example","host":"mx.far.example","reply":"451 try \"later\""}`
)

func day(clock string) time.Time {
	t, err := time.Parse(time.DateTime, "2026-11-22 "+clock)
	if err != nil {
		panic(err)
	}
	return t
}

func TestFilterTakesWhatFitsEverything(t *testing.T) {
	warn, err := ParseLevel("warn")
	assert.Must(t, err)
	failure, err := ParseLevel("error")
	assert.Must(t, err)
	tests := map[string]struct {
		f    Filter
		want bool
	}{
		"everything":                     {Everything(), true},
		"its ID":                         {Filter{IDs: []string{"S9", "S1A1"}}, true},
		"another ID":                     {Filter{IDs: []string{"S1A"}}, false},
		"its event":                      {Filter{Events: []string{"deferred"}}, true},
		"a pattern of events":            {Filter{Events: []string{"de*"}}, true},
		"another event":                  {Filter{Events: []string{"delivered", "failed"}}, false},
		"its program":                    {Filter{Programs: []string{"router", "scheduler"}}, true},
		"another program":                {Filter{Programs: []string{"router"}}, false},
		"its level":                      {Filter{Level: warn}, true},
		"a higher level":                 {Filter{Level: failure}, false},
		"since before":                   {Filter{Since: day("09:59:59")}, true},
		"since after":                    {Filter{Since: day("10:00:01")}, false},
		"until before":                   {Filter{Until: day("09:59:59")}, false},
		"until after":                    {Filter{Until: day("10:00:01")}, true},
		"a key's value":                  {Filter{Match: []logging.Field{{Key: "host", Value: "mx.far.example"}}}, true},
		"a key's pattern":                {Filter{Match: []logging.Field{{Key: "rcpt", Value: "*@far.example"}}}, true},
		"one key of two":                 {Filter{Match: []logging.Field{{Key: "rcpt", Value: "*"}, {Key: "host", Value: "x"}}}, false},
		"a key that is not there":        {Filter{Match: []logging.Field{{Key: "client", Value: "*"}}}, false},
		"a pattern that is none":         {Filter{Match: []logging.Field{{Key: "host", Value: "["}}}, false},
		"all but the event":              {Filter{IDs: []string{"S1A1"}, Programs: []string{"scheduler"}, Events: []string{"x"}}, false},
		"everything that can be said":    {Filter{IDs: []string{"S1A1"}, Programs: []string{"scheduler"}, Events: []string{"deferred"}, Level: warn}, true},
		"a slash is a character as well": {Filter{Match: []logging.Field{{Key: "reply", Value: "451*"}}}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, raw := range []string{textLine, jsonLine} {
				l, ok := logging.ParseLine([]byte(raw))
				if !ok {
					t.Fatalf("no line: %s", raw)
				}
				assert.Equal(t, tt.f.Takes(&l), tt.want)
			}
		})
	}
}

// A line of text comes out as the JSON log has it.
func TestJSONOfATextLineIsThatOfTheJSONLog(t *testing.T) {
	var want, got map[string]any
	assert.Must(t, json.Unmarshal([]byte(jsonLine), &want))
	for _, raw := range []string{textLine, jsonLine, "Nov 22 10:00:00 mx scheduler[7]: " + jsonLine} {
		l, ok := logging.ParseLine([]byte(raw))
		if !ok {
			t.Fatalf("no line: %s", raw)
		}
		b, err := JSON(raw, &l)
		assert.Must(t, err)
		clear(got)
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		for k, v := range want {
			assert.Equal(t, got[k], v, k)
		}
		if len(got) != len(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestTimesAsPeopleTypeThem(t *testing.T) {
	zone := time.FixedZone("X", 3600)
	now := time.Date(2026, 11, 22, 15, 4, 5, 0, zone)
	tests := map[string]string{
		"now": "2026-11-22T15:04:05", "today": "2026-11-22T00:00:00", "yesterday": "2026-11-21T00:00:00",
		"90": "2026-11-22T15:02:35", "15m": "2026-11-22T14:49:05", "2h": "2026-11-22T13:04:05", "3d": "2026-11-19T15:04:05",
		"10:30": "2026-11-22T10:30:00", "10:30:07": "2026-11-22T10:30:07", "2026-11-20": "2026-11-20T00:00:00",
		"2026-11-20 08:15": "2026-11-20T08:15:00", "2026-11-20 08:15:30": "2026-11-20T08:15:30", "2026-11-20T08:15:30": "2026-11-20T08:15:30",
		"2026-11-20T08:15:30+01:00": "2026-11-20T08:15:30",
	}
	for text, want := range tests {
		got, err := ParseTime(text, now)
		if err != nil || got.In(zone).Format("2006-01-02T15:04:05") != want {
			t.Errorf("%s: got %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"soon", "25:00", "-1h", "2026-13-01", "1x", "10:30pm"} {
		if got, err := ParseTime(text, now); err == nil {
			t.Errorf("%s: got %v, want an error", text, got)
		}
	}
	if _, err := ParseLevel("loud"); err == nil {
		t.Error("an unknown level was taken")
	}
}

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"15m", "10:30", "2026-11-22", "today"} {
		f.Add(s)
	}
	now := day("12:00:00")
	f.Fuzz(func(t *testing.T, s string) {
		if at, err := ParseTime(s, now); err == nil && at.IsZero() && s != "" && !strings.HasPrefix(s, "0001") {
			t.Errorf("%q: no error and no time", s)
		}
	})
}

func write(t *testing.T, name, text string, at time.Time) {
	t.Helper()
	assert.Must(t, os.WriteFile(name, []byte(text), 0o600))
	assert.Must(t, os.Chtimes(name, at, at))
}

func collect(list *[]string) func([]byte) error {
	return func(line []byte) error {
		*list = append(*list, string(line))
		return nil
	}
}

// The files are compressed by zstd itself, as logrotate with compresscmd has it.
func TestFilesOfZstdAreRead(t *testing.T) {
	program, err := exec.LookPath("zstd")
	if err != nil {
		t.Skip("the files need Debian's zstd to be compressed")
	}
	var text strings.Builder
	for i := 0; text.Len() < 3*chunkSize; i++ {
		fmt.Fprintf(&text, "%d %x\n", i, i*i)
	}
	dir := t.TempDir()
	plain := filepath.Join(dir, "log.1")
	write(t, plain, text.String(), day("01:00:00"))
	for name, args := range map[string][]string{"log.2.zst": {"-q"}, "log.3.zst": {"-q", "-19"}, "log.4.zst": {"-q", "--ultra", "--long=27"}} {
		path := filepath.Join(dir, name)
		out, err := exec.CommandContext(t.Context(), program, append(args, plain, "-o", path)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var got, scanned strings.Builder
		assert.Must(t, EachOf(path, func(line []byte) error { fmt.Fprintf(&got, "%s\n", line); return nil }))
		assert.Must(t, ScanFiles(t.Context(), []string{path}, 0, Containing(" "), func(line []byte) error { fmt.Fprintf(&scanned, "%s\n", line); return nil }))
		if got.String() != text.String() || scanned.String() != text.String() {
			t.Errorf("%s: %d and %d bytes, want %d", name, got.Len(), scanned.Len(), text.Len())
		}
		// One that is being compressed ends early, or has just been made.
		whole := assert.Get(os.ReadFile(path))(t)
		for _, n := range []int{0, 1, len(whole) / 2} {
			write(t, path, string(whole[:n]), day("01:00:00"))
			var part strings.Builder
			err := EachOf(path, func(line []byte) error { fmt.Fprintf(&part, "%s\n", line); return nil })
			if err != nil || !strings.HasPrefix(text.String(), strings.TrimSuffix(part.String(), "\n")) {
				t.Errorf("%s, %d bytes of it: %d bytes of text, %v", name, n, part.Len(), err)
			}
		}
		write(t, path, "this is no such file", day("01:00:00"))
		if err := EachOf(path, func([]byte) error { return nil }); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s with other content: got %v", name, err)
		}
	}
	names := assert.Get(Rotated(filepath.Join(dir, "log"), time.Time{}))(t)
	assert.Equal(t, len(names), 4, "files that were rotated away")
}

func TestRotatedFilesAreReadOldestFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path+".1", "third\n", day("03:00:00"))
	write(t, path+"-20261101", "first\r\n", day("01:00:00"))
	write(t, path, "last\n", day("04:00:00"))
	write(t, path+".new", "not ours\n", day("04:00:00"))
	write(t, path+"book.1", "not ours\n", day("04:00:00"))
	f, err := os.Create(path + ".2.gz")
	assert.Must(t, err)
	z := gzip.NewWriter(f)
	fmt.Fprint(z, "second\nsecond again")
	assert.Must(t, z.Close())
	f.Close()
	assert.Must(t, os.Chtimes(f.Name(), day("02:00:00"), day("02:00:00")))
	for since, want := range map[string][]string{
		"00:00:00": {"first", "second", "second again", "third"},
		"02:30:00": {"third"},
		"03:30:00": nil,
	} {
		names, err := Rotated(path, day(since))
		assert.Must(t, err)
		var got []string
		for _, name := range names {
			assert.Must(t, EachOf(name, collect(&got)))
		}
		assert.Same(t, got, want, "since %s", since)
	}
	if err := EachOf(path+".none", collect(new([]string))); err == nil || !strings.Contains(err.Error(), ".none") {
		t.Errorf("a missing file: got %v", err)
	}
}

// A line that is too long is cut and no other is harmed.
func TestLongLineIsCut(t *testing.T) {
	var got []int
	text := strings.Repeat("x", 3*longest) + "\nshort\n" + strings.Repeat("y", 100<<10)
	assert.Must(t, Each(strings.NewReader(text), func(line []byte) error { got = append(got, len(line)); return nil }))
	if len(got) != 3 || got[0] < longest || got[0] > longest+100<<10 || got[1] != 5 || got[2] != 100<<10 {
		t.Errorf("got lines of %d bytes", got)
	}
}

// Followed by its name: a rotation, also one that leaves no file for a while, and a file
// that is cut to nothing lose no line and show none twice.
func TestFollowGoesOnInTheNextFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, "one\ntwo\n", time.Now())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got := make(chan string, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- Follow(ctx, path, func(line []byte) error { got <- string(line); return nil }, func() error { return nil })
	}()
	want := func(line string) {
		t.Helper()
		select {
		case l := <-got:
			if l != line {
				t.Fatalf("got %q, want %q", l, line)
			}
		case <-ctx.Done():
			t.Fatalf("no %q", line)
		}
	}
	appendTo := func(name, text string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			_, err = io.WriteString(f, text)
			f.Close()
		}
		assert.Must(t, err)
	}
	want("one")
	want("two")
	appendTo(path, "thr")
	appendTo(path, "ee\n")
	want("three")
	assert.Must(t, os.Rename(path, path+".1"))
	appendTo(path+".1", "four\n")
	want("four")
	appendTo(path, "five\n")
	want("five")
	assert.Must(t, os.Truncate(path, 0))
	appendTo(path, "6\n")
	want("6")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("got %v", err)
	}
}
