package confine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// errOrphan means that who started us ended meanwhile: we were to end with him.
var errOrphan = errors.New("the process that started this one has ended")

// drop becomes the user and keeps the profile's capabilities alone. A daemon that was started
// as the user keeps what of them it was given.
func (p Plan) drop(a *Account) error {
	parent := os.Getppid()
	root := os.Geteuid() == 0
	if root {
		if err := dropBounds(p.Profile.Caps); err != nil {
			return err
		}
	}
	if root && !p.Profile.Root {
		if err := cap.SetGroups(a.GID, a.Groups...); err != nil {
			return fmt.Errorf("become group %d: %w", a.GID, err)
		}
		if err := cap.SetUID(a.UID); err != nil {
			return fmt.Errorf("become %s: %w", a.Name, err)
		}
	}
	if err := keepOnly(p.Profile.Caps); err != nil {
		return err
	}
	if !p.Profile.Free {
		// What it starts gains nothing by setuid programs either.
		if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("refuse new privileges: %w", err)
		}
	}
	return restoreParentsDeath(parent)
}

// dropBounds takes all but some capabilities from what the process and its children can
// ever get. Without CAP_SETPCAP nothing can be taken: then whoever started us has set the
// bounds, as systemd does.
func dropBounds(keep []cap.Value) error {
	may, err := cap.GetProc().GetFlag(cap.Effective, cap.SETPCAP)
	if err != nil {
		return fmt.Errorf("look at capabilities: %w", err)
	}
	if !may {
		return nil
	}
	for v := cap.Value(0); v < cap.MaxBits(); v++ {
		if has, err := cap.GetBound(v); err != nil || !has || slices.Contains(keep, v) {
			continue // not of this kernel, or gone
		}
		if err := cap.DropBound(v); err != nil {
			return fmt.Errorf("drop %s from the bounding set: %w", v, err)
		}
	}
	return nil
}

// keepOnly leaves the process those capabilities, of the ones that it has.
func keepOnly(keep []cap.Value) error {
	now, next := cap.GetProc(), cap.NewSet()
	for _, v := range keep {
		if has, err := now.GetFlag(cap.Permitted, v); err != nil || !has {
			continue
		}
		if err := errors.Join(next.SetFlag(cap.Permitted, true, v), next.SetFlag(cap.Effective, true, v)); err != nil {
			return fmt.Errorf("keep %s: %w", v, err)
		}
	}
	// Its children inherit none: the inheritable and with it the ambient set is empty.
	if err := next.SetProc(); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

func capabilities() string { return cap.GetProc().String() }

// parentsDeath is the signal that was to come at the end of who started us (zmctl run
// wants it), 0 for none. It belongs to the first thread alone, and no other thread may ask:
// what is initialised runs on that thread.
var parentsDeath = func() (signal int32) {
	_, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&signal)), 0)
	if e != 0 {
		return 0
	}
	return signal
}()

// restoreParentsDeath asks for that signal again: the kernel forgets it when a process
// changes whom it acts as.
func restoreParentsDeath(parent int) error {
	if parentsDeath == 0 {
		return nil
	}
	if _, err := cap.Prctlw(unix.PR_SET_PDEATHSIG, uintptr(parentsDeath)); err != nil {
		return fmt.Errorf("set the signal of the parent's death: %w", err)
	}
	if os.Getppid() != parent {
		return errOrphan
	}
	return nil
}
