// Package hostile has the texts that tests try wherever a stranger may name something: addresses and
// words that mean something to a database, a directory, a shell, a terminal, or a protocol of lines.
//
// Only tests import it. Nothing of it survives a test.
//
// Diagnostics: Texts ends the test when its file cannot be read.
package hostile

import (
	_ "embed" // the texts
	"encoding/json"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

//go:embed texts
var texts string

// Texts returns all of them.
func Texts(t testing.TB) (list []string) {
	t.Helper()
	for line := range strings.Lines(texts) {
		if line[0] == '#' {
			continue
		}
		var text string
		assert.Must(t, json.Unmarshal([]byte(line), &text))
		list = append(list, text)
	}
	if len(list) < 200 {
		t.Fatalf("%d texts", len(list))
	}
	return list
}

// Quoted returns a text as the local part of an address: a quoted string (RFC 5321 section 4.1.2).
func Quoted(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
