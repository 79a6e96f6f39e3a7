package confine

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Attempt is something that a program must not be able to do, and what came of it.
type Attempt struct {
	Program string `json:"program"`
	Try     string `json:"try"`
	Refused bool   `json:"refused"`
	Reason  string `json:"reason,omitempty"` // the system's
}

// probe is the name of files that an attempt makes; what was made is removed.
const probe = ".zmctl-confinement"

// lowPort is an unused port that only privileged processes may listen on.
const lowPort = 79

// Directories returns those of a postoffice, as internal/postoffice has them, which a program
// is to be kept from.
func Directories() []string {
	return []string{"public", "router", "queue", "transport", "deferred", "postman", "freezer", "owners", "quarantine", "removed", "ledger", "orders", "imports", "sts", "tlsrpt", "clients", "lastgood", "verify", "suspended"}
}

// Leave tries, in a process that has entered the plan's sandbox, to leave it. Nothing is
// changed by what succeeds.
func (p Plan) TryEscape() []Attempt {
	var list []Attempt
	try := func(what string, f func() error) {
		a := Attempt{Program: p.Program, Try: what, Refused: true}
		if err := f(); err != nil {
			a.Reason = reason(err)
		} else {
			a.Refused = false
		}
		list = append(list, a)
	}
	if p.Profile.Root {
		p.escapeRoot(try)
		return list
	}
	try("become root", func() error { return syscall.Setuid(0) })
	try("become another user", func() error { return syscall.Setuid(another(os.Getuid())) })
	try("write a file in /tmp", func() error { return makeFile(filepath.Join("/tmp", probe)) })
	try("write a file in /etc", func() error { return makeFile(filepath.Join("/etc", probe)) })
	if p.Config != "" {
		conf := filepath.Join(p.Config, "zmailer.conf")
		try("write "+conf, func() error { return openFile(conf, os.O_WRONLY) })
	}
	if len(p.Profile.Caps) == 0 {
		try("read /etc/shadow", func() error { return openFile("/etc/shadow", os.O_RDONLY) })
	}
	for _, dir := range Directories() {
		if p.mayWrite(dir) {
			continue
		}
		try("make a directory in "+dir+"/", func() error { return makeDir(filepath.Join(p.Office, dir, probe)) })
		if !slices.Contains(p.Profile.Read, dir) {
			if name := anyFile(filepath.Join(p.Office, dir)); name != "" {
				try("read a file in "+dir+"/", func() error { return openFile(name, os.O_RDONLY) })
			}
		}
	}
	try("signal process 1", func() error { return syscall.Kill(1, 0) })
	p.escapeNetwork(try)
	return list
}

// another returns a user that a process is not.
func another(uid int) int {
	const nobody = 65534
	if uid == nobody {
		return nobody - 1
	}
	return nobody
}

func (p Plan) mayWrite(dir string) bool {
	return slices.Contains(p.Profile.Write, dir) || slices.Contains(p.Profile.Write, ".")
}

// escapeRoot is for what stays root: it may become others, and nothing else that root may.
func (p Plan) escapeRoot(try func(string, func() error)) {
	try("set the system's name", func() error {
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		return unix.Sethostname([]byte(name)) // the one that it has
	})
	try("change the root directory", func() error { return unix.Chroot("/") })
	try("make a device", func() error {
		path := filepath.Join("/tmp", probe+strconv.Itoa(os.Getpid()))
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
			return err
		}
		return os.Remove(path)
	})
	p.escapeNetwork(try)
}

func (p Plan) escapeNetwork(try func(string, func() error)) {
	if !anybodyListens() {
		try("listen on port "+strconv.Itoa(lowPort), func() error {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(lowPort)))
			if err != nil {
				return err
			}
			return l.Close()
		})
	}
	try("open a raw socket", func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

// anybodyListens reports whether low ports are free for all on this system.
func anybodyListens() bool {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	n, cerr := strconv.Atoi(strings.TrimSpace(string(b)))
	return err == nil && cerr == nil && n <= lowPort
}

func makeFile(path string) error {
	path += strconv.Itoa(os.Getpid())
	if err := openFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL); err != nil {
		return err
	}
	return os.Remove(path)
}

func makeDir(path string) error {
	path += strconv.Itoa(os.Getpid())
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return os.Remove(path)
}

func openFile(path string, flag int) error {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// anyFile returns a file in a directory, "" if there is none.
func anyFile(dir string) string {
	list, _ := os.ReadDir(dir) // what cannot be listed has none to try
	for _, e := range list {
		if e.Type().IsRegular() {
			return filepath.Join(dir, e.Name())
		}
	}
	return ""
}

// reason returns an error without what was tried.
func reason(err error) string {
	if e := syscall.Errno(0); errors.As(err, &e) {
		return e.Error()
	}
	return err.Error()
}
