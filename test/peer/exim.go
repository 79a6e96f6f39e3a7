package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Exim is an Exim of its own below a directory: a relay on loopback that looks nothing
// up, with the queue settings that it has by itself.
type Exim struct {
	Dir    string
	Root   string            // where Debian's packages are unpacked; "": installed, or not at all
	Listen string            // host:port
	Relay  string            // where mail goes: "[address]:port"
	Routes map[string]string // domains that go elsewhere
	Extra  []string          // further lines of the main section
	cmd    *exec.Cmd
}

// FindExim reports whether there is one.
func FindExim(root string) bool { _, found := program(root, "exim4"); return found }

// Command writes the configuration and gives what runs it in the foreground.
func (p *Exim) Command() (*exec.Cmd, error) {
	root, found := program(p.Root, "exim4")
	if !found {
		return nil, errors.New("exim is not here")
	}
	host, port, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return nil, err
	}
	in := &private{dir: p.Dir, root: root, etc: map[string]string{}, dirs: []string{"/var/spool", "/var/log"}}
	if err := in.accounts("Debian-exim"); err != nil {
		return nil, err
	}
	routes := "*: " + eximHost(p.Relay) + "\n"
	for domain, to := range p.Routes {
		routes += domain + ": " + eximHost(to) + "\n"
	}
	in.etc["exim4/routes"] = routes
	in.etc["exim4/exim4.conf"] = fmt.Sprintf(eximConf, host, port, strings.Join(p.Extra, "\n"))
	// A compiled table, as a site with many routes has.
	cmd, err := in.command("mkdir -p /var/spool/exim /var/log/exim\nchown Debian-exim:Debian-exim /var/spool/exim /var/log/exim\n" +
		"exim_dbmbuild -noduperr /etc/exim4/routes /var/spool/routes >/dev/null\nchmod 644 /var/spool/routes*\n" +
		"exec /usr/sbin/exim4 -bdf -q30m\n")
	p.cmd = cmd
	return cmd, err
}

// eximHost returns a host of a route as Exim has it: "address::port".
func eximHost(to string) string {
	host, port, _ := net.SplitHostPort(to)
	return host + "::" + port
}

// Flush tries all that waits now, whatever is known of its host: as many queue runners at
// once as the daemon would have.
func (p *Exim) Flush() *exec.Cmd {
	return inside(p.cmd.Process.Pid, "/bin/sh", "-c", "for i in 1 2 3 4 5; do exim4 -qff & done; wait")
}

// Inside returns a command beside the daemon, which finds its configuration and its spool.
func (p *Exim) Inside(argv ...string) *exec.Cmd { return inside(p.cmd.Process.Pid, argv...) }

// Spool is its spool directory.
func (p *Exim) Spool() string { return filepath.Join(p.Dir, "var-spool/exim") }

// Log returns the end of what it said.
func (p *Exim) Log() string {
	var text string
	for _, name := range []string{"mainlog", "paniclog"} {
		b, _ := os.ReadFile(filepath.Join(p.Dir, "var-log/exim", name))
		text += string(b[max(0, len(b)-2000):])
	}
	return text
}

const eximConf = `primary_hostname = bench.example
local_interfaces = %s
daemon_smtp_ports = %s
spool_directory = /var/spool/exim
log_file_path = /var/log/exim/%%slog
tls_advertise_hosts =
acl_smtp_rcpt = accept
acl_smtp_data = accept
# The generator's next connection may come before the daemon has seen the end of the last.
smtp_accept_max = 200
disable_ipv6
%s

begin routers
all:
  driver = manualroute
  route_data = ${lookup{$domain}dbm*{/var/spool/routes}}
  transport = smtp
  self = send

begin transports
smtp:
  driver = smtp

begin retry
* * F,2h,15m; G,16h,1h,1.5; F,4d,6h
`
