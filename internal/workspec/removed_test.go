package workspec

import (
	"testing"
	"time"
)

// A15: the last event decides, and the tag follows it.
func TestRemovalIsDecidedByTheLastEvent(t *testing.T) {
	const head = "@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\n"
	off := int64(len(head))
	at := time.UnixMilli(1795220010000)
	event := func(word string, minutes int, offsets ...int64) string {
		e := RemovedEvent(at.Add(time.Duration(minutes)*time.Minute), word, "S7A1", offsets, "by hand")
		return string(AppendEvent(nil, &e))
	}
	failed := string(AppendDiagnostic(nil, &Diagnostic{Recipient: off, Time: at, Notary: Notary{Action: "failed", Status: "5.1.1"}}))
	tests := map[string]struct {
		tag     string // of the r line, with the lock
		lines   string
		removed bool
		want    Tag
		away    time.Duration
	}{
		"never removed":                             {"       ", "", false, TagToDo, 0},
		"removed, the tag set":                      {"-      ", event("removed", 0, off), true, TagFailed, 0},
		"removed, the tag not set":                  {"       ", event("removed", 0, off), true, TagFailed, 0},
		"removed, and locked since":                 {"~    12", event("removed", 0, off), true, TagLocked, 0},
		"removed, but a foreign agent delivered it": {"+      ", event("removed", 0, off), false, TagOK, 0},
		"another recipient removed":                 {"       ", event("removed", 0, 999), false, TagToDo, 0},
		"put back":                                  {"       ", event("removed", 0, off) + event("restored", 5, off), false, TagToDo, 5 * time.Minute},
		"put back, the tag not set":                 {"-      ", event("removed", 0, off) + event("restored", 5, off), false, TagToDo, 5 * time.Minute},
		"put back after a report, the tag not set":  {"-      ", failed + event("removed", 0, off) + event("restored", 5, off), false, TagToDo, 5 * time.Minute},
		"put back, and failed since":                {"-      ", event("removed", 0, off) + event("restored", 5, off) + failed, false, TagFailed, 5 * time.Minute},
		"put back, and delivered since":             {"+      ", event("removed", 0, off) + event("restored", 5, off), false, TagOK, 5 * time.Minute},
		"removed again": {"-      ", event("removed", 0, off) + event("restored", 5, off) + event("removed", 9, off) + event("restored", 11, off) + event("removed", 12, off),
			true, TagFailed, 7 * time.Minute},
		"torn event": {"       ", event("removed", 0, off)[:30], false, TagToDo, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := mustParse(t, head+"r"+tt.tag+"    smtp h u@h 1\nm\nA: b\n\n"+tt.lines)
			r := &s.Groups[0].Recipients[0]
			m := s.Removal()
			if got := m.Removed(r); got != tt.removed {
				t.Errorf("removed %v, want %v", got, tt.removed)
			}
			if got := m.Tag(r); got != tt.want {
				t.Errorf("tag %q, want %q", got, tt.want)
			}
			if m != nil && (m.Away != tt.away || m.ID != "S7A1") {
				t.Errorf("away %v with ID %s, want %v", m.Away, m.ID, tt.away)
			}
			if got := m.Restored(r); got != (tt.want == TagToDo && tt.away > 0) {
				t.Errorf("restored %v", got)
			}
		})
	}
}
