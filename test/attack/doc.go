// Package attack attacks running systems as a local user with a shell: a process of an
// unprivileged uid plants files, links, fifos, directories, sockets and device nodes under
// the names that the daemons use, holds files open, takes locks, renames in a race with the
// daemons and fills the disk. The real daemons run beside it as root, as DAEMONUSER, and
// with ROUTERMODE=shared.
//
// The tests in mail_test.go attack from the network instead: a client that has not
// authenticated sends what multiplies, loops or makes reports, while the other users' mail
// goes on beside it.
//
// Each test asserts the same facts: the attacker reads no byte of another user's mail, no
// file that he could not write before has changed, no acceptance is refused, and the other
// users' mail is delivered once.
//
// TestAtk3... attack from the network: mail of an unauthenticated client has reports
// sent to hosts that stay silent, and the test asserts that mail of the system's users leaves beside them.
//
// The tests need root and the environment variable ATTACK=1 (make attack). The kernel's
// fs.protected_hardlinks, fs.protected_symlinks, fs.protected_regular and
// fs.protected_fifos are 0 while they run; a guard process restores them when the test
// binary ends, however it ends.
package attack
