package workspec

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestVirtualStoreComesBackFromItsHost(t *testing.T) {
	for name, s := range map[string]VirtualStore{
		"maildir":        {Mailbox: "alice@example.net", GID: 5000, Quota: -1, Path: "/var/vmail/example.net/alice/"},
		"all of it":      {Mailbox: "@example.net", GID: 1, Mode: 0o660, Quota: 1 << 40, Path: "/v/x"},
		"no limit":       {Mailbox: "a@b", GID: 1<<31 - 1, Quota: 0, Path: "/v/x"},
		"odd characters": {Mailbox: `"a;b c"@example.net`, GID: 7, Quota: -1, Path: "/v/a;b c+d=e/ü\t/"},
	} {
		host := s.Host()
		if strings.ContainsAny(host, " \t\n") {
			t.Errorf("%s: %q cannot be written in a line", name, host)
		}
		assert.Equal(t, assert.Get(ParseVirtualStore(host))(t), s, name)
	}
}

func FuzzParseVirtualStore(f *testing.F) {
	for _, s := range []string{"a@b;gid=1;/x", "a@b;gid=1;mode=0600;quota=5;/x/", ";;", "a", "a;gid=0;/", "a;mode=99;/x", "a;gid=5;quota=-1;/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		s, err := ParseVirtualStore(host)
		if err != nil {
			return
		}
		if s.GID == 0 || !strings.HasPrefix(s.Path, "/") {
			t.Errorf("%q: %+v", host, s)
		}
		again, err := ParseVirtualStore(s.Host())
		if err != nil || again != s {
			t.Errorf("%q: %+v, then %+v, %v", host, s, again, err)
		}
	})
}
