package attack

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// Sec1: somebody who has taken over a daemon writes its copy of zmailer.conf, by which agents and
// commands go while the file itself is wrong: tables there are programs. Root's agent and commands run
// none of them, and mail goes on.
func TestSec1DaemonusersSettingsAreNotRoots(t *testing.T) {
	w := begin(t, asDaemon, nil)
	ran, script := filepath.Join(w.s.Dir, "canary", "ran"), filepath.Join(w.s.Dir, "tmp", "table")
	w.must(os.WriteFile(script, []byte("#!/bin/sh\n: >"+ran+"\n"), 0o755))
	bad := map[string]string{"ROUTES": "exec:" + script, "ALIASES": "exec:" + script, "MAILBOX": filepath.Join(w.s.Dir, "canary") + "/%u"}
	w.submit(w.bob, w.alice.name+"@mta.example")
	w.delivered()
	copies, err := filepath.Glob(w.po("lastgood/*/*"))
	w.must(err)
	forged := 0
	for _, file := range copies {
		info := assert.Get(os.Stat(file))(t)
		if b := assert.Get(os.ReadFile(file))(t); bytes.Contains(b, []byte("zmailer.conf")) && owner(info) != 0 {
			w.must(os.WriteFile(file, forge(t, b, bad), info.Mode())) // it stays DAEMONUSER's
			forged++
		}
	}
	if forged < 6 {
		t.Fatalf("%d of the files in lastgood were forged: %q", forged, copies)
	}
	for _, p := range assert.Get(w.s.Processes())(t) {
		if p.Name == "ta-mailbox" {
			w.must(p.Kill()) // another agent is started
		}
	}
	w.submit(w.bob, w.alice.name+"@mta.example")
	w.delivered()
	conf := assert.Get(os.ReadFile(w.s.Config()))(t)
	w.must(os.WriteFile(w.s.Config(), append(conf, "NO SETTING\n"...), 0o644))
	for _, args := range [][]string{{"queue"}, {"status"}, {"route", "x@far.example"}, {"verify", w.alice.name + "@mta.example"}, {"check"}} {
		said, code := w.zmctl(args...)
		t.Logf("zmctl %q: %d\n%.600s", args, code, said)
	}
	if _, err := os.Lstat(ran); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("root ran a program that DAEMONUSER named: %v", err)
	}
}

// forge changes settings in a copy of zmailer.conf.
func forge(t *testing.T, copied []byte, settings map[string]string) []byte {
	t.Helper()
	line, text, _ := bytes.Cut(copied, []byte("\n"))
	var head map[string]any
	assert.Must(t, json.Unmarshal(line, &head))
	var kept []string
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, "="); settings[name] == "" {
			kept = append(kept, line)
		}
	}
	for name, value := range settings {
		kept = append(kept, name+"="+value+"\n")
	}
	text = []byte(strings.Join(kept, ""))
	sum := sha256.Sum256(text)
	head["sha256"] = hex.EncodeToString(sum[:])
	return append(append(assert.Get(json.Marshal(head))(t), '\n'), text...)
}
