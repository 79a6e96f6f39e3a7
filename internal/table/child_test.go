package table

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

// program writes a shell script and gives its source. Each request of "aliases bond" is
// 12:aliases bond, in bytes.
func program(t *testing.T, script string) (source, dir string) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(dir, "prog")
	assert.Must(t, os.WriteFile(path, []byte("#!/bin/sh\necho $$ >>"+dir+"/pids\n"+script), 0o755))
	return "exec:" + path, dir
}

// ask reads a request of "aliases bond" in a script.
const ask = "read_request() { dd bs=1 count=16 2>/dev/null | grep -q . || exit 0; }\n"

// pids returns the children that a script's program has had.
func pids(t *testing.T, dir string) []int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "pids"))
	assert.Must(t, err)
	var list []int
	for _, f := range strings.Fields(string(b)) {
		n := assert.Get(strconv.Atoi(f))(t)
		list = append(list, n)
	}
	return list
}

// awaitGone waits until a process is no more.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for syscall.Kill(pid, 0) == nil {
		// A zombie is as good as gone.
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && bytes.Contains(b, []byte(") Z ")) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("process %d lives on", pid)
		}
	}
}

func TestProgramIsAskedOnItsStandardInput(t *testing.T) {
	source, dir := program(t, ask+"while :; do read_request; printf '7:OK jane,'; done\n")
	k := openAs(t, source+" --with 'two' arguments", Options{Name: "aliases", Timeout: time.Minute})
	for range 5 {
		v, ok, err := k.Lookup(t.Context(), "bond")
		if v.Text != "jane" || v.UID != Nobody || !ok || err != nil {
			t.Fatalf("got %+v, %v, %v", v, ok, err)
		}
	}
	if got := pids(t, dir); len(got) != 1 {
		t.Errorf("%d children for five questions, want 1", len(got))
	}
}

func TestProgramThatDoesNotAnswerIsNeverANo(t *testing.T) {
	for name, tt := range map[string]struct{ script, want string }{
		"ends at once":              {"exit 3\n", "EOF|broken pipe"},
		"hangs":                     {"sleep 1000\n", "no answer within"},
		"hangs with a child":        {"sleep 1000 & wait\n", "no answer within"},
		"killed in its answer":      {ask + "read_request; printf '9:NOTF'; kill -9 $$\n", "EOF"},
		"ends before the comma":     {ask + "read_request; printf '9:NOTFOUND '\n", "EOF"},
		"hangs in its answer":       {ask + "read_request; printf '9:NOTFOUND '; sleep 1000\n", "no answer within"},
		"babbles":                   {"while :; do echo NOTFOUND; done\n", "not the socketmap protocol|more than one"},
		"babbles before a no":       {"echo starting; " + ask + "read_request; printf '9:NOTFOUND ,'; cat\n", "not the socketmap protocol"},
		"complains and ends":        {"echo 'no such database' >&2; exit 1\n", "EOF|broken pipe"},
		"says that it is down":      {ask + "while :; do read_request; printf '9:TEMP down,'; done\n", "TEMP down"},
		"an answer of a gigabyte":   {ask + "read_request; printf '1000000000:OK a,'; cat /dev/zero\n", "longer than"},
		"a million values":          {ask + "read_request; printf '16000002:OK '; yes user@x.example, | head -c 16000000; printf ,\n", "longer than"},
		"an answer without request": {"printf '9:NOTFOUND ,9:NOTFOUND ,'; sleep 1000\n", "more than one answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, dir := program(t, tt.script)
			// A slow machine may meet its limit before it meets the trouble.
			k := openAs(t, source, Options{Name: "aliases", Timeout: 2 * short, Keep: time.Hour})
			for range 3 {
				_, ok, err := k.Lookup(t.Context(), "bond")
				if err == nil || ok || !strings.HasPrefix(err.Error(), source+": ") {
					t.Fatalf("got %v, %v, want an error that names the source", ok, err)
				}
				if !matches(err.Error(), tt.want+"|asked again in|no answer within") {
					t.Errorf("got %v, want %q", err, tt.want)
				}
			}
			assert.NoError(t, k.Close())
			for _, pid := range pids(t, dir) {
				awaitGone(t, pid)
			}
		})
	}
}

// What a hanging child has started goes with it: it may hold the database.
func TestChildrenOfAChildEndWithIt(t *testing.T) {
	source, dir := program(t, "sleep 1000 &\necho $! >>"+"$(dirname $0)/pids\nwait\n")
	k := openAs(t, source, Options{Name: "aliases", Timeout: 2 * short})
	if _, _, err := k.Lookup(t.Context(), "bond"); err == nil {
		t.Fatal("got no error")
	}
	for _, pid := range pids(t, dir) {
		awaitGone(t, pid)
	}
}

func TestKilledChildIsStartedAgain(t *testing.T) {
	source, dir := program(t, ask+"while :; do read_request; printf '7:OK jane,'; done\n")
	k := openAs(t, source, Options{Name: "aliases", Timeout: time.Minute})
	for round := range 4 {
		if got := says(k, "bond"); got != "jane" {
			t.Fatalf("round %d: got %q", round, got)
		}
		all := pids(t, dir)
		if len(all) != round+1 {
			t.Fatalf("round %d: %d children, want %d", round, len(all), round+1)
		}
		assert.Must(t, syscall.Kill(all[round], syscall.SIGKILL))
		awaitGone(t, all[round])
	}
}

func TestChildEndsWithItsInput(t *testing.T) {
	source, dir := program(t, ask+"while :; do read_request; printf '9:NOTFOUND ,'; done\n")
	k := assert.Get(Open(source, Options{Name: "aliases", Timeout: time.Minute}))(t)
	if got := says(k, "bond"); got != "none" {
		t.Fatalf("got %q", got)
	}
	assert.Must(t, k.Close())
	awaitGone(t, pids(t, dir)[0])
	assert.Equal(t, says(k, "bond"), "error", "closed")
}

func TestWhatAChildComplainsOfIsLoggedAndDoesNotFlood(t *testing.T) {
	var log logtest.Buffer
	source, _ := program(t, "i=0; while [ $i -lt 300 ]; do echo complaint $i >&2; i=$((i+1)); done\n"+ask+"read_request; printf '9:NOTFOUND ,'\n")
	k := openAs(t, source, Options{Name: "aliases", Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if got := says(k, "bond"); got != "none" {
		t.Fatalf("got %q", got)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); !strings.Contains(log.String(), fmt.Sprintf("complaint %d", heardLines-1)); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not logged:\n%s", log.String())
		}
	}
	assert.Equal(t, strings.Count(log.String(), "source-said"), heardLines, "lines logged")
}
