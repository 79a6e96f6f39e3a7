package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"zmailer/test/peer"
)

// place is where a system runs and what it is to relay.
type place struct {
	dir    string
	listen string            // host:port
	relay  string            // where mail goes: "[address]:port"
	routes map[string]string // domains that go elsewhere
}

// system is a mail relay under test. A value runs once.
type system interface {
	name() string
	// command writes the configuration and gives what runs it in the foreground.
	command(p place) (*exec.Cmd, error)
	// flush tries all that waits now.
	flush() *exec.Cmd
	// sendmail submits a message from standard input to the recipients that are added; nil:
	// that is not measured.
	sendmail() *exec.Cmd
	// said returns the end of a log that is not on its output.
	said() string
}

// contender makes a system for each run.
type contender struct {
	name, version, settings string
	share                   float64 // of the messages in rate, latency, backlog and growth
	make                    func() system
}

// contenders returns the systems that are here, ours first; missing says of each other one
// that it is not.
func contenders(o options) (list []contender, missing []string) {
	list = append(list, contender{"zmailer", "", "as `zmctl init` sets it up; the sink in `routes`", 1, func() system { return &ours{bin: o.bin} }})
	if _, err := exec.LookPath(peer.PostfixMaster); err == nil {
		list = append(list, contender{"postfix", said(`mail_version = (\S+)`, "/usr/sbin/postconf", "-d", "mail_version"),
			"defaults; nothing in a chroot, no name looked up, `smtpd_recipient_limit` and `message_size_limit` out of the way", 1, func() system { return &postfix{} }})
	} else {
		missing = append(missing, "Postfix is not installed")
	}
	if !o.peers {
		return list, missing
	}
	if peer.FindExim(o.root) {
		list = append(list, contender{"exim", packaged(o.root, "exim4-daemon-light", "exim4"),
			"defaults; a manualroute router, `acl_smtp_rcpt = accept`, no TLS, `smtp_accept_max = 200`, a queue runner each 30 minutes; a tenth of the messages in Rate, Latency, Backlog and Growth", 0.1, func() system { return &exim{root: o.root} }})
	} else {
		missing = append(missing, "Exim is neither installed nor below -root")
	}
	if peer.FindOpenSMTPD(o.root) {
		list = append(list, contender{"opensmtpd", packaged(o.root, "opensmtpd", "opensmtpd"),
			"defaults; `relay host`, no TLS, limits on recipients out of the way; a fiftieth of the messages in Rate, Backlog and Growth, 20 in Latency", 0.02, func() system { return &opensmtpd{root: o.root} }})
	} else {
		missing = append(missing, "OpenSMTPD is neither installed nor below -root")
	}
	return list, missing
}

// said returns what a pattern finds in the output of a command, "" if it cannot be run.
func said(pattern string, argv ...string) string {
	out, _ := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if m := regexp.MustCompile(pattern).FindSubmatch(out); m != nil {
		return string(m[1])
	}
	return ""
}

// packaged returns the version of a Debian package, unpacked or installed, by its change log.
func packaged(root string, names ...string) string {
	for _, name := range names {
		for _, top := range []string{root, "/"} {
			for _, file := range []string{"changelog.Debian.gz", "changelog.gz"} {
				if v := said(`\(([^)]+)\)`, "zcat", filepath.Join(top, "usr/share/doc", name, file)); v != "" {
					return v
				}
			}
		}
	}
	return ""
}

// ours is this pipeline.
type ours struct {
	bin, conf, po string
	settings      string // lines of the configuration beside what is needed
	hosts         []string
}

func (s *ours) name() string { return "zmailer" }
func (s *ours) said() string { return "" }

func (s *ours) zmctl(args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(s.bin, "zmctl"), args...)
}

func (s *ours) command(p place) (*exec.Cmd, error) {
	bin, err := filepath.Abs(s.bin)
	if err != nil {
		return nil, err
	}
	s.bin, s.conf = bin, filepath.Join(p.dir, "conf")
	s.po, s.hosts = filepath.Join(p.dir, "postoffice"), []string{p.relay}
	if out, err := s.zmctl("--postoffice", s.po, "init", "--config-dir", s.conf).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("zmctl init: %w: %s", err, out)
	}
	var routes strings.Builder
	for domain, to := range p.routes {
		fmt.Fprintf(&routes, "%s smtp!%s\n", domain, to)
		s.hosts = append(s.hosts, to)
	}
	fmt.Fprintf(&routes, ". smtp!%s\n", p.relay)
	main := "POSTOFFICE=" + s.po + "\nHOSTNAME=bench.example\nSMTPLISTEN=" + p.listen + "\nLOG=text\n" + s.settings
	if err := errors.Join(os.WriteFile(filepath.Join(s.conf, "routes"), []byte(routes.String()), 0o644),
		os.WriteFile(filepath.Join(s.conf, "zmailer.conf"), []byte(main), 0o644)); err != nil {
		return nil, err
	}
	return s.zmctl("--config", filepath.Join(s.conf, "zmailer.conf"), "run"), nil
}

// flush leaves the scheduler what ETRN does: it tries the hosts and touches no message.
// "zmctl retry" would first write an order into each.
func (s *ours) flush() *exec.Cmd {
	return exec.Command("sh", "-c", `printf '%s' "$1" > "$2/.etrn" && mv "$2/.etrn" "$2/transport/999999999"`,
		"sh", "T "+strings.Join(s.hosts, "\nT ")+"\n", s.po)
}

// sendmail is submit, for root as another user: what users submit is copied.
func (s *ours) sendmail() *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, "submit"), "--config", filepath.Join(s.conf, "zmailer.conf"), "-i")
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

// postfix is Postfix with its defaults.
type postfix struct {
	peer.Postfix
	more []string // settings
}

func (s *postfix) name() string     { return "postfix" }
func (s *postfix) said() string     { return "" }
func (s *postfix) flush() *exec.Cmd { return s.Flush() }

// sendmail needs root: postdrop(1) takes a configuration of another place from root only.
func (s *postfix) sendmail() *exec.Cmd {
	return exec.Command("/usr/sbin/sendmail", "-C", s.Config(), "-i")
}

func (s *postfix) command(p place) (*exec.Cmd, error) {
	s.Postfix = peer.Postfix{Dir: p.dir, Listen: p.listen, RelayHost: p.relay, Routes: p.routes, Log: true,
		Settings: append([]string{"smtpd_recipient_limit = 100000", "message_size_limit = 100000000", "mailbox_size_limit = 0"}, s.more...)}
	return s.Command()
}

// exim is Exim with its defaults.
type exim struct {
	peer.Exim
	root string
}

func (s *exim) name() string        { return "exim" }
func (s *exim) said() string        { return s.Log() }
func (s *exim) flush() *exec.Cmd    { return s.Flush() }
func (s *exim) sendmail() *exec.Cmd { return nil }

func (s *exim) command(p place) (*exec.Cmd, error) {
	s.Exim = peer.Exim{Dir: p.dir, Root: s.root, Listen: p.listen, Relay: p.relay, Routes: p.routes}
	return s.Command()
}

// opensmtpd is OpenSMTPD with its defaults.
type opensmtpd struct {
	peer.OpenSMTPD
	root string
}

func (s *opensmtpd) name() string        { return "opensmtpd" }
func (s *opensmtpd) said() string        { return "" }
func (s *opensmtpd) flush() *exec.Cmd    { return s.Flush() }
func (s *opensmtpd) sendmail() *exec.Cmd { return nil }

func (s *opensmtpd) command(p place) (*exec.Cmd, error) {
	s.OpenSMTPD = peer.OpenSMTPD{Dir: p.dir, Root: s.root, Listen: p.listen, Relay: p.relay, Routes: p.routes,
		Extra: []string{"smtp limit max-rcpt 100000"}}
	return s.Command()
}
