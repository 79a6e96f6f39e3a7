package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// PostfixMaster is the program that runs a Postfix, where Debian has it.
const PostfixMaster = "/usr/lib/postfix/sbin/master"

// Postfix is a Postfix of its own below a directory: a relay on loopback that looks
// nothing up.
type Postfix struct {
	Dir       string            // it is made, and may be entered by all
	Listen    string            // host:port
	RelayHost string            // where mail goes: "[address]:port"
	Settings  []string          // further lines of main.cf
	Routes    map[string]string // domains that go elsewhere
	// Log has its log on standard output, else it is syslog's: postlogd(8) is slow to start on
	// a busy machine, and everything waits for it.
	Log bool
}

// Command writes the configuration and gives what runs it in the foreground.
func (p *Postfix) Command() (*exec.Cmd, error) {
	conf, queue, data := p.Config(), filepath.Join(p.Dir, "queue"), filepath.Join(p.Dir, "data")
	for _, d := range []string{conf, queue, data} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	owner, err := user.Lookup("postfix")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(owner.Uid)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chmod(p.Dir, 0o755), os.Chown(data, uid, -1)); err != nil {
		return nil, err
	}
	if err := p.write(conf, queue, data); err != nil {
		return nil, err
	}
	if out, err := exec.Command("/usr/sbin/postfix", "-c", conf, "check").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("postfix check: %w: %s", err, out)
	}
	cmd := exec.Command(PostfixMaster, "-c", conf, "-s")
	cmd.Env = append(os.Environ(), "MAIL_CONFIG="+conf, "MAIL_LOGTAG=postfix")
	return cmd, nil
}

// Flush tries all that waits now.
func (p *Postfix) Flush() *exec.Cmd {
	return exec.Command("/usr/sbin/postqueue", "-c", p.Config(), "-f")
}

// Queue is its queue directory.
func (p *Postfix) Queue() string { return filepath.Join(p.Dir, "queue") }

// Config returns the directory of main.cf, for Postfix's commands.
func (p *Postfix) Config() string { return filepath.Join(p.Dir, "conf") }

// once leaves the last line of each setting. About one that is set twice each process of Postfix
// warns at its start. Where the log is postlogd's, a socket that holds ten lines, that
// may fill it before master has started postlogd: master waits for room then, and postlogd for master.
func once(lines []string) (left []string) {
	at := map[string]int{}
	for _, line := range lines {
		name, _, _ := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if i, ok := at[name]; ok {
			left[i] = line
			continue
		}
		at[name] = len(left)
		left = append(left, line)
	}
	return left
}

func (p *Postfix) write(conf, queue, data string) error {
	host, port, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return err
	}
	// Loopback has no name server: looking the client's name up would only wait.
	lines := append([]string{
		"compatibility_level = 3.6", "queue_directory = " + queue, "data_directory = " + data,
		"mail_owner = postfix", "setgid_group = postdrop", "myhostname = bench.example",
		"inet_interfaces = " + host, "inet_protocols = ipv4", "mynetworks = 127.0.0.0/8",
		"relayhost = " + p.RelayHost, "mydestination =", "alias_maps =", "alias_database =",
		"smtpd_peername_lookup = no", "smtp_dns_support_level = disabled", "smtp_host_lookup = native",
		"maillog_file =" + map[bool]string{true: " /dev/stdout"}[p.Log]}, p.Settings...)
	if len(p.Routes) > 0 {
		var table strings.Builder
		for domain, to := range p.Routes {
			fmt.Fprintf(&table, "%s smtp:%s\n", domain, to)
		}
		file := filepath.Join(conf, "transport")
		if err := os.WriteFile(file, []byte(table.String()), 0o644); err != nil {
			return err
		}
		lines = append(lines, "transport_maps = texthash:"+file)
	}
	if err := os.WriteFile(filepath.Join(conf, "main.cf"), []byte(strings.Join(once(lines), "\n")+"\n"), 0o644); err != nil {
		return err
	}
	master, err := os.ReadFile("/usr/share/postfix/master.cf.dist")
	if err != nil {
		return err
	}
	var services []string
	for line := range strings.Lines(string(master)) {
		f := strings.Fields(line)
		if len(f) >= 8 && f[1] == "inet" {
			continue
		}
		// Nothing is in a chroot: it would have to be furnished.
		if len(f) >= 8 && !strings.HasPrefix(line, "#") && (f[4] == "y" || f[4] == "-") {
			f[4] = "n"
			line = strings.Join(f, " ") + "\n"
		}
		services = append(services, line)
	}
	services = append(services, host+":"+port+" inet n - n - - smtpd\n")
	return os.WriteFile(filepath.Join(conf, "master.cf"), []byte(strings.Join(services, "")), 0o644)
}
