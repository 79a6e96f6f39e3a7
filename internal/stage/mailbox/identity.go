package mailbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// identity is whom the file system takes us for.
type identity struct{ uid, gid int }

// credentials changes the identity of one thread while a store is worked on, so
// that the kernel checks the user's rights and files are the user's. Without root's
// privilege everything is done as ourselves.
type credentials struct {
	root   bool
	gid    int
	groups []uint32
}

func ownCredentials() (*credentials, error) {
	groups, err := unix.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("get groups: %w", err)
	}
	c := &credentials{root: unix.Geteuid() == 0, gid: unix.Getegid()}
	for _, g := range groups {
		c.groups = append(c.groups, uint32(g))
	}
	return c, nil
}

// as calls f with an identity for the file system. Calls do not nest.
func (c *credentials) as(id identity, f func() error) (err error) {
	if !c.root || id.uid == 0 {
		return f()
	}
	// setfsuid(2) and setgroups(2) are of the thread; the runtime never starts a
	// thread from a locked one, so nobody inherits what is set here.
	runtime.LockOSThread()
	if err := c.enter(id); err != nil {
		c.leave()
		return err
	}
	defer c.leave()
	return f()
}

func (c *credentials) enter(id identity) error {
	if err := setThreadGroups([]uint32{uint32(id.gid)}); err != nil {
		return fmt.Errorf("become uid %d: setgroups: %w", id.uid, err)
	}
	if err := setFS(id); err != nil {
		return fmt.Errorf("become uid %d: %w", id.uid, err)
	}
	return nil
}

// leave makes the thread root's again.
func (c *credentials) leave() {
	if err := setFS(identity{0, c.gid}); err != nil {
		die(err)
	}
	if err := setThreadGroups(c.groups); err != nil {
		die(fmt.Errorf("setgroups: %w", err))
	}
	runtime.UnlockOSThread()
}

// die ends the process where nobody can recover: a thread that works as somebody
// else must not go on. The locks of a dead agent are taken over.
func die(err error) {
	go func() { panic(fmt.Sprintf("change identity: %v", err)) }()
	select {}
}

// asRoot calls f as root from within as.
func (c *credentials) asRoot(id identity, f func() error) error {
	if !c.root || id.uid == 0 {
		return f()
	}
	if err := setFS(identity{0, c.gid}); err != nil {
		return err
	}
	err := f()
	if serr := setFS(id); serr != nil {
		die(serr)
	}
	return err
}

// setFS sets both ids. The calls tell of no failure themselves: asking with -1
// does.
func setFS(id identity) error {
	_, _ = unix.SetfsgidRetGid(id.gid)
	_, _ = unix.SetfsuidRetUid(id.uid)
	uid, _ := unix.SetfsuidRetUid(-1)
	gid, _ := unix.SetfsgidRetGid(-1)
	if uid != id.uid || gid != id.gid {
		return fmt.Errorf("setfsuid: the system refused uid %d, gid %d", id.uid, id.gid)
	}
	return nil
}

// setThreadGroups is setgroups(2) for this thread alone; the library's function
// changes the whole process.
func setThreadGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0)
	if e != 0 {
		return e
	}
	return nil
}
