package ecosystem

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/rig"
)

// The programs of Debian's exim4-base, exim4-config and exim4-daemon-light, which .ci/run unpacks
// here: installed they would replace Postfix.
const eximRoot = "/opt/zmailer-ci/exim4"

// eximHost is a file system in which Exim finds its own /etc: that of the test.
type eximHost struct{ dir, root string }

// newExim has a machine with the users alice and bob and a directory with files for /etc/exim4.
func newExim(t *testing.T, files map[string]string) *eximHost {
	t.Helper()
	root := eximRoot
	if dir := os.Getenv("EXIMROOT"); dir != "" {
		root = dir
	}
	rig.Needs(t, filepath.Join(root, "usr/sbin/exim4"), "/usr/bin/unshare") // see .ci/run
	e := &eximHost{rig.ShortDir(t), root}
	for name, text := range map[string]string{
		"passwd":        "root:x:0:0:root:/root:/bin/sh\nmail:x:8:8::/var/mail:/bin/false\nuucp:x:10:10::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\nDebian-exim:x:109:115::/:/bin/false\nalice:x:2001:2001::" + e.dir + "/home:/bin/sh\nbob:x:2002:2002::" + e.dir + "/home:/bin/sh\n",
		"group":         "root:x:0:\nmail:x:8:\nuucp:x:10:\nnogroup:x:65534:\nDebian-exim:x:115:\nalice:x:2001:\nbob:x:2002:\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n", "hosts": "127.0.0.1 localhost\n192.0.2.25 smart.example.net\n192.0.2.26 inner.example.net\n", "resolv.conf": "nameserver 127.0.0.1\n",
	} {
		write(t, e.dir+"/etc/"+name, text, 0o644)
	}
	assert.Must(t, os.CopyFS(e.dir+"/etc/exim4", os.DirFS(filepath.Join(root, "etc/exim4"))))
	for name, text := range files {
		write(t, e.dir+"/from/"+name, text, 0o644)
		at := e.dir + "/etc/exim4/" + name
		if name == "aliases" || name == "mailname" || name == "email-addresses" {
			at = e.dir + "/etc/" + name
		}
		write(t, at, text, 0o644)
	}
	assert.Must(t, os.Mkdir(e.dir+"/home", 0o755))
	return e
}

// run runs a command of Exim's with the test's /etc.
func (e *eximHost) run(command string) (string, error) {
	script := fmt.Sprintf(`mount --bind %[1]s/etc /etc && mount -t tmpfs none /var/spool &&
PATH=%[2]s/usr/sbin:$PATH && %[3]s`, e.dir, e.root, command)
	out, err := exec.Command("/usr/bin/unshare", "--mount", "/bin/sh", "-c", script).CombinedOutput()
	return string(out), err
}

var (
	routerLine = regexp.MustCompile(`router = (\S+), transport = (\S+)`)
	debugLine  = regexp.MustCompile(`(?m)^R: .*\n`)
	hostLine   = regexp.MustCompile(`(?m)^\s+host (\S+) +\[([^]]+)\](?:.* port=(\d+))?`)
)

// routes returns where Exim sends an address: local USER, HOST:PORT ADDRESS, mx ADDRESS, file PATH
// or rejected, sorted.
func (e *eximHost) routes(t *testing.T, conf, addr string) string {
	t.Helper()
	out, err := e.run("exim4 -C " + conf + " -bt " + addr)
	if code := (*exec.ExitError)(nil); err != nil && !errors.As(err, &code) {
		t.Fatal(err)
	}
	out = debugLine.ReplaceAllString(out, "")
	switch {
	case strings.Contains(out, "is discarded"):
		return "file /dev/null"
	case strings.Contains(out, "is undeliverable"):
		return "rejected"
	case strings.Contains(out, "router = dnslookup"), strings.Contains(out, "host lookup did not complete"), strings.Contains(out, "cannot be resolved at this time"):
		return "mx"
	}
	m := routerLine.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("exim -bt %s: %v\n%s", addr, err, out)
	}
	to, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	to = strings.Fields(to)[0]
	switch m[2] {
	case "mail_spool", "maildir_home", "local_delivery":
		user, _, _ := strings.Cut(to, "@")
		return "local " + user
	case "address_file":
		return "file " + to
	}
	if h := hostLine.FindStringSubmatch(out); h != nil {
		if h[3] == "" {
			h[3] = "25"
		}
		return h[1] + ":" + h[3] + " " + to
	}
	t.Fatalf("exim -bt %s:\n%s", addr, out)
	return ""
}

// ours returns the same of a configuration of ours.
func ours(t *testing.T, conf, addr string) string {
	t.Helper()
	out, _ := exec.Command(filepath.Join(bin, "zmctl"), "--config", conf, "route", "--json", addr).Output() // 1: it is refused
	var answer struct {
		Recipients []struct {
			Targets []struct{ Channel, Host, User string }
		}
	}
	assert.Must(t, json.Unmarshal(out, &answer))
	if len(answer.Recipients) != 1 || len(answer.Recipients[0].Targets) != 1 {
		t.Fatalf("route %s: %s", addr, out)
	}
	switch to := answer.Recipients[0].Targets[0]; to.Channel {
	case "error":
		return "rejected"
	case "local":
		user, _, _ := strings.Cut(to.User, "@")
		return "local " + user
	case "file", "bitbucket":
		return "file /dev/null"
	case "smtp":
		return "mx"
	default:
		if !strings.Contains(to.Host, ":") {
			to.Host += ":25"
		}
		return to.Host + " " + to.User
	}
}

// Debian's configurations of Exim, and the one that Exim comes with, send each address to where
// what import-config makes of them sends it.
func TestImportedEximRoutesAsEximDid(t *testing.T) {
	const aliases = "postmaster: alice\nsales: joe@far.example\nnothing: :blackhole:\nteam: bob\n"
	debian := func(kind, more string) map[string]string {
		return map[string]string{
			"update-exim4.conf.conf": "dc_eximconfig_configtype='" + kind + "'\ndc_local_interfaces='127.0.0.1 ; ::1'\ndc_minimaldns='false'\nCFILEMODE='644'\ndc_use_split_config='false'\ndc_mailname_in_oh='true'\ndc_localdelivery='mail_spool'\n" + more,
			"exim4.conf.localmacros": "MAIN_HARDCODE_PRIMARY_HOSTNAME = host.example.org\n", "mailname": "host.example.org\n", "aliases": aliases, "email-addresses": "alice: A.Lice@example.org\n",
		}
	}
	addresses := []string{"alice@host.example.org", "bob@alt.example", "nosuch@host.example.org", "postmaster@host.example.org", "sales@alt.example", "nothing@host.example.org", "team@localhost",
		"joe@far.example", "x@relay.example", "y@sub.relay.example", "z@hub.example"}
	hub := debian("internet", "dc_other_hostnames='alt.example'\ndc_relay_domains='hub.example'\n")
	hub["hubbed_hosts"] = "hub.example: 192.0.2.26\n"
	local := debian("local", "dc_other_hostnames='alt.example'\n")
	for name, tt := range map[string]struct {
		files map[string]string
		conf  string   // within /etc/exim4; "": Debian's script makes it
		not   []string // addresses that differ: in a satellite those of unknown users are sent on, too
	}{
		"internet site":      {debian("internet", "dc_other_hostnames='alt.example'\ndc_relay_domains='relay.example:*.relay.example'\ndc_relay_nets='192.0.2.0/24'\n"), "", nil},
		"smarthost":          {debian("smarthost", "dc_other_hostnames='host.example.org:alt.example'\ndc_smarthost='smart.example.net::587'\ndc_readhost='example.org'\ndc_hide_mailname='true'\n"), "", nil},
		"smarthost, default": {debian("smarthost", "dc_other_hostnames='alt.example;localhost'\ndc_smarthost='192.0.2.25'\n"), "", nil},
		"satellite":          {debian("satellite", "dc_other_hostnames='alt.example'\ndc_smarthost='smart.example.net'\ndc_readhost='mail.example.org'\ndc_hide_mailname='true'\n"), "", []string{"nosuch@host.example.org", "nothing@host.example.org"}},
		"local only":         {local, "", nil},
		"hubbed hosts":       {hub, "", nil},
		"exim's own":         {map[string]string{"exim.conf": own, "aliases": aliases, "mailname": "host.example.org\n"}, "exim.conf", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newExim(t, tt.files)
			conf := "/etc/exim4/made"
			if tt.conf != "" {
				conf = "/etc/exim4/" + tt.conf
			} else if out, err := e.run("EXIM=" + e.root + "/usr/sbin/exim4 update-exim4.conf -o /etc/exim4/made"); err != nil {
				t.Fatalf("update-exim4.conf: %v\n%s", err, out)
			}
			from, to := e.dir+"/from", e.dir+"/to"
			if tt.conf != "" {
				from = filepath.Join(from, tt.conf)
			}
			report, err := exec.Command(filepath.Join(bin, "zmctl"), "import-config", "exim", "--to", to, from).CombinedOutput()
			if code := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &code) || code.ExitCode() != 1 || tt.conf == "" && len(tt.not) == 0) {
				t.Fatalf("import-config: %v\n%s", err, report)
			}
			write(t, to+"/users", "alice\nbob\n", 0o644)
			text := string(assert.Get(os.ReadFile(to + "/zmailer.conf"))(t))
			write(t, to+"/zmailer.conf", text+"LOCALUSERS="+to+"/users\n", 0o644)
			if out, err := exec.Command(filepath.Join(bin, "zmctl"), "--config", to+"/zmailer.conf", "check-config").CombinedOutput(); err != nil {
				t.Errorf("check-config: %v\n%s", err, out)
			}
			for _, a := range addresses {
				theirs, ours := e.routes(t, conf, a), ours(t, to+"/zmailer.conf", a)
				if differs := ours != theirs; differs && !slices.Contains(tt.not, a) {
					t.Errorf("%s: got %s, Exim has %s", a, ours, theirs)
				}
			}
		})
	}
}

// own is the configuration that Exim comes with, without its comments and access control lists.
const own = `primary_hostname = host.example.org
domainlist local_domains = @ : localhost : alt.example
domainlist relay_to_domains = relay.example : *.relay.example
hostlist   relay_from_hosts = localhost : 192.0.2.0/24
acl_smtp_rcpt = acl_check_rcpt
never_users = root
begin acl
acl_check_rcpt:
  accept
begin routers
dnslookup:
  driver = dnslookup
  domains = ! +local_domains
  transport = remote_smtp
  ignore_target_hosts = 0.0.0.0 : 127.0.0.0/8
  no_more
system_aliases:
  driver = redirect
  allow_fail
  allow_defer
  data = ${lookup{$local_part}lsearch{/etc/aliases}}
  file_transport = address_file
  pipe_transport = address_pipe
userforward:
  driver = redirect
  check_local_user
  file = $home/.forward
  no_verify
  no_expn
  check_ancestor
  file_transport = address_file
localuser:
  driver = accept
  check_local_user
  transport = local_delivery
  cannot_route_message = Unknown user
begin transports
remote_smtp:
  driver = smtp
local_delivery:
  driver = appendfile
  file = /var/mail/$local_part_data
address_pipe:
  driver = pipe
address_file:
  driver = appendfile
begin retry
*  *  F,2h,15m; G,16h,1h,1.5; F,4d,6h
`
