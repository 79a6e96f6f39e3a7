package workspec

import "testing"

// M18: a lock that a crash cut short names nobody: half of a number is not an owner.
func TestTornLockHasNoOwner(t *testing.T) {
	const rest = "    smtp a.example.com user@a.example.com 65534\nm\nSubject: x\n\n"
	for lock, want := range map[string]int{"~  1234": 1234, "~999999": 999999, "~  12  ": 0, "~      ": 0, "~1     ": 0} {
		s, err := Parse([]byte("@ 0x00000007\ni 1\no 1\ns local - a@b 1\nr" + lock + rest))
		if err != nil {
			t.Fatal(err)
		}
		r := s.Groups[0].Recipients[0]
		if r.Tag != TagLocked || r.Owner != want {
			t.Errorf("%q: tag %q owner %d, want a lock of %d", lock, r.Tag, r.Owner, want)
		}
	}
}
