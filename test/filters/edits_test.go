package filters

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

var (
	editSeed     = flag.Uint64("edit-seed", 0, "the seed of the random tables and messages; 0: by the clock")
	editTables   = flag.Int("edit-tables", 1, "how many random sets of tables are tried")
	editMessages = flag.Int("edit-messages", 120, "how many random messages are sent through each")
)

// edits makes random tables of header_checks(5), and messages that they change.
type edits struct {
	*rand.Rand
	long bool // with lines longer than what is looked at at once
}

func pick[T any](r edits, list ...T) T { return list[r.IntN(len(list))] }

var words = []string{"one", "two", "three", "spam", "ham", "a.exe", "é", "x=1", "--", "Über"}

func (r edits) text(n int) string {
	var list []string
	for range 1 + r.IntN(n) {
		list = append(list, pick(r, words...))
	}
	return strings.Join(list, pick(r, " ", " ", "  ", "\t"))
}

// checks makes a table about fields or lines.
func (r edits) checks(header bool) string {
	var b strings.Builder
	line := func() {
		pattern := pick(r, "one", "two$", "^three", "spam", "(ham|two) *", "a\\.exe", "^$", "^--", "(\\w+)=1", "x", "[ \t]$", "é")
		action := pick(r, "IGNORE", "STRIP", "REPLACE now $$2", "PREPEND above", "PREPEND  -- $$", "DUNNO", "WARN seen", "INFO seen", "REPLACE .", "REPLACE é $$")
		if strings.Contains(pattern, "(") {
			action = pick(r, "REPLACE [$1] was it", "PREPEND $1: ${1}", "REPLACE $(1)", action)
		}
		if header {
			pattern = pick(r, "^subject:(.*)$", "^x-a: *(.*)", "^x-b:()", "^content-(d[a-z]*):", "(one) ", "^(x-[ab]):.*spam", "^content-type: *text.(plain)", "^content-type: multi(part)", "^received: (from)")
			action = pick(r, "IGNORE", "STRIP", "REPLACE X-New: $1", "REPLACE Subject: [x] $1 end", "PREPEND X-Pre: $1", "PREPEND $1: two", "DUNNO", "WARN seen", "REPLACE X-New: fixed")
			if strings.HasPrefix(pattern, "^received") {
				action = "WARN a trace field"
			}
		}
		not := ""
		if r.IntN(12) == 0 {
			not, action = "!", pick(r, "DUNNO", "WARN not")
		}
		fmt.Fprintf(&b, "%s/%s/%s %s\n", not, pattern, pick(r, "", "", "", "i"), action)
	}
	for range 3 + r.IntN(5) {
		if r.IntN(6) == 0 {
			fmt.Fprintf(&b, "if %s/%s/\n", pick(r, "", "!"), pick(r, "one", "o", "^x"))
			line()
			line()
			b.WriteString("endif\n")
			continue
		}
		line()
	}
	return b.String()
}

func (r edits) fields(b *strings.Builder) {
	for range r.IntN(4) {
		fmt.Fprintf(b, "%s: %s\n", pick(r, "Subject", "X-A", "x-b", "Content-Description", "Content-Disposition"), r.text(5))
		if r.IntN(4) == 0 {
			fmt.Fprintf(b, "%s%s\n", pick(r, " ", "\t", "  "), r.text(4))
		}
	}
}

// entity makes a header's end with a body.
func (r edits) entity(b *strings.Builder, depth int) {
	kind := r.IntN(6)
	if depth == 0 {
		kind = 0
	}
	boundary := fmt.Sprintf("b%d_%d", depth, r.IntN(3))
	switch kind {
	case 1, 2, 3:
		subtype := pick(r, "mixed", "alternative", "digest")
		fmt.Fprintf(b, "Content-Type: multipart/%s;%sboundary=%s\n", subtype, pick(r, " ", "\n\t"), pick(r, boundary, `"`+boundary+`"`))
	case 4:
		b.WriteString("Content-Type: message/rfc822\n")
	case 5:
		b.WriteString("Content-Type: text/plain; charset=utf-8; name=one.exe\n")
	}
	r.fields(b)
	b.WriteString("\n")
	switch kind {
	case 1, 2, 3:
		r.body(b)
		for range 1 + r.IntN(3) {
			fmt.Fprintf(b, "--%s\n", boundary)
			r.fields(b)
			r.entity(b, depth-1)
		}
		if r.IntN(5) > 0 {
			fmt.Fprintf(b, "--%s--\n", boundary)
			r.body(b)
		}
	case 4:
		fmt.Fprintf(b, "X-A: inner\n")
		r.fields(b)
		r.entity(b, depth-1)
	default:
		r.body(b)
	}
}

func (r edits) body(b *strings.Builder) {
	for range r.IntN(6) {
		switch r.IntN(8) {
		case 0:
			b.WriteString("\n")
		case 1:
			b.WriteString("." + r.text(3) + "\n")
		case 2:
			if r.long && r.IntN(20) == 0 {
				b.WriteString(strings.Repeat(r.text(9)+" ", 100+r.IntN(100)))
			}
			b.WriteString(r.text(3) + pick(r, " ", "\t", ".") + "\n")
		default:
			b.WriteString(r.text(6) + "\n")
		}
	}
}

// deliver sends messages, each to an address of its own, and returns what a next hop got.
func deliver(t *testing.T, s *server, messages []string) []string {
	t.Helper()
	conn := assert.Get(net.Dial("tcp", s.addr))(t)
	defer conn.Close()
	assert.Must(t, conn.SetDeadline(time.Now().Add(rig.Patience)))
	k := &client{conn, bufio.NewReader(conn)}
	_, _ = k.reply()
	_, _ = k.say("EHLO client.example\r\n")
	for i, m := range messages {
		for _, line := range []string{"MAIL FROM:<a@client.example>", fmt.Sprintf("RCPT TO:<case%d@sink.example>", i), "DATA"} {
			if code, text := k.say(line + "\r\n"); code[0] != '2' && code[0] != '3' {
				t.Fatalf("%s: %s: %s %s", s.name, line, code, text)
			}
		}
		data := strings.ReplaceAll("\n"+m, "\n.", "\n..")[1:]
		if code, text := k.say(strings.ReplaceAll(data, "\n", "\r\n") + ".\r\n"); code != "250" {
			t.Fatalf("%s: %q: %s %s", s.name, m, code, text)
		}
	}
	_, _ = k.say("QUIT\r\n")
	got := make([]string, len(messages))
	assert.Must(t, s.sink.Wait(len(messages), rig.Patience))
	for _, m := range s.sink.Messages() {
		var n int
		assert.Get(fmt.Sscanf(m.Recipients[0], "case%d@", &n))(t)
		got[n] = withoutReceived(strings.ReplaceAll(string(m.Data), "\r\n", "\n"))
	}
	return got
}

// withoutReceived returns a message without the Received field of the server.
func withoutReceived(m string) string {
	var kept []string
	at, skips := 0, false
	for line := range strings.Lines(m) {
		if line == "\n" {
			break
		}
		at += len(line)
		if line[0] != ' ' && line[0] != '\t' {
			skips = strings.HasPrefix(line, "Received:")
		}
		if !skips {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "") + m[at:]
}

// Op10: what REPLACE, PREPEND, IGNORE and STRIP of header_checks, mime_header_checks,
// nested_header_checks and body_checks make of random messages is, byte by byte, what Debian's Postfix
// delivers with the same tables. Postfix is the judge.
func TestOp10RandomTablesChangeMessagesAsWithPostfix(t *testing.T) {
	if _, err := os.Stat(peer.PostfixMaster); err != nil || os.Geteuid() != 0 {
		t.Skip("Postfix is not installed, or not root")
	}
	seed := *editSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for set := range *editTables {
		r := edits{Rand: rand.New(rand.NewPCG(seed, uint64(set)))}
		dir := rig.ShortDir(t)
		assert.Must(t, os.Chmod(dir, 0o755))
		files, settings := map[string]string{}, []string{}
		for _, setting := range []string{"header_checks", "mime_header_checks", "nested_header_checks", "body_checks"} {
			file := strings.ReplaceAll(strings.TrimSuffix(setting, "checks"), "_", "-") + "rules"
			if strings.HasPrefix(setting, "mime") || strings.HasPrefix(setting, "nested") {
				if r.IntN(3) == 0 {
					continue // those of the header hold
				}
			}
			files[file] = r.checks(setting != "body_checks")
			assert.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(files[file]), 0o644))
			settings = append(settings, setting+" = regexp:"+filepath.Join(dir, file))
		}
		// Postfix joins such a line with the next one when it removes the end; we do not.
		r.long = !strings.Contains(files["body-rules"], "IGNORE") && !strings.Contains(files["body-rules"], "STRIP")
		var messages []string
		for i := range *editMessages {
			var b strings.Builder
			fmt.Fprintf(&b, "From: a@client.example\nDate: Mon, 2 Jan 2006 15:04:05 -0700\nTo: b@sink.example\nMessage-ID: <%d@client.example>\n", i)
			r.fields(&b)
			r.entity(&b, 3)
			messages = append(messages, b.String())
		}
		ours, theirs := deliver(t, startOurs(t, "", files), messages), deliver(t, startPostfix(t, "", append(settings, "smtp_line_length_limit = 1000000")...), messages)
		changed := 0
		for i, m := range messages {
			if theirs[i] != m {
				changed++
			}
			if ours[i] != theirs[i] && !t.Failed() {
				t.Errorf("%s\nPostfix (-) and we (+): %s\ntables: %v", m, cmp.Diff(theirs[i], ours[i]), files)
			}
		}
		t.Logf("%d of %d messages were changed; repeat with -args -edit-seed %d -edit-tables %d", changed, len(messages), seed, set+1)
		if changed < len(messages)/10 {
			t.Errorf("the tables change %d messages", changed)
		}
	}
}
