package rules

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/table/text"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

// patience bounds each wait for Postfix.
const patience = 60 * time.Second

// postfixOf starts a Postfix with the same maps, whose every transport leads to a sink.
func postfixOf(t *testing.T, w *world, sink *peer.Sink) (addr string, p *peer.Postfix) {
	t.Helper()
	rig.Needs(t, peer.PostfixMaster)
	dir := rig.ShortDir(t)
	table := func(name string, keys []string, value func(key string) string) string {
		var b strings.Builder
		for _, key := range keys {
			fmt.Fprintf(&b, "%s %s\n", key, value(key))
		}
		file := filepath.Join(dir, name)
		assert.Must(t, os.WriteFile(file, []byte(b.String()), 0o644))
		return "texthash:" + file
	}
	there := func(string) string { return "x" }
	relayed := "" // Postfix then accepts all recipients; it accepts none that an empty table lacks
	if w.relays {
		relayed = table("relayed", slices.Sorted(maps.Keys(w.relayed)), there)
	}
	inline := func(c Class) string { return strings.Join(strings.Fields(w.class(c)), " ") }
	to := "smtp:" + sink.RouteHost()
	addr = assert.Get(peer.FreeAddr())(t)
	p = &peer.Postfix{Dir: filepath.Join(dir, "p"), Listen: addr, RelayHost: sink.RouteHost(), Settings: []string{
		"myhostname = mx.example.org", "mydestination = mx.example.org " + inline(ClassLocal),
		"local_transport = " + to, "virtual_transport = " + to, "relay_transport = " + to,
		"local_recipient_maps = " + table("users", slices.Sorted(maps.Keys(w.users)), there),
		"virtual_alias_domains = " + inline(ClassVirtualAlias), "virtual_mailbox_domains = " + inline(ClassVirtualMailbox),
		"virtual_alias_maps = " + table("virtual", slices.Sorted(maps.Keys(w.fqdn)), func(key string) string { return strings.Join(w.fqdn[key], ", ") }),
		"virtual_mailbox_maps = " + table("mailboxes", slices.Sorted(maps.Keys(w.mailboxes)), there),
		"relay_domains = " + inline(ClassRelay), "parent_domain_matches_subdomains =",
		"relay_recipient_maps = " + relayed,
		"recipient_delimiter = +", "smtpd_error_sleep_time = 0", "smtpd_hard_error_limit = 100000",
		"smtpd_junk_command_limit = 100000", "notify_classes =", "smtp_tls_security_level =", "smtpd_tls_security_level =",
	}}
	rig.Postfix(t, p, nil)
	return addr, p
}

// In random configurations Debian's Postfix answers RCPT as we do, and has each message where we
// have it. It looks at the first step of an alias only, so that it accepts some whose aliases lead
// to nobody, which it then bounces.
func TestRecipientsGoWherePostfixHasThem(t *testing.T) {
	const worlds = 3
	seed := uint64(time.Now().UnixNano())
	if *modelSeed != 0 {
		seed = *modelSeed
	}
	r := rand.New(rand.NewPCG(seed, 2))
	w := newWorld(r, "0")
	addresses := worldAddresses("0")
	for i := 1; i < worlds; i++ {
		suffix := fmt.Sprint(i)
		next := newWorld(r, suffix)
		maps.Copy(w.domains, next.domains)
		maps.Copy(w.fqdn, next.fqdn)
		maps.Copy(w.users, next.users)
		maps.Copy(w.mailboxes, next.mailboxes)
		maps.Copy(w.relayed, next.relayed)
		w.relays = w.relays || next.relays
		addresses = append(addresses, worldAddresses(suffix)...)
	}
	clear(w.aliases) // Postfix's local(8) has them, which would deliver here
	c := newConf(t, w.files())
	c.Rules = withTags(t, c)
	sink := &peer.Sink{Discard: true}
	assert.Must(t, sink.Start())
	t.Cleanup(func() { sink.Close() })
	addr, p := postfixOf(t, w, sink)

	conn := assert.Get(net.DialTimeout("tcp", addr, patience))(t)
	defer conn.Close()
	assert.Must(t, conn.SetDeadline(time.Now().Add(2*patience)))
	lines := textproto.NewReader(bufio.NewReader(conn))
	ask := func(format string, args ...any) int {
		if format != "" {
			fmt.Fprintf(conn, format+"\r\n", args...)
		}
		code, text, err := lines.ReadResponse(0)
		if code == 0 {
			t.Fatalf("%s: %v %s", fmt.Sprintf(format, args...), err, text)
		}
		return code
	}
	ask("")
	ask("EHLO client.example")
	sent := map[string]string{} // sender -> recipient
	tolerated := 0
	for i, to := range addresses {
		from := fmt.Sprintf("s%d@d10.example", i)
		ask("MAIL FROM:<%s>", from)
		m := assert.Get(address.Parse(to))(t)
		at := assert.Get(c.Tables().Verify(t.Context(), m))(t)
		code := ask("RCPT TO:<%s>", to)
		w.renamed = false
		looped := w.resolve(to, nil, places{}) != nil || w.renamed
		switch refused := at.Channel == Error; {
		case looped:
		case refused && code == 250:
			tolerated++ // what it leads to is nobody
			if !w.aliased(to) {
				t.Errorf("%s: refused here (%s), accepted by Postfix", to, at.Host)
			}
		case refused != (code == 550):
			t.Errorf("%s: refused here %t, Postfix answers %d", to, refused, code)
		}
		if code != 250 || looped {
			ask("RSET")
			continue
		}
		sent[from] = to
		ask("DATA")
		ask("Subject: x\r\n\r\n.")
	}
	logtest.Eventually(t, "Postfix's queue is empty", func() bool {
		return len(assert.Get(exec.Command("/usr/sbin/postqueue", "-c", p.Config(), "-j").Output())(t)) == 0
	})
	got := map[string]places{}
	for _, m := range sink.Messages() {
		if got[m.From] == nil {
			got[m.From] = places{}
		}
		for _, to := range m.Recipients {
			if w.exists(to) { // the others would be refused by their transport
				got[m.From][to] = true
			}
		}
	}
	for from, to := range sent {
		want := places{}
		for _, x := range assert.Get(collect(c.Tables(), assert.Get(address.Parse(to))(t), false))(t) {
			if x.Channel != Error {
				want[x.User] = true
			}
		}
		if got[from] == nil {
			got[from] = places{}
		}
		if !maps.Equal(got[from], want) {
			t.Errorf("%s: Postfix has it at %v, we at %v", to, slices.Sorted(maps.Keys(got[from])), slices.Sorted(maps.Keys(want)))
		}
	}
	t.Logf("%d addresses, %d sent, %d refused earlier than by Postfix", len(addresses), len(sent), tolerated)
	if t.Failed() {
		for _, name := range []string{"fqdnaliases", "users", string(text.VirtualMailboxMaps), string(text.RelayRecipientMaps)} {
			t.Logf("%s:\n%s", name, w.files()[name])
		}
		t.Logf("repeat with -args -model-seed %d", seed)
	}
}

// aliased reports whether an address is in fqdnaliases.
func (w *world) aliased(to string) bool {
	local, domain, _ := strings.Cut(to, "@")
	base, _, _ := strings.Cut(local, "+")
	return w.fqdn[to] != nil || w.fqdn[base+"@"+domain] != nil || w.fqdn["@"+domain] != nil
}

// exists reports whether there is an address, whatever fqdnaliases say.
func (w *world) exists(to string) bool {
	plain := *w
	plain.fqdn = nil
	out := places{}
	return plain.resolve(to, nil, out) == nil && len(out) > 0
}
