package filters

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"
	"github.com/miekg/dns"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

// signedDomain is the domain whose key the tests have, below selector sel.
const signedDomain = "signed.example"

// domainKey is the key of signedDomain.
type domainKey struct {
	key    *rsa.PrivateKey
	record string
}

func newDomainKey(t *testing.T) *domainKey {
	t.Helper()
	key := assert.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	der := assert.Get(x509.MarshalPKIXPublicKey(&key.PublicKey))(t)
	return &domainKey{key, "v=DKIM1; k=rsa; p=" + base64.StdEncoding.EncodeToString(der)}
}

// file writes the key as a file that only root can read.
func (k *domainKey) file(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k.key)})
	assert.Must(t, os.WriteFile(name, text, 0o600))
	return name
}

// sign signs a message with LF line ends; kind is relaxed, simple or broken.
func (k *domainKey) sign(t *testing.T, message, kind string) string {
	t.Helper()
	o := &dkim.SignOptions{Domain: signedDomain, Selector: "sel", Signer: k.key, Hash: crypto.SHA256}
	if kind != "simple" {
		o.HeaderCanonicalization, o.BodyCanonicalization = dkim.CanonicalizationRelaxed, dkim.CanonicalizationRelaxed
	}
	var out bytes.Buffer
	assert.Must(t, dkim.Sign(&out, strings.NewReader(strings.ReplaceAll(message, "\n", "\r\n")), o))
	signed := strings.ReplaceAll(out.String(), "\r\n", "\n")
	if kind == "broken" {
		signed += "changed\n"
	}
	return signed
}

// valid returns how many signatures of a message are valid.
func (k *domainKey) valid(message []byte) (n int) {
	list, err := dkim.VerifyWithOptions(bytes.NewReader(message), &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) {
		if name != "sel._domainkey."+signedDomain {
			return nil, errors.New("no such record")
		}
		return []string{k.record}, nil
	}})
	for _, v := range list {
		if err == nil && v.Err == nil {
			n++
		}
	}
	return n
}

// zone is a name server for the filters.
type zone map[string]string

// ServeDNS implements dns.Handler: TXT records; other names do not exist.
func (z zone) ServeDNS(w dns.ResponseWriter, ask *dns.Msg) {
	m := new(dns.Msg).SetReply(ask)
	m.RecursionAvailable = true
	q := ask.Question[0]
	text, ok := z[strings.ToLower(strings.TrimSuffix(q.Name, "."))]
	switch {
	case !ok:
		m.Rcode = dns.RcodeNameError
	case q.Qtype == dns.TypeTXT:
		rr := &dns.TXT{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}}
		for part := range slices.Chunk([]byte(text), 200) {
			rr.Txt = append(rr.Txt, string(part))
		}
		m.Answer = append(m.Answer, rr)
	}
	_ = w.WriteMsg(m) // the client asks again
}

// serve serves the zone at an address of loopback by UDP and TCP.
func (z zone) serve(t *testing.T, addr string) {
	t.Helper()
	pc := assert.Get(net.ListenPacket("udp", addr))(t)
	l := assert.Get(net.Listen("tcp", addr))(t)
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: z}, {Listener: l, Handler: z}} {
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		done := make(chan error, 1)
		go func() { done <- s.ActivateAndServe() }()
		<-up
		t.Cleanup(func() {
			assert.NoError(t, s.Shutdown())
			<-done
		})
	}
}

// records are what the filters find in the DNS.
func (k *domainKey) records() zone {
	return zone{
		"sel._domainkey." + signedDomain: k.record,
		"_dmarc." + signedDomain:         "v=DMARC1; p=reject",
		"_dmarc.quarantine.example":      "v=DMARC1; p=quarantine",
		"_dmarc.none.example":            "v=DMARC1; p=none",
		"_dmarc.client.example":          "v=DMARC1; rua=mailto:dmarc@client.example",
	}
}

// libmilterAddr is an address as libmilter's programs have it.
func libmilterAddr(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	return "inet:" + port + "@" + host
}

// writeLines writes a configuration.
func writeLines(t *testing.T, name string, lines ...string) string {
	t.Helper()
	assert.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	assert.Must(t, os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	return name
}

// nameserver is an address of loopback that no program of the machine uses: some filters have
// no setting for a port. It depends on the process: the tests may run twice on a machine.
var nameserver = fmt.Sprintf("127.53.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff)

// startDKIM starts opendkim and opendmarc, which ask our name server in a mount namespace of
// their own, and returns the setting for them.
func startDKIM(t *testing.T, k *domainKey) (milters string) {
	t.Helper()
	rig.Needs(t, "/usr/sbin/opendkim", "/usr/sbin/opendmarc", "/usr/bin/unshare")
	dir := t.TempDir()
	k.records().serve(t, nameserver+":53")
	resolv := writeLines(t, filepath.Join(dir, "resolv.conf"), "nameserver "+nameserver, "options timeout:1")
	private := func(argv ...string) *exec.Cmd {
		script := "mount --bind " + resolv + " /etc/resolv.conf && exec \"$@\""
		return exec.Command("/usr/bin/unshare", append([]string{"--mount", "sh", "-c", script, "sh"}, argv...)...)
	}
	sign, policy := rig.FreeAddr(t), rig.FreeAddr(t)
	conf := writeLines(t, filepath.Join(dir, "opendkim.conf"), "Socket "+libmilterAddr(sign), "Mode sv", "Domain "+signedDomain, "Selector sel",
		"KeyFile "+k.file(t, dir), "InternalHosts "+writeLines(t, filepath.Join(dir, "internal"), "192.0.2.99"), "Canonicalization relaxed/simple",
		"AlwaysAddARHeader yes", "Background no", "Syslog no", "UserID root", "RequireSafeKeys no", "Nameservers "+nameserver, "TemporaryDirectory "+dir)
	rig.Daemon(t, sign, private("/usr/sbin/opendkim", "-f", "-x", conf))
	conf = writeLines(t, filepath.Join(dir, "opendmarc.conf"), "Socket "+libmilterAddr(policy), "AuthservID mta.example", "TrustedAuthservIDs mta.example",
		"RejectFailures true", "IgnoreAuthenticatedClients true", "Background no", "Syslog no", "UserID root",
		"IgnoreHosts "+writeLines(t, filepath.Join(dir, "ignore"), "192.0.2.99"), "PublicSuffixList "+writeLines(t, filepath.Join(dir, "suffixes"), "example"))
	rig.Daemon(t, policy, private("/usr/sbin/opendmarc", "-f", "-c", conf))
	return "inet:" + sign + " inet:" + policy
}

// startRspamd starts rspamd as one process that scans by itself.
func startRspamd(t *testing.T, k *domainKey) (milters string) {
	t.Helper()
	rig.Needs(t, "/usr/bin/rspamd")
	dir := t.TempDir()
	assert.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	addr, server := rig.FreeAddr(t), rig.FreeAddr(t)
	k.records().serve(t, server)
	local := filepath.Join(dir, "local.d")
	for name, lines := range map[string][]string{
		"options.inc": {"dns { nameserver = [\"" + server + "\"]; timeout = 1s; }", "gtube_patterns = \"all\";", "local_addrs = [];",
			// With all top-level domains it takes half a minute to start.
			"url_tld = \"" + writeLines(t, filepath.Join(dir, "tld"), "example", "com", "org") + "\";", "control_socket = \"" + dir + "/control mode=0600\";"},
		"worker-proxy.inc":      {"bind_socket = \"" + addr + "\";", "count = 1;", "upstream \"local\" { default = yes; self_scan = yes; }"},
		"worker-normal.inc":     {"enabled = false;"},
		"worker-controller.inc": {"enabled = false;"},
		"logging.inc":           {"type = \"console\";", "level = \"warning\";"},
		"milter_headers.conf":   {"use = [\"authentication-results\", \"spam-header\"];", "skip_local = false; skip_authenticated = false;", "authenticated_headers = [\"authentication-results\"];"},
		"dkim_signing.conf": {"sign_authenticated = true; sign_local = false; use_esld = false; allow_username_mismatch = true; allow_hdrfrom_mismatch = true; use_domain = \"header\"; check_pubkey = false;",
			"domain { " + signedDomain + " { selector = \"sel\"; path = \"" + k.file(t, dir) + "\"; } }"},
		"actions.conf":  {"rewrite_subject = 12;", "subject = \"[spam] %s\";"},
		"phishing.conf": {"enabled = false;"}, "rbl.conf": {"enabled = false;"}, "asn.conf": {"enabled = false;"}, "fuzzy_check.conf": {"enabled = false;"},
		"surbl.conf": {"enabled = false;"}, "mx_check.conf": {"enabled = false;"}, "neural.conf": {"enabled = false;"},
	} {
		writeLines(t, filepath.Join(local, name), lines...)
	}
	assert.Must(t, os.MkdirAll(filepath.Join(dir, "db"), 0o755))
	rig.Daemon(t, addr, exec.Command("/usr/bin/rspamd", "-f", "-i", "-c", "/etc/rspamd/rspamd.conf", "--var=LOCAL_CONFDIR="+dir,
		"--var=DBDIR="+filepath.Join(dir, "db"), "--var=RUNDIR="+dir, "--var=LOGDIR="+dir))
	return "inet:" + addr
}

// Peer1, Peer3: opendkim signs mail of users and checks that of others, opendmarc and rspamd
// decide as behind Postfix, and call us by our name.
func TestFiltersOfDebianDecideAsBehindPostfix(t *testing.T) {
	cases := assert.Get(ReadCases("testdata/cases.txt"))(t)
	table := readOutcomes(t)
	key := newDomainKey(t)
	for use, start := range map[string]func(*testing.T, *domainKey) string{"opendkim": startDKIM, "rspamd": startRspamd} {
		t.Run(use, func(t *testing.T) {
			milters := start(t, key)
			ours, postfix := startOurs(t, milters, nil), startPostfix(t, strings.ReplaceAll(milters, " ", ", "))
			ours.key = key
			if postfix != nil {
				postfix.key = key
			}
			compare(t, table, cases, use, ours, postfix, nil)
		})
	}
	write(t, table, cases)
}

// signatures describes the signatures of a message in place of their fields.
func (s *server) signatures(m *peer.Message) []string {
	if s.key == nil {
		return nil
	}
	return []string{fmt.Sprintf("valid signatures of %s: %d", signedDomain, s.key.valid(m.Data))}
}
