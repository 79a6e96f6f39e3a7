package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/ui/text"
	"zmailer/test/office"
)

// What goes through much shows a bar on a terminal, nothing in a pipe and nothing
// with --quiet; afterwards the terminal has the result alone.
func TestLongWorkShowsABar(t *testing.T) {
	o := office.New(t)
	for range text.BigNumber {
		o.Put(t, postoffice.Freezer, "flood", office.PlainMail)
	}
	for i := range text.BigNumber {
		o.Write(t, filepath.Join(postoffice.Orders, fmt.Sprintf("20200101-000000-hold-%d", i+1)), "verb hold\n\n")
	}
	for _, tt := range []struct{ args, bar, result string }{
		{"check --quiet=%v", "check", " warning"},
		{"check --ledger --quiet=%v", "ledger", "in all"},
		{"check --dry-run --quiet=%v", "repair", "to be done; nothing was changed, "},
		{"check --repair --quiet=%v", "repair", "done, "},
		{"cleanup --quiet=%v", "cleanup", "dropped\n"},
		{"remove --all --yes --quiet=%v", "remove", "removed "},
	} {
		if strings.HasPrefix(tt.args, "cleanup") || strings.HasPrefix(tt.args, "remove") {
			tt.args = strings.ReplaceAll(tt.args, "%v", "false") // there is nothing to do afterwards
		}
		for _, quiet := range []bool{true, false} {
			if quiet && !strings.Contains(tt.args, "%v") {
				continue
			}
			args := strings.Fields(strings.ReplaceAll(tt.args, "%v", fmt.Sprint(quiet)))
			got := onTerminal(t, 120, nil, args...)
			shown := strings.Contains(got, "\r") && strings.Contains(got, tt.bar)
			if shown == quiet || !strings.Contains(got, tt.result) {
				t.Errorf("%s: a bar %v; got\n%q", args, shown, got)
			}
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "check")
	cmd.Env = append(os.Environ(), "BE_ZMCTL=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if out, _ := cmd.Output(); stderr.Len() > 0 || strings.Contains(string(out), "\r") || !strings.Contains(string(out), " ok, ") {
		t.Errorf("in a pipe: got %q, %q", stderr.String(), out)
	}
}
