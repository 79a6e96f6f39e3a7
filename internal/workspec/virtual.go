package workspec

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
)

// Virtual is the channel of virtual mailboxes: the host of a recipient is a VirtualStore, its
// privilege the uid.
const Virtual = "virtual"

// VirtualStore says where the mail of a virtual mailbox is written, in the host of a recipient:
//
//	alice@example.net;gid=5000;mode=0600;quota=1048576;/var/vmail/example.net/alice/
//
// gid is always there; the path, in xtext, comes last.
type VirtualStore struct {
	Mailbox string // the key that it was found by: alice@example.net, or @example.net
	GID     uint32
	Mode    uint32 // of files; 0: the agent's default
	Quota   int64  // bytes; 0: no limit, negative: the agent's default
	Path    string // absolute; with / at the end a Maildir
}

// Host returns the host.
func (s *VirtualStore) Host() string {
	b := []byte(strings.ReplaceAll(address.EncodeXText(s.Mailbox), ";", "+3B") + ";gid=")
	b = strconv.AppendUint(b, uint64(s.GID), 10)
	if s.Mode != 0 {
		b = fmt.Appendf(b, ";mode=%04o", s.Mode)
	}
	if s.Quota >= 0 {
		b = strconv.AppendInt(append(b, ";quota="...), s.Quota, 10)
	}
	return string(b) + ";" + address.EncodeXText(s.Path)
}

// ParseVirtualStore reads a host.
func ParseVirtualStore(host string) (s VirtualStore, err error) {
	s.Quota = -1
	name, rest, ok := strings.Cut(host, ";")
	if s.Mailbox, err = address.DecodeXText(name); err != nil || !ok {
		return s, fmt.Errorf("%.80q is no virtual mailbox", host)
	}
	for {
		if strings.HasPrefix(rest, "/") {
			s.Path, err = address.DecodeXText(rest)
			if err == nil && s.GID == 0 {
				err = errors.New("it has no gid")
			}
			return s, err
		}
		var word string
		word, rest, _ = strings.Cut(rest, ";")
		key, value, _ := strings.Cut(word, "=")
		n, base := uint64(0), 10
		if key == "mode" {
			base = 8
		}
		if n, err = strconv.ParseUint(value, base, 63); err != nil {
			return s, fmt.Errorf("%.80q: bad %q: %w", host, word, err)
		}
		switch {
		case key == "gid" && n>>31 == 0:
			s.GID = uint32(n)
		case key == "mode" && n <= 0o7777:
			s.Mode = uint32(n)
		case key == "quota":
			s.Quota = int64(n)
		default:
			return s, fmt.Errorf("%.80q: unknown %q", host, word)
		}
	}
}
