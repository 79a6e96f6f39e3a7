package workspec

import (
	"fmt"
	"testing"
)

func TestLockOwnersAreFoundInAnyFile(t *testing.T) {
	tests := map[string]struct {
		file string
		want string
	}{
		"locked":                  {"i 7\nr~   123    smtp h a@h 0\nr     456    smtp h b@h 0\n", "[123]"},
		"longest number":          {"r~999999    smtp h a@h 0\nr~     1    smtp h b@h 0\n", "[999999 1]"},
		"final and open":          {"r+   123    smtp h a@h 0\nr     123    smtp h b@h 0\nr-   123", "[]"},
		"without owner":           {"r~ smtp h a@h 0\n", "[]"},
		"torn, of another format": {"@ 80\nr~    55", "[55]"},
		"nothing":                 {"", "[]"},
	}
	for name, tt := range tests {
		if got := fmt.Sprint(LockOwners([]byte(tt.file))); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
	b := append([]byte("r"), LockBytes(4711)...)
	if got := fmt.Sprint(LockOwners(b)); got != "[4711]" {
		t.Errorf("as written by LockBytes: got %s", got)
	}
}
