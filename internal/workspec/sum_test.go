package workspec

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// M7: zeros where a block never reached the disk, at any place, are found: by the z
// line's checksum if all else is whole.
func TestZeroedBlockIsFound(t *testing.T) {
	whole := written(t)
	for _, block := range []int{32, 64, 128, 512} {
		for at := 0; at < len(whole); at += block {
			file := bytes.Clone(whole)
			clear(file[at:min(at+block, len(file))])
			for _, tail := range []string{"", "h 1 0 sent\n"} {
				s, err := Parse(append(bytes.Clone(file), tail...))
				if err != nil || s.Complete {
					t.Errorf("%d bytes from %d zeroed, then %q: got %+v, %v, want it incomplete", block, at, tail, s, err)
				}
			}
		}
	}
}

// Zeros that the sender wrote into a header are no damage, nor is what a person edits.
func TestZerosOfASenderAndEditsAreNoDamage(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "4711-12"})
	w.Group(Sender{Channel: "local", Host: "-", Address: "a", Privilege: "1"}, manyRecipients(2), []byte("X: "+strings.Repeat("\x00", 600)+"\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !Complete(b.Bytes()) {
		t.Errorf("zeros in a header: not complete: %q", b.Bytes())
	}
	edited := bytes.Replace(written(t), []byte("smtp h.example b@"), []byte("smtp i.example b@"), 1)
	if !Complete(edited) {
		t.Errorf("edited: not complete: %q", edited)
	}
	bad := bytes.Replace(edited, []byte("\no "), []byte("\no x"), 1)
	if _, err := Parse(bad); err == nil {
		t.Error("a line that cannot be read, with no zeros anywhere, was read")
	}
}

// Tags, locks and lines that are added later do not make a file incomplete.
func TestChecksumLeavesOutWhatChanges(t *testing.T) {
	for name, change := range map[string]func(file []byte, r *Recipient) []byte{
		"locked": func(file []byte, r *Recipient) []byte {
			copy(file[TagOffset(r.Offset):], LockBytes(999999))
			return file
		},
		"delivered": func(file []byte, r *Recipient) []byte {
			copy(file[TagOffset(r.Offset):], TagBytes(FormatOurs, TagOK))
			return file
		},
		"delay":    func(file []byte, r *Recipient) []byte { copy(file[r.Offset+8:], "1234"); return file },
		"appended": func(file []byte, _ *Recipient) []byte { return append(file, "h 1 0 sent\nx\n\x00\x00\x00\n"...) },
		"torn":     func(file []byte, _ *Recipient) []byte { return append(file, "h 1 0 se\x00\x00"...) },
	} {
		file := written(t)
		spec := mustParse(t, string(file))
		for gi := range spec.Groups {
			for ri := range spec.Groups[gi].Recipients {
				file = change(file, &spec.Groups[gi].Recipients[ri])
			}
		}
		if !Complete(file) {
			t.Errorf("%s: not complete: %q", name, file)
		}
	}
}

// A file of before, or another writer's, whose z line has no checksum is whole by its
// length.
func TestClosingLineWithoutChecksumIsRead(t *testing.T) {
	head := "@ 0x00000007\nz -\n" + group
	for tail, want := range map[string]bool{"": true, " ": true, " 00000000": true, "1": false} {
		file := fmt.Sprintf("%sz %d%s\n", head, len(head), tail)
		if got := Complete([]byte(file)); got != want {
			t.Errorf("%q: got %v, want %v", tail, got, want)
		}
	}
	zeros := strings.Replace(head, "Subject: x", "Subject: x"+strings.Repeat("\x00", 30), 1)
	for tail, want := range map[string]bool{"": true, " 0000000": false, " 00000000": false, " zzzzzzzz": false} {
		file := fmt.Sprintf("%sz %d%s\n", zeros, len(zeros), tail)
		if got := Complete([]byte(file)); got != want {
			t.Errorf("with zeros, %q: got %v, want %v", tail, got, want)
		}
	}
}
