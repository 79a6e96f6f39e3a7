package policy

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

func TestBuiltInLocalNamesAreRight(t *testing.T) {
	if names, err := parseLocalNames("localnames", nil); err != nil || len(names) == 0 {
		t.Errorf("%v, %v", names, err)
	}
	if names, err := parseLocalNames("localnames", []byte{}); err != nil || len(names) > 0 {
		t.Errorf("an empty file: %v, %v", names, err)
	}
}

// A file that is being written is not used yet.
func TestLocalNamesWaitUntilTheyAreWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "localnames")
	assert.Must(t, os.WriteFile(file, []byte("example.org\n"), 0o644))
	p := assert.Get(Open(Config{LocalNamesFile: file, Log: slog.New(slog.DiscardHandler)}))(t)
	defer p.Close()
	assert.Must(t, os.Truncate(file, 0))
	if ours, err := p.IsLocal(t.Context(), address.Mailbox{Local: "x", Domain: "example.org"}); err != nil || !ours {
		t.Errorf("in an empty file that is being written: %v, %v", ours, err)
	}
}

func TestBadSenderTableIsNamedByItsLine(t *testing.T) {
	for text, line := range map[string]int{
		"bob@example.org\n":                1, // no user
		"# x\na b\na c\n":                  3, // a duplicate
		"a@b@c bob\n":                      1,
		"bob@example.org: bob\nx..y bob\n": 2,
	} {
		_, err := parseSenders("senders", []byte(text))
		if bad := (*config.Error)(nil); !errors.As(err, &bad) || bad.File != "senders" || bad.Line != line {
			t.Errorf("%q: got %v, want line %d", text, err, line)
		}
	}
}

func FuzzSenders(f *testing.F) {
	for _, s := range []string{"bob@example.org bob\n", ".example.org: a, b\n", "@example.org *\n", "# x\n\n", "\"a b\"@example.org x\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		all, err := parseSenders("senders", []byte(s))
		for key, users := range all {
			if err != nil || key == "" || len(users) == 0 {
				t.Errorf("%q: got %q for %q, %v", s, users, key, err)
			}
		}
	})
}
