package main

import (
	"strconv"
	"testing"
	"time"
)

func TestTimesAreShort(t *testing.T) {
	for in, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m", 59 * time.Minute: "59m",
		time.Hour: "1h", 80 * time.Minute: "1h20m", 24 * time.Hour: "1d", 76 * time.Hour: "3d4h", 1000 * 24 * time.Hour: "1000d",
	} {
		if got := span(in); got != want {
			t.Errorf("%v: got %q, want %q", in, got, want)
		}
	}
}

func TestSizesAreShort(t *testing.T) {
	for in, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1.0k", 4200: "4.1k", 20 << 10: "20k", 1 << 20: "1.0M", 100 << 20: "100M", 3 << 40: "3.0T", 1<<63 - 1: "8192P",
	} {
		if got := size(in); got != want {
			t.Errorf("%d: got %q, want %q", in, got, want)
		}
	}
}

func TestTerminalGetsNoControlCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "jürgen": "jürgen", "a\tb": "a b", "\x1b[2J": "\\x1b[2J", "a\nb": "a\\x0ab", "\xff": "\\xff",
		"\u202egnp": "\\x202egnp", "\u0085": "\\x85", "�": "�",
	} {
		if got := clean(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got, want := cut("äöüäöü", 5), "äö..."; got != want {
		t.Errorf("cut: got %q, want %q", got, want)
	}
}

func TestLocksOfProcAreRead(t *testing.T) {
	const text = "1: FLOCK  ADVISORY  WRITE 708 08:01:1234567 0 EOF\n2: POSIX  ADVISORY  WRITE 709 08:01:99 0 EOF\n" +
		"2: -> FLOCK  ADVISORY  WRITE 710 08:01:98 0 EOF\nrubbish\n3: FLOCK ADVISORY READ x 08:01:97 0 EOF\n4: FLOCK ADVISORY READ 711 fd:00:"
	got := lockHolders([]byte(text + strconv.Itoa(96) + " 0 EOF\n"))
	if len(got) != 2 || got[1234567] != 708 || got[96] != 711 {
		t.Errorf("got %v, want 1234567 held by 708 and 96 by 711", got)
	}
}
