package main

import (
	"strconv"
	"testing"

	"zmailer/internal/admin/view"
)

func TestLocksOfProcAreRead(t *testing.T) {
	const text = "1: FLOCK  ADVISORY  WRITE 708 08:01:1234567 0 EOF\n2: POSIX  ADVISORY  WRITE 709 08:01:99 0 EOF\n" +
		"2: -> FLOCK  ADVISORY  WRITE 710 08:01:98 0 EOF\nrubbish\n3: FLOCK ADVISORY READ x 08:01:97 0 EOF\n4: FLOCK ADVISORY READ 711 fd:00:"
	got := view.LockHolders([]byte(text + strconv.Itoa(96) + " 0 EOF\n"))
	if len(got) != 2 || got[1234567] != 708 || got[96] != 711 {
		t.Errorf("got %v, want 1234567 held by 708 and 96 by 711", got)
	}
}
