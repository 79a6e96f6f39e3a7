package router

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func mkfifo(name string) error { return unix.Mkfifo(name, 0o600) }

// Whatever a message holds, what stands below our lines is what was submitted.
func TestHeaderAndBodyGoOnByteForByte(t *testing.T) {
	t.Parallel()
	const envelope = "external\nfrom <q@example.net>\nto <a@example.net>\nenv-end\n"
	every := make([]byte, 0, 256)
	for i := range 256 {
		every = append(every, byte(i))
	}
	tests := map[string]struct {
		header, rest string
	}{
		"usual":                     {"From: q@example.net\nSubject:  two blanks \n", "\nbody\n"},
		"empty body":                {"Subject: x\n", "\n"},
		"no empty line":             {"Subject: x\n", ""},
		"no newline after headers":  {"Subject: x", ""},
		"no header":                 {"", "\nbody\n"},
		"nothing at all":            {"", ""},
		"one byte without newline":  {"Subject: x\n", "\nx"},
		"every byte in the body":    {"Subject: x\n", "\n" + string(every)},
		"8-bit and NUL in a header": {"Subject: \xe4\x00\xff\nX-\xff: y\n", "\n\x00\x00\n"},
		"200 kB header line":        {"X-Long: " + strings.Repeat("0123456789", 20000) + "\nSubject: x\n", "\nbody\n"},
		"200 kB folded header":      {"X-Long: " + strings.Repeat("0123456789\n\t", 20000) + "\nSubject: x\n", "\nbody\n"},
		"folded, tabs, blank tail":  {"Subject: a\n\tb \n  c\t\nFrom:q@example.net\nX-Empty:\n", "\n\n\nbody"},
		"carriage returns":          {"Subject: x\r\nFrom: q@example.net\r\n", "\nbody\r\n"},
		"no field":                  {"Subject: x\n>From q\nTo: y\n", "\nbody\n"},
		"dots":                      {"Subject: x\n", "\n.\n..\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			m := o.one(envelope + tt.header + tt.rest)
			ours, own, ok := strings.Cut(m.header(), "\n\tid ")
			if ok {
				_, own, ok = strings.Cut(own, "\n")
			}
			want := tt.header
			if want != "" && !strings.HasSuffix(want, "\n") {
				want += "\n"
			}
			if !ok || !strings.HasPrefix(ours, "Received: ") || own != want {
				t.Errorf("header: got %.200q, want one Received field and %.200q", m.header(), want)
			}
			body := strings.TrimPrefix(tt.rest, "\n")
			if got := m.message[m.spec.BodyOffset:]; string(got) != body {
				t.Errorf("body: got %.200q, want %.200q", got, body)
			}
			if !bytes.HasSuffix(m.message, []byte(envelope+tt.header+tt.rest)) {
				t.Error("the message file was changed")
			}
		})
	}
}
