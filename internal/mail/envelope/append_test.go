package envelope

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestEnvelopeIsWrittenInCanonicalOrder(t *testing.T) {
	e := &Envelope{
		External: true, RcvdFrom: "h", Comments: []string{"one", "two"}, BodyType: "8BITMIME", ErrorMsg: true, With: "ESMTP",
		IdentInfo: "i", FullName: "James Bond", LoginName: "bond", Via: "v", User: "u", Verbose: "../public/v",
		HasFrom: true, EnvID: "E", NotaryRet: "FULL", Octets: 12, Unknown: []string{"x"},
		Recipients: []Recipient{{"a@b", "NOTIFY=NEVER"}, {`"c d"@e`, ""}},
	}
	const want = "external\nrcvdfrom h\ncomment one\ncomment two\nbodytype 8BITMIME\nerrormsg\nwith ESMTP\nidentinfo i\n" +
		"fullname James Bond\nloginname bond\nvia v\nuser u\nverbose ../public/v\nchannel error\nenvid E\nnotaryret FULL\n" +
		"todsn NOTIFY=NEVER\nto <a@b>\nto <\"c d\"@e>\nenv-end\n"
	got := assert.Get(Append([]byte("before\n"), e))(t)
	assert.Same(t, string(got), "before\n"+want, "envelope")
	m := assert.Get(Read(bytes.NewReader([]byte(want))))(t)
	e.Octets, e.Unknown = -1, nil
	assert.Same(t, m.Envelope, *e, "read again")
}

// No one can put an envelope line into another value.
func TestValuesThatBreakTheLineAreRefused(t *testing.T) {
	cases := map[string]Envelope{
		"newline in rcvdfrom":  {RcvdFrom: "h\nto <x@y>"},
		"CR in with":           {With: "ESMTP\r"},
		"NUL in fullname":      {FullName: "a\x00b"},
		"newline in a comment": {Comments: []string{"a", "b\nfrom <>"}},
		"newline in envid":     {EnvID: "a\nb"},
		"newline in todsn":     {Recipients: []Recipient{{"a@b", "NOTIFY=NEVER\nto x"}}},
		"newline in sender":    {From: "a@b>\nto <c"},
		"newline in recipient": {Recipients: []Recipient{{"a@b\nto c", ""}}},
		"sender is none":       {From: "a b"},
		"sender with brackets": {From: "<a@b>"},
		"null sender brackets": {From: "<>"},
		"recipient is none":    {Recipients: []Recipient{{"a@@b", ""}}},
		"null recipient":       {Recipients: []Recipient{{"", ""}}},
		"recipient by bracket": {Recipients: []Recipient{{"<a@b>", ""}}},
		"DEL in verbose":       {Verbose: "\x7f"},
		"bracket in recipient": {Recipients: []Recipient{{"a@b>, <c@d", ""}}},
		"blanks are recipient": {Recipients: []Recipient{{"  ", ""}}},
	}
	for name, e := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Append([]byte("before"), &e)
			if err == nil {
				t.Fatalf("got %q and no error", got)
			}
			assert.Equal(t, string(got), "before")
		})
	}
}

func TestHeaderFieldsArePartedWithoutLosingAByte(t *testing.T) {
	type field struct{ Name, Value string }
	cases := map[string]struct {
		in   string
		want []field
	}{
		"none":                           {"", nil},
		"two":                            {"A: 1\nB: 2\n", []field{{"A", "1"}, {"B", "2"}}},
		"folded":                         {"A: 1\n 2\n\t3\nB:\n 4\n", []field{{"A", "1 2\t3"}, {"B", "4"}}},
		"no newline at the end":          {"A: 1\nB: 2", []field{{"A", "1"}, {"B", "2"}}},
		"no blank after the colon":       {"A:1\n", []field{{"A", "1"}}},
		"blank before the colon":         {"A \t: 1\n", []field{{"A", "1"}}},
		"empty value":                    {"A:\nB: \t \n", []field{{"A", ""}, {"B", ""}}},
		"line that is no field":          {"A: 1\nhello world\nB: 2\n", []field{{"A", "1"}, {"", "hello world"}, {"B", "2"}}},
		"mbox line":                      {"From bond Sat Nov 21 00:12:50 2026\nA: 1\n", []field{{"", "From bond Sat Nov 21 00:12:50 2026"}, {"A", "1"}}},
		"continuation of nothing":        {" x\nA: 1\n", []field{{"", "x"}, {"A", "1"}}},
		"continuation of no field":       {"hello\n x: y\n", []field{{"", "hello x: y"}}},
		"colon first":                    {": x\n", []field{{"", ": x"}}},
		"8-bit in the name":              {"\xc3: x\n", []field{{"", "\xc3: x"}}},
		"NUL in the value":               {"A: x\x00y\n", []field{{"A", "x\x00y"}}},
		"colon in the value":             {"A: b: c\n", []field{{"A", "b: c"}}},
		"CR LF":                          {"A: 1\r\n 2\r\nB: 3\r\n", []field{{"A", "1 2"}, {"B", "3"}}},
		"line of blanks continues":       {"A: 1\n \n 2\n", []field{{"A", "1  2"}}},
		"colon only in the continuation": {"A\n : 1\n", []field{{"", "A : 1"}}},
		"200 kB":                         {"A: " + strings.Repeat("x", 200<<10) + "\nB: 2\n", []field{{"A", strings.Repeat("x", 200<<10)}, {"B", "2"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got []field
			var all []byte
			for _, f := range Fields([]byte(c.in)) {
				got = append(got, field{f.Name, f.Value()})
				all = append(all, f.Raw...)
			}
			assert.Same(t, got, c.want, "fields")
			assert.Equal(t, string(all), c.in)
		})
	}
}

// Atk2: what Append writes, Read reads, whatever its size; what Read would refuse is not
// written.
func TestAtk2WhatIsWrittenCanBeRead(t *testing.T) {
	for name, size := range map[string]int{"at the limit": maxWritten, "above it": maxWritten + 1} {
		t.Run(name, func(t *testing.T) {
			e := &Envelope{HasFrom: true, RcvdFrom: strings.Repeat("h", 2000)}
			r := Recipient{Address: "someone@example.com", DSN: "ORCPT=rfc822;" + strings.Repeat("o", 500)}
			room := size - len("channel error\nrcvdfrom \n") - len(e.RcvdFrom)
			for room > 2*r.Size() {
				e.Recipients = append(e.Recipients, r)
				room -= r.Size()
			}
			last := Recipient{Address: "someone@example.com", DSN: "x"}
			last.DSN = strings.Repeat("x", room-last.Size()+1)
			e.Recipients = append(e.Recipients, last)
			text, err := Append(nil, e)
			if size > maxWritten {
				if !errors.Is(err, ErrTooLarge) || text != nil {
					t.Errorf("got %d bytes, %v; want ErrTooLarge", len(text), err)
				}
				return
			}
			if err != nil || len(text) != size+len("env-end\n") {
				t.Fatalf("got %d bytes, %v", len(text), err)
			}
			// The longest that others put before it.
			file := append([]byte("comment octets 0000000000000012 00000000\nsubmitter 4294967295 "+strings.Repeat("S", 100)+"\n"), text...)
			m, err := Read(bytes.NewReader(append(file, "S: x\n\n"...)))
			if err != nil || len(m.Recipients) != len(e.Recipients) {
				t.Errorf("got %d recipients, %v", len(m.Recipients), err)
			}
		})
	}
}
