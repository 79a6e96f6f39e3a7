package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNamesOfSendmailAreCommands(t *testing.T) {
	for text, want := range map[string]string{
		"/usr/bin/mailq":                     "zmctl queue --readable",
		"mailq -v -Ac":                       "zmctl queue --readable",
		"mailq --json S123":                  "zmctl queue --readable --json S123",
		"/usr/bin/newaliases -v":             "zmctl check-config",
		"/usr/sbin/zmctl status":             "/usr/sbin/zmctl status",
		"zmctl --config /c queue --older 1d": "zmctl --config /c queue --older 1d",
	} {
		if diff := cmp.Diff(strings.Fields(want), calledAs(strings.Fields(text))); diff != "" {
			t.Errorf("%s: want -, got +\n%s", text, diff)
		}
	}
}
