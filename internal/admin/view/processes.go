package view

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// Processes finds the processes that work on a postoffice: those that own a number, and
// those that hold a lock. It remembers its answers, and takes no lock itself.
type Processes struct {
	*Files
	owners map[int]Owner
	roles  map[string]bool // programs that were looked for: do they run?
	locks  map[uint64]int  // inode → pid, of files that are locked; see lockHolders
}

// Owner is a process that holds an owner number.
type Owner struct {
	Number int    `json:"number"`
	Says   string `json:"says"` // its file: "router pid 1234"; "" if it has none
	Alive  bool   `json:"alive"`
}

// Role returns the program's name, "" if it is not known.
func (o Owner) Role() string { role, _, _ := strings.Cut(o.Says, " "); return role }

func (o Owner) String() string {
	who := "owner " + strconv.Itoa(o.Number)
	if o.Says != "" {
		who = o.Says
	}
	if !o.Alive {
		who += ", which has ended"
	}
	return who
}

// Owner looks at the process behind an owner number.
func (s *Processes) Owner(n int) Owner {
	if o, ok := s.owners[n]; ok {
		return o
	}
	o := Owner{Number: n}
	alive, err := s.PO.Owners.Alive(n)
	o.Alive = alive || err != nil // in doubt it is left alone, as the daemons do
	if f, err := s.Stat(postoffice.Owners, strconv.Itoa(n)); err == nil {
		if b, err := s.Read(f); err == nil {
			o.Says = human.Clean(strings.TrimSpace(string(b)))
		}
	}
	s.owners[n] = o
	return o
}

// WorksHere reports whether a process works in transport/, as transport agents do, also
// those of other programs that hold no owner number. In doubt it does.
func (s *Processes) WorksHere(pid int) bool {
	there, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return true
	}
	here, err := s.FS.Stat(postoffice.Transport)
	st, ok := there.Sys().(*syscall.Stat_t)
	return err != nil || !ok || st.Ino == here.Ino && uint64(st.Dev) == here.Dev
}

// EveryOwner lists the owners that have a file in owners/.
func (s *Processes) EveryOwner() ([]Owner, error) {
	files, err := s.List(postoffice.Owners)
	if err != nil {
		return nil, err
	}
	var all []Owner
	for _, f := range files {
		if n, ok := postoffice.ParseName(f.Name); ok && n.Owner == 0 && n.Ino <= postoffice.MaxOwner {
			all = append(all, s.Owner(int(n.Ino)))
		}
	}
	return all, nil
}

// Runs reports whether a program of that name is alive.
func (s *Processes) Runs(role string) bool {
	alive, known := s.roles[role]
	if !known {
		alive = s.looksAlive(role)
		s.roles[role] = alive
	}
	return alive
}

func (s *Processes) looksAlive(role string) bool {
	if all, err := s.EveryOwner(); err == nil {
		for _, o := range all {
			if o.Alive && o.Role() == role {
				return true
			}
		}
	}
	f, err := s.Stat(".", ".pid."+role)
	if err != nil {
		return false
	}
	_, held := s.Holder(f)
	return held
}

// Holder returns the process that holds a lock on a file, without touching the lock: trying it
// would make its owner's own try fail.
func (s *Processes) Holder(f File) (pid int, held bool) {
	if _, real := s.FS.(*durable.OS); !real {
		return 0, false // a disk of a test, whose locks the kernel does not know
	}
	if s.locks == nil {
		s.locks = LockHolders(durable.KernelLocks())
	}
	pid, held = s.locks[f.Info.Ino]
	return pid, held
}

// LockHolders reads /proc/locks (proc(5)): "1: FLOCK ADVISORY WRITE 708 08:01:1234
// 0 EOF". The device is left out of account: file systems with devices of their own
// (btrfs, overlay) show another one here than in stat(2).
func LockHolders(b []byte) map[uint64]int {
	holders := map[uint64]int{}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil {
			continue
		}
		if ino, err := strconv.ParseUint(f[5][strings.LastIndexByte(f[5], ':')+1:], 10, 64); err == nil {
			holders[ino] = pid
		}
	}
	return holders
}
