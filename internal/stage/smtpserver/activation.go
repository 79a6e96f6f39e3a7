package smtpserver

import (
	"fmt"
	"net"
	"slices"

	"github.com/coreos/go-systemd/v22/activation"
)

// Activated takes the sockets that systemd has passed to this process. Each is told
// its role by FileDescriptorName= in the socket unit.
func Activated() (map[Role][]net.Listener, error) {
	var all map[Role][]net.Listener
	for _, f := range activation.Files(true) {
		role := Role(f.Name())
		if !slices.Contains([]Role{RoleMX, RoleSubmission, RoleSubmissions, RoleLMTP}, role) {
			return nil, fmt.Errorf("systemd has passed a socket named %q; FileDescriptorName= is mx, submission, submissions or lmtp", role)
		}
		l, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("systemd has passed a socket for %s that nothing can be accepted from: %w", role, err)
		}
		// The listener has a descriptor of its own.
		_ = f.Close()
		if all == nil {
			all = map[Role][]net.Listener{}
		}
		all[role] = append(all[role], l)
	}
	return all, nil
}
