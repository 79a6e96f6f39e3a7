package envelope

import "testing"

// RFC 5322 §3.6.6
func TestUppermostResentBlockIsFound(t *testing.T) {
	tests := map[string]struct {
		header   string
		from, to int
	}{
		"none":              {"From: a\nTo: b\n", -1, 2},
		"nothing":           {"", -1, 0},
		"on top":            {"Resent-From: a\nRESENT-TO: b\nFrom: c\n", 0, 2},
		"all of it":         {"Resent-From: a\nResent-To: b\n", 0, 2},
		"below":             {"Received: x\nResent-To: a\nFrom: c\nResent-To: b\n", 1, 2},
		"two side by side":  {"Resent-To: a\nResent-From: b\nresent-to: c\n", 0, 2},
		"parted by another": {"Resent-To: a\nno field\nResent-From: b\n", 0, 1},
		"a name alone":      {"Resent-: a\nResent: b\n", -1, 2},
	}
	for name, tt := range tests {
		if from, to := UppermostResent(Fields([]byte(tt.header))); from != tt.from || to != tt.to {
			t.Errorf("%s: got %d to %d, want %d to %d", name, from, to, tt.from, tt.to)
		}
	}
}
