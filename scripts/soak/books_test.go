package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// sent returns a message to these places that was accepted.
func sent(b *books, seq int, f fate, places ...string) *message {
	m := &message{content: content{seed: 1, seq: seq, size: 300}, from: sender(seq), places: map[string]*place{}}
	for _, p := range places {
		m.add(p, f, p)
	}
	var err error
	if m.sum, err = m.content.sum(); err != nil {
		panic(err)
	}
	b.begin(m)
	b.answered(m, accepted, fmt.Sprintf("S%dA1", seq))
	return m
}

// come brings a message to a place, with the lines that a system adds on top.
func come(b *books, m *message, at string) {
	text, err := io.ReadAll(m.content.reader())
	if err != nil {
		panic(err)
	}
	comeAs(b, at, "Received: by mta.example\n\tid S1A1\n"+string(text))
}

func comeAs(b *books, at, text string) {
	var a arrival
	for line := range strings.Lines(strings.ReplaceAll(text, "\n", "\r\n")) {
		_, _ = a.Write([]byte(line)) // it takes everything
	}
	b.arrived(at, &a)
}

func reportOn(b *books, m *message, rcpt, id, action string) {
	var a arrival
	for line := range strings.Lines("Message-ID: " + id + "\n\n--x\n\nFinal-Recipient: rfc822; " + rcpt + "\nAction: " + action + "\n\n") {
		a.line([]byte(line))
	}
	b.reported(m.from, &a.report)
}

// M18 K10: what is not accounted for is named, and what an edit, a lost answer or a
// doubt explains is not.
func TestEveryMismatchIsNamed(t *testing.T) {
	const far, other = "ok.64.0@s0.example", "ok.64.1@s0.example"
	tests := map[string]struct {
		make func(b *books)
		want string // "": nothing
	}{
		"delivered once":      {func(b *books) { come(b, sent(b, 64, delivers, far), far) }, ""},
		"lost":                {func(b *books) { sent(b, 64, delivers, far) }, "arrived 0 times, want 1 to 1 and 0 in doubt"},
		"lost for one of two": {func(b *books) { come(b, sent(b, 64, delivers, far, other), far) }, other + ": arrived 0 times"},
		"delivered twice":     {func(b *books) { m := sent(b, 64, delivers, far); come(b, m, far); come(b, m, far) }, "arrived 2 times"},
		"twice, and in doubt": {func(b *books) {
			m := sent(b, 64, delivers, far)
			come(b, m, far)
			come(b, m, far)
			b.event("in-doubt", "x", far, "", "")
		}, ""},
		"doubt about another": {func(b *books) {
			m := sent(b, 64, delivers, far, other)
			come(b, m, far)
			come(b, m, far)
			come(b, m, other)
			b.event("in-doubt", "x", other, "", "")
		}, "arrived 2 times"},
		"another byte": {func(b *books) {
			sent(b, 64, delivers, far)
			comeAs(b, far, "X-Soak: 64\nSubject: message 64\n\nothers\n")
		}, "came to " + far + " with other bytes"},
		"to somebody else":     {func(b *books) { come(b, sent(b, 64, delivers, far), other) }, "to whom it was not sent"},
		"from no one":          {func(b *books) { comeAs(b, "u0@mta.example", "X-Soak: 64\n\n") }, "no one sent"},
		"refused and yet here": {func(b *books) { m := sent(b, 64, delivers, far); m.state = refused; come(b, m, far) }, "it was refused"},
		"unsure, and nothing":  {func(b *books) { sent(b, 64, delivers, far).state = unsure }, ""},
		"unsure, and a half":   {func(b *books) { m := sent(b, 64, delivers, far, other); m.state = unsure; come(b, m, far) }, "arrived 0 times"},
		"copied by hand":       {func(b *books) { m := sent(b, 64, delivers, far); m.copies = 1; come(b, m, far) }, "arrived 1 times, want 2 to 2"},
		"removed by hand": {func(b *books) {
			m := sent(b, 64, delivers, far)
			b.edit(64, func(m *message) { m.removed = true })
			_ = m
		}, ""},
		"failed and reported": {func(b *books) { m := sent(b, 64, fails, far); reportOn(b, m, far, "<1>", "failed") }, ""},
		"failed in silence":   {func(b *books) { sent(b, 64, fails, far) }, "its failure was reported 0 times"},
		"reported twice": {func(b *books) {
			m := sent(b, 64, fails, far)
			reportOn(b, m, far, "<1>", "failed")
			reportOn(b, m, far, "<2>", "failed")
		}, "its failure was reported 2 times"},
		"a report twice": {func(b *books) {
			m := sent(b, 64, fails, far)
			reportOn(b, m, far, "<1>", "failed")
			reportOn(b, m, far, "<1>", "failed")
		}, "its report <1> came 2 times"},
		"a report in doubt": {func(b *books) {
			m := sent(b, 64, fails, far)
			reportOn(b, m, far, "<1>", "failed")
			reportOn(b, m, far, "<1>", "failed")
			b.event("in-doubt", "x", m.from, "", "")
		}, ""},
		"good, called bad":   {func(b *books) { m := sent(b, 64, delivers, far); come(b, m, far); reportOn(b, m, far, "<1>", "failed") }, "reported as failed"},
		"bad, and delivered": {func(b *books) { m := sent(b, 64, fails, far); come(b, m, far); reportOn(b, m, far, "<1>", "failed") }, "arrived, want failed"},
		"expired":            {func(b *books) { m := sent(b, 64, expires, far); reportOn(b, m, far, "<1>", "failed") }, ""},
		"neither nor":        {func(b *books) { sent(b, 64, expires, far) }, "its failure was reported 0 times"},
		"not to be reported": {func(b *books) { m := sent(b, 64, fails, far); m.notify = "NEVER"; reportOn(b, m, far, "<1>", "failed") }, "which its sender did not want"},
		"a delivery unreported": {func(b *books) {
			m := sent(b, 64, delivers, "u0@mta.example")
			m.notify = "SUCCESS"
			come(b, m, "u0@mta.example")
		}, "its delivery was reported 0 times"},
		"torn in an mbox": {func(b *books) { b.inBox("/m/box", &arrival{}) }, "holds 1 torn messages"},
		"a doubt by its ID": {func(b *books) {
			m := sent(b, 64, delivers, "u0@mta.example")
			come(b, m, "u0@mta.example")
			come(b, m, "u0@mta.example")
			b.event("in-doubt", "S64A1", "u0@mta.example", "", "")
		}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBooks()
			tt.make(b)
			got := strings.Join(b.compare(), "\n")
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q in it", got, tt.want)
			}
		})
	}
}

// What an mbox file holds is told apart, and quoting undone; what is torn is not taken
// for a message.
func TestMboxIsReadBack(t *testing.T) {
	b := newBooks()
	m := sent(b, 64, delivers, "/m/box")
	text := assert.Get(io.ReadAll(m.content.reader()))(t)
	var file strings.Builder
	for range 2 {
		file.WriteString("From b.64@back.example Sat Nov 21 03:21:16 2026\nReturn-Path: <>\n")
		for line := range strings.Lines(string(text) + "\n") {
			if strings.HasPrefix(strings.TrimLeft(line, ">"), "From ") {
				line = ">" + line
			}
			file.WriteString(line)
		}
		file.WriteString("\n")
	}
	whole := file.String()
	for _, l := range letters([]byte(whole + whole[:len(whole)/4] + "\n\n" + whole)) {
		(&soak{books: b}).fromBox("/m/box", l)
	}
	assert.Equal(t, m.places["/m/box"].arrivals, 4, "whole messages")
	assert.Equal(t, b.torn["/m/box"], 1, "torn ones")
}

// A seed gives the same messages whatever else happens.
func TestSeedRepeatsItsMessages(t *testing.T) {
	list := func() (text string) {
		x := newMix(newDice(7, "mix 1", nil), 7, "/m", 1, false)
		for range 50 {
			m := assert.Get(x.next())(t)
			text += fmt.Sprint(m.seq, m.from, m.rcpts, m.notify, m.sum, "\n")
		}
		return text
	}
	assert.Equal(t, list(), list(), "two runs with the same seed")
}

// The message that a spool file belongs to is found in its head.
func TestSpoolFilesTellWhoseTheyAre(t *testing.T) {
	tests := map[string]struct {
		head   string
		spec   bool
		seq    int
		report bool
	}{
		"a message":               {"comment octets 0000000000000123\nfrom <b.64@back.example>\nto <u0@mta.example>\nenv-end\n", false, 64, false},
		"of the null sender":      {"channel error\nto <ok.128.0@s0.example>\nenv-end\nfrom <b.64@back.example>\n", false, 128, false},
		"a report":                {"errormsg\nchannel error\nto <b.64@back.example>\nenv-end\n", false, 64, true},
		"of somebody else":        {"from <x@y>\nto <z@y>\nenv-end\n", false, 0, false},
		"no envelope":             {"from <b.64@back.example>\n", false, 0, false},
		"a specification":         {"@ 0x00000007\ni 1-2\ne b.64@back.example\nr           local x u0@mta.example 0\n", true, 64, false},
		"that of a report":        {"i 1-2\ns error - <> 65534\nr           smtp [127.0.0.1]:25 b.64@back.example 65534\n", true, 64, true},
		"that of a null sender's": {"i 1-2\nr~     3    smtp [127.0.0.1]:25 ok.64.1@s0.example 65534\n", true, 64, false},
	}
	for name, tt := range tests {
		seq, report := whose([]byte(tt.head), tt.spec)
		if seq != tt.seq || report != tt.report {
			t.Errorf("%s: got %d, %v, want %d, %v", name, seq, report, tt.seq, tt.report)
		}
	}
}

// What tidy takes away may miss in the ledger, and nothing else that no one removed.
func TestWhatTidyTakesAwayCountsAsRemoved(t *testing.T) {
	b := newBooks()
	sent(b, 64, delivers, "u0@mta.example")
	b.named("S1A1", 64, false)
	b.taken("S2A1")
	for id, want := range map[string]bool{"S1A1": false, "S2A1": true, "S2A2": false} {
		if got := b.wasRemoved(id); got != want {
			t.Errorf("%s: got %v, want %v", id, got, want)
		}
	}
}
