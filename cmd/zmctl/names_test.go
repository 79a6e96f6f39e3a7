package main

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
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
		assert.Same(t, strings.Fields(want), calledAs(strings.Fields(text)), text)
	}
}
