package peer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// private gives a program a file system of its own, in a mount namespace: the machine's,
// with other files laid over it. The machine itself is not changed.
type private struct {
	dir  string            // of the laid-over files
	root string            // where the program's package is unpacked; "" if it is installed
	etc  map[string]string // files of /etc, by their paths below it
	dirs []string          // absolute; each becomes an empty directory that can be written: dir/NAME
}

// accounts has the program's users beside the machine's.
func (p *private) accounts(users ...string) error {
	for _, file := range []string{"passwd", "group"} {
		b, err := os.ReadFile("/etc/" + file)
		if err != nil {
			return err
		}
		text := string(b)
		for i, u := range users {
			if strings.HasPrefix(text, u+":") || strings.Contains(text, "\n"+u+":") {
				continue
			}
			if id := 64100 + i; file == "passwd" {
				text += fmt.Sprintf("%s:x:%d:%d::/nonexistent:/bin/false\n", u, id, id)
			} else {
				text += fmt.Sprintf("%s:x:%d:\n", u, id)
			}
		}
		p.etc[file] = text
	}
	return nil
}

// writable returns where a directory of the program really is.
func (p *private) writable(name string) string {
	return filepath.Join(p.dir, strings.ReplaceAll(strings.Trim(name, "/"), "/", "-"))
}

// command runs a shell command line there, in the foreground: it has to end with exec.
func (p *private) command(line string) (*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a mount namespace wants root")
	}
	over := filepath.Join(p.dir, "over")
	for name, text := range p.etc {
		file := filepath.Join(over, "etc", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(os.Chmod(p.dir, 0o755), os.MkdirAll(filepath.Join(over, "var"), 0o755)); err != nil {
		return nil, err
	}
	var script strings.Builder
	script.WriteString("set -e\n")
	lay := func(top string, lower ...string) {
		fmt.Fprintf(&script, "mount -t overlay overlay -o lowerdir=%s:/%s /%s\n", strings.Join(lower, ":"), top, top)
	}
	etc, vars := []string{filepath.Join(over, "etc")}, []string{filepath.Join(over, "var")}
	if p.root != "" {
		lay("usr", filepath.Join(p.root, "usr"))
		etc = append(etc, filepath.Join(p.root, "etc"))
		if _, err := os.Stat(filepath.Join(p.root, "var")); err == nil {
			vars = append(vars, filepath.Join(p.root, "var"))
		}
	}
	lay("etc", etc...)
	for _, d := range p.dirs {
		real := p.writable(d)
		if err := os.MkdirAll(real, 0o755); err != nil {
			return nil, err
		}
		if strings.HasPrefix(d, "/var/") {
			if err := os.MkdirAll(filepath.Join(over, d), 0o755); err != nil {
				return nil, err
			}
		}
	}
	lay("var", vars...)
	for _, d := range p.dirs {
		fmt.Fprintf(&script, "mount --bind %s %s\n", p.writable(d), d)
	}
	cmd := exec.Command("/bin/sh", "-c", script.String()+line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd, nil
}

// inside returns a command beside a process that private's command has started.
func inside(pid int, argv ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-m", "-t", fmt.Sprint(pid), "--"}, argv...)...)
}

// program looks for one of a peer's programs: below root, and in PATH. unpacked is root
// if it is there.
func program(root, name string) (unpacked string, found bool) {
	if root != "" {
		if _, err := os.Stat(filepath.Join(root, "usr/sbin", name)); err == nil {
			return root, true
		}
	}
	if _, err := os.Stat(filepath.Join("/usr/sbin", name)); err == nil {
		return "", true
	}
	return "", false
}
