package taproto

import (
	"errors"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// M32, M34
func TestAgentLinesAreRead(t *testing.T) {
	answer := func(a Answer) Line { return Line{Kind: LineAnswer, Answer: a} }
	for name, c := range map[string]struct {
		line string
		want Line
		back string // how it is written, if not so
	}{
		"hungry":                 {"#hungry", Line{Kind: LineHungry}, ""},
		"resync":                 {"#resync A/B/17-4", Line{Kind: LineResync, Name: "A/B/17-4"}, ""},
		"resync of a host":       {"#resync A/17\tmx.example.org", Line{Kind: LineResync, Name: "A/17", Host: "mx.example.org"}, ""},
		"resync of a host alone": {"#resync \tmx", Line{Text: "resync \tmx"}, "# resync \tmx"},
		"slots":                  {"#slots 300", Line{Kind: LineSlots, Slots: 300}, ""},
		"slots of no number":     {"#slots many", Line{Text: "slots many"}, "# slots many"},
		"resync of nothing":      {"#resync ", Line{Text: "resync "}, "# resync "},
		"comment":                {"# hello", Line{Text: "hello"}, ""},
		"comment run on":         {"#hello", Line{Text: "hello"}, "# hello"},
		"hungrier":               {"#hungry now", Line{Text: "hungry now"}, "# hungry now"},
		"junk":                   {"Segmentation fault", Line{Text: "Segmentation fault"}, "# Segmentation fault"},
		"nothing":                {"", Line{}, "# "},
		"delivered":              {"12/34\t\tok3 250 fine", answer(Answer{Number: 12, Offset: 34, Word: OK3, Text: "250 fine"}), ""},
		"no text":                {"12/34\t\tok", answer(Answer{Number: 12, Offset: 34, Word: OK}), ""},
		"notary and lines": {"12/34\ta\x01failed\x015.1.1\t" + "error \r<<- RCPT\r->> 550\tno",
			answer(Answer{Number: 12, Offset: 34, Notary: "a\x01failed\x015.1.1", Word: Error, Text: "\n<<- RCPT\n->> 550\tno"}), ""},
		"largest numbers":        {"18446744073709551615/999999999999999999\t\tok2", answer(Answer{Number: 1<<64 - 1, Offset: 999999999999999999, Word: OK2}), ""},
		"number too large":       {"18446744073709551616/1\t\tok2", Line{Text: "18446744073709551616/1\t\tok2"}, "# 18446744073709551616/1\t\tok2"},
		"negative offset":        {"1/-1\t\tok", Line{Text: "1/-1\t\tok"}, "# 1/-1\t\tok"},
		"signed number":          {"+1/1\t\tok", Line{Text: "+1/1\t\tok"}, "# +1/1\t\tok"},
		"no notary field":        {"1/2\tok fine", Line{Text: "1/2\tok fine"}, "# 1/2\tok fine"},
		"no offset":              {"1\t\tok fine", Line{Text: "1\t\tok fine"}, "# 1\t\tok fine"},
		"retryat relative":       {"1/2\t\tretryat +90 421 busy", answer(Answer{Number: 1, Offset: 2, Word: RetryAt, Relative: true, After: 90 * time.Second, Text: "421 busy"}), ""},
		"retryat absolute":       {"1/2\t\tretryat 1795220010 421 busy", answer(Answer{Number: 1, Offset: 2, Word: RetryAt, At: time.Unix(1795220010, 0), Text: "421 busy"}), ""},
		"retryat without text":   {"1/2\t\tretryat +0", answer(Answer{Number: 1, Offset: 2, Word: RetryAt, Relative: true}), ""},
		"retryat without a time": {"1/2\t\tretryat soon", answer(Answer{Number: 1, Offset: 2, Word: DeferAll, Text: "soon"}), "1/2\t\tdeferall soon"},
		"retryat alone":          {"1/2\t\tretryat", answer(Answer{Number: 1, Offset: 2, Word: DeferAll}), "1/2\t\tdeferall"},
		"retryat in the past":    {"1/2\t\tretryat -5 x", answer(Answer{Number: 1, Offset: 2, Word: DeferAll, Text: "-5 x"}), "1/2\t\tdeferall -5 x"},
		"retryat beyond time":    {"1/2\t\tretryat +99999999999 x", answer(Answer{Number: 1, Offset: 2, Word: DeferAll, Text: "+99999999999 x"}), "1/2\t\tdeferall +99999999999 x"},
		"unknown word":           {"1/2\t\tperhaps 250 fine", answer(Answer{Number: 1, Offset: 2, Word: Deferred, Text: "perhaps 250 fine"}), "1/2\t\tdeferred perhaps 250 fine"},
		"word in capitals":       {"1/2\t\tOK fine", answer(Answer{Number: 1, Offset: 2, Word: Deferred, Text: "OK fine"}), "1/2\t\tdeferred OK fine"},
		"no word":                {"1/2\t\t", answer(Answer{Number: 1, Offset: 2, Word: Deferred}), "1/2\t\tdeferred"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ParseLine([]byte(c.line))
			assert.Same(t, got, c.want)
			if c.back == "" {
				c.back = c.line
			}
			if back := string(AppendLine(nil, &got)); back != c.back+"\n" {
				t.Errorf("written as %q, want %q", back, c.back)
			}
		})
	}
}

// M34: never before the time that was asked for.
func TestRetryTimeIsRoundedUp(t *testing.T) {
	for after, want := range map[time.Duration]string{
		0: "+0", 1: "+1", time.Second: "+1", time.Second + 1: "+2", time.Hour: "+3600", -time.Hour: "+0",
		1<<63 - 1: "+9223372036",
	} {
		got := string(AppendLine(nil, &Line{Kind: LineAnswer, Answer: Answer{Word: RetryAt, Relative: true, After: after}}))
		assert.Equal(t, got, "0/0\t\tretryat "+want+"\n", after)
	}
}

func TestCommandsAreRead(t *testing.T) {
	job := func(name, host string) Command { return Command{Kind: CommandJob, Job: Job{Name: name, Host: host}} }
	for name, c := range map[string]struct {
		line string
		want Command
	}{
		"end":                 {"", Command{Kind: CommandEnd}},
		"idle":                {"#idle", Command{Kind: CommandIdle}},
		"name alone":          {"17-4", job("17-4", "")},
		"name and host":       {"A/B/17\tmx.example.org", job("A/B/17", "mx.example.org")},
		"host with a bracket": {"17\t[127.0.0.1]:2525", job("17", "[127.0.0.1]:2525")},
		"host with a TAB":     {"17\ta\tb", job("17", "a\tb")},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseCommand([]byte(c.line))
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
			assert.Equal(t, string(AppendCommand(nil, got)), c.line+"\n", "written as")
		})
	}
	for _, bad := range []string{"#idler", "#", "# idle", "\thost", "17\x00\thost"} {
		if got, err := ParseCommand([]byte(bad)); !errors.Is(err, ErrCommand) {
			t.Errorf("%q: got %+v, %v; want ErrCommand", bad, got, err)
		}
	}
}

func TestAppendedLineIsOneLine(t *testing.T) {
	const evil = "a\n12/34\t\tok3 \r#hungry\n"
	for _, l := range []Line{
		{Text: evil}, {Kind: LineResync, Name: evil}, {Kind: LineResync, Name: evil, Host: evil},
		{Kind: LineAnswer, Answer: Answer{Number: 1, Offset: -2, Notary: evil, Word: "o\nk", Text: evil}},
	} {
		b := string(AppendLine(nil, &l))
		if strings.Count(b, "\n") != 1 {
			t.Errorf("got %q", b)
		}
		if got := ParseLine([]byte(strings.TrimSuffix(b, "\n"))); got.Kind != l.Kind {
			t.Errorf("%q reads as kind %d", b, got.Kind)
		}
	}
	b := string(AppendCommand(nil, Command{Job: Job{Name: evil, Host: evil}}))
	if strings.Count(b, "\n") != 1 {
		t.Errorf("got %q", b)
	}
}
