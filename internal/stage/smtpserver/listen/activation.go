package listen

import (
	"fmt"
	"net"
	"slices"

	"github.com/coreos/go-systemd/v22/activation"

	"zmailer/internal/stage/smtpserver/session"
)

// Activated takes the sockets that systemd has passed to this process.
// FileDescriptorName= in the socket unit is the role.
func Activated() (map[session.Role][]net.Listener, error) {
	var all map[session.Role][]net.Listener
	for _, f := range activation.Files(true) {
		role := session.Role(f.Name())
		if !slices.Contains(session.Roles(), role) {
			return nil, fmt.Errorf("systemd has passed a socket named %q; FileDescriptorName= is mx, submission, submissions or lmtp", role)
		}
		l, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("systemd has passed a socket for %s that cannot be listened on: %w", role, err)
		}
		// The listener has a descriptor of its own.
		_ = f.Close()
		if all == nil {
			all = map[session.Role][]net.Listener{}
		}
		all[role] = append(all[role], l)
	}
	return all, nil
}
