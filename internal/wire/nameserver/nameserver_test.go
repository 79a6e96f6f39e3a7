package nameserver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func TestNameServersFromAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	now := time.Unix(1795220010, 0)
	cfg := Config{Conf: file, Now: func() time.Time { return now }}
	var l serverList
	if _, err := l.get(&cfg); err == nil {
		t.Error("no error for a file that is not there")
	}
	write("nameserver 192.0.2.1\nnameserver 2001:db8::1\n")
	check := func(want ...string) {
		t.Helper()
		if got, err := l.get(&cfg); err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	check("192.0.2.1:53", "[2001:db8::1]:53")
	write("# nothing\n")
	check("192.0.2.1:53", "[2001:db8::1]:53")
	now = now.Add(confPeriod)
	check("127.0.0.1:53")
	assert.Must(t, os.Remove(file))
	now = now.Add(confPeriod)
	check("127.0.0.1:53")
	l = serverList{}
	cfg.Server = "192.0.2.7"
	check("192.0.2.7:53")
}
