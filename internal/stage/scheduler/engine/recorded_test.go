package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/store/storetest"
)

// M32, M31: recorded answers of ZMailer's own agents.
func TestRecordedAgentsAreUnderstood(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		channel, host string
		done          int
		want          []string // words of log lines
	}{
		"smtp-1198.txt":    {"smtp", "a.example.com", 8, []string{"msg=delivered", `reply="250 2.0.0 queued as SINK10291"`}},
		"smtp-1199.txt":    {"smtp", "b.example.com", 4, []string{"msg=failed", "status=5.1.1", "5.1.1 fail1@b.example.com: no such user here"}},
		"mailbox-1202.txt": {"local", "", 5, []string{"msg=delivered", "reply=Ok"}},
		"hold-1205.txt":    {"hold", "timeout:1795220119", 0, []string{"msg=deferred", "status=4.4.3", "attempt=3"}},
	}
	for transcript, tt := range tests {
		t.Run(transcript, func(t *testing.T) {
			t.Parallel()
			recorded, err := filepath.Abs(filepath.Join("../../../wire", "taproto", "testdata", transcript))
			if err != nil {
				t.Fatal(err)
			}
			diagnostic, err := filepath.Abs(filepath.Join("../../..", "workspec", "testdata", "samples", "05-fail", "transport-after"))
			if err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("*/* interval=1m expiry=0\n%s/*\n\tcommand=\"[TEST_AGENT=playback %s TEST_TRANSCRIPT=%s TEST_DIAGNOSTIC=%s] %s\"\n",
				tt.channel, raced, recorded, diagnostic, self)
			r := newRig(t, text, 2, nil)
			r.conf.Match(tt.channel, "h").Interval = 20 * time.Millisecond
			plantRecorded(t, r, recorded, tt.channel)
			r.start()
			r.wait(tt.done, "msg=finished")
			r.wait(1, tt.want...)
			for _, note := range r.notes("told") {
				if !strings.Contains(note, `\t`) && note != `told "#idle"` {
					t.Errorf("the agent was told %s", note)
				}
			}
			if n, _ := r.events.count("level=WARN"); n != 0 {
				t.Error("warnings in the log")
			}
		})
	}
}

// plantRecorded makes the files that a recorded agent worked on, with recipients at
// the recorded offsets.
func plantRecorded(t *testing.T, r *rig, transcript, channel string) {
	t.Helper()
	text, err := os.ReadFile(transcript)
	if err != nil {
		t.Fatal(err)
	}
	offsets, hosts, dirs := map[string][]int{}, map[string]string{}, map[string]string{}
	for line := range strings.Lines(string(text)) {
		if jobs, ok := strings.CutPrefix(line, "SCHED->TA "); ok {
			for job := range strings.SplitSeq(strings.TrimSpace(jobs), `\n`) {
				if path, host, ok := strings.Cut(job, `\t`); ok {
					number := filepath.Base(path)
					hosts[number], dirs[number] = host, filepath.Dir(path)
				}
			}
		}
		if answer, ok := strings.CutPrefix(line, "TA->SCHED "); ok {
			number, rest, ok := strings.Cut(answer, "/")
			off, _, _ := strings.Cut(rest, `\t`)
			if n, err := strconv.Atoi(off); ok && err == nil && !slices.Contains(offsets[number], n) {
				offsets[number] = append(offsets[number], n)
			}
		}
	}
	for number, list := range offsets {
		slices.Sort(list)
		spec := "@ 0x00000007\ni " + number + "\no 100\ns local a a@b 1\n"
		for i, off := range list {
			if i == 0 {
				spec = strings.Replace(spec, "s local", strings.Repeat("l", 1)+" "+strings.Repeat("x", off-len(spec)-3)+"\ns local", 1)
			} else {
				spec += "N " + strings.Repeat("x", off-len(spec)-3) + "\n"
			}
			if len(spec) != off {
				t.Fatalf("recipient of %s at %d, not %d", number, len(spec), off)
			}
			spec += fmt.Sprintf("r           %s %s user%d@h 1\n", channel, hosts[number], i)
		}
		storetest.Plant(t, r.dir, dirs[number], []byte(spec+"m\nA: b\n\n"))
	}
}

// No goroutine, descriptor or process is left behind.
func TestNothingIsLeftAfterStop(t *testing.T) {
	count := func() (goroutines, files int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc")
		}
		return runtime.NumGoroutine(), len(entries)
	}
	r := newRig(t, scriptConf("TEST_SLOTS=3", ""), 1, quick)
	run := func(n int) {
		for i := range 10 {
			r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h%d ok.%d.%d@h", i, n, i)}, storetest.Rcpt{Line: "smtp h fail@h"})
		}
		r.start()
		r.wait(10*n, "msg=finished")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	run(1)
	goroutines, files := count()
	run(2)
	deadline := time.Now().Add(patience)
	for {
		g, f := count()
		if g <= goroutines && f <= files {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("goroutines %d before, %d after; files %d before, %d after", goroutines, g, files, f)
		}
		runtime.Gosched()
	}
}

// K12: a disk that errs for a while: told once, nothing lost, goes on by itself.
func TestDiskTroublePassesByItself(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may write into a directory without the write bit")
	}
	r := newRig(t, scriptConf("", ""), 0, quick)
	transport := filepath.Join(r.dir, "transport")
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h gate@h"})
	r.start()
	gate := r.atGate()
	if err := os.Chmod(transport, 0o555); err != nil {
		t.Fatal(err)
	}
	gate()
	r.wait(1, "level=ERROR", "msg=disk", "permission denied")
	if err := os.Chmod(transport, 0o755); err != nil {
		t.Fatal(err)
	}
	r.wait(1, "msg=finished")
	r.deliveredOnce("gate@h")
}
