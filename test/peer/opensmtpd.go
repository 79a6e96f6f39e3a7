package peer

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// OpenSMTPD is an OpenSMTPD of its own below a directory: a relay on loopback that looks
// nothing up.
type OpenSMTPD struct {
	Dir    string
	Root   string            // where Debian's package is unpacked; "": installed, or not at all
	Listen string            // host:port
	Relay  string            // where mail goes: "[address]:port"
	Routes map[string]string // domains that go elsewhere
	Extra  []string          // further lines at the top of smtpd.conf
	cmd    *exec.Cmd
}

// FindOpenSMTPD reports whether there is one. Another smtpd in PATH is not it.
func FindOpenSMTPD(root string) bool {
	_, found := program(root, "smtpctl")
	return found
}

// Command writes the configuration and gives what runs it in the foreground; its log is on
// standard error.
func (p *OpenSMTPD) Command() (*exec.Cmd, error) {
	root, found := program(p.Root, "smtpctl")
	if !found {
		return nil, errors.New("OpenSMTPD is not here")
	}
	host, port, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return nil, err
	}
	in := &private{dir: p.Dir, root: root, etc: map[string]string{}, dirs: []string{"/var/spool", "/var/lib/opensmtpd/empty", "/run"}}
	if err := in.accounts("opensmtpd", "opensmtpq"); err != nil {
		return nil, err
	}
	var text strings.Builder
	for _, line := range p.Extra {
		text.WriteString(line + "\n")
	}
	fmt.Fprintf(&text, "listen on %s port %s\n", host, port)
	var domains []string
	for domain := range p.Routes {
		domains = append(domains, domain)
	}
	slices.Sort(domains)
	for i, domain := range domains {
		fmt.Fprintf(&text, "action \"to%d\" relay host \"smtp+notls://%s\"\n", i, strings.NewReplacer("[", "", "]", "").Replace(p.Routes[domain]))
		fmt.Fprintf(&text, "match from any for domain \"%s\" action \"to%d\"\n", domain, i)
	}
	fmt.Fprintf(&text, "action \"all\" relay host \"smtp+notls://%s\"\nmatch from any for any action \"all\"\n",
		strings.NewReplacer("[", "", "]", "").Replace(p.Relay))
	in.etc["smtpd.conf"] = text.String()
	in.etc["mailname"] = "bench.example\n"
	// It looks up the names of all that connect, which would only wait.
	in.etc["resolv.conf"] = "lookup file\n"
	in.etc["hosts"] = "127.0.0.1 localhost bench.example source.example\n"
	// A package that is only unpacked has no group on smtpctl, which it insists on.
	cmd, err := in.command("mkdir -p /var/spool/smtpd\nchmod 711 /var/spool/smtpd\n" +
		"cp /usr/sbin/smtpctl /run/\nchgrp opensmtpq /run/smtpctl\nchmod 2555 /run/smtpctl\nexec /usr/sbin/smtpd -d\n")
	p.cmd = cmd
	return cmd, err
}

// Spool is its spool directory.
func (p *OpenSMTPD) Spool() string { return filepath.Join(p.Dir, "var-spool/smtpd") }

// Flush tries all that waits again and again until it is killed: what is tried while the
// host's route is still put aside only waits anew.
func (p *OpenSMTPD) Flush() *exec.Cmd {
	return inside(p.cmd.Process.Pid, "/bin/sh", "-c", "while /run/smtpctl schedule all; do sleep 2; done")
}
