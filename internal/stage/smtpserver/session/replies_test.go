package session

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// Every reply of the table is in docs/smtpserver.md.
func TestRepliesAreDocumented(t *testing.T) {
	source, err := os.ReadFile("replies.go")
	assert.Must(t, err)
	page, err := os.ReadFile("../../../../docs/smtpserver.md")
	assert.Must(t, err)
	found := 0
	for _, m := range regexp.MustCompile(`(NewReply|named)\((\d+), "([\d.]+)", "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		line := "`" + m[2] + " " + m[3]
		if m[1] == "named" {
			line += "` * `" + m[4]
		} else {
			line += " " + m[4]
		}
		if strings.HasPrefix(m[4], "Syntax: ") {
			continue // one row for all of them
		}
		if found++; !strings.Contains(string(page), line+"`") {
			t.Errorf("docs/smtpserver.md lacks %s`", line)
		}
	}
	if found < 25 {
		t.Errorf("%d replies are in the table", found)
	}
}
