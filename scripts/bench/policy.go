package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"

	"zmailer/test/peer"
)

// ruleFiles are the tables of the rules: their names, how Postfix reads them, and their lines.
// Nothing in them matches what the generator sends.
var ruleFiles = []struct {
	name, kind string
	lines      int
	line       func(i int) string
}{
	{"networks", "cidr", 100, func(i int) string { return fmt.Sprintf("10.%d.%d.0/24 REJECT", i/10, i%10) }},
	{"networks2", "cidr", 100, func(i int) string { return fmt.Sprintf("172.16.%d.0/24 REJECT", i) }},
	{"clients", "hash", 1000, func(i int) string { return fmt.Sprintf("192.0.%d.%d REJECT", i/250, i%250) }},
	{"client-names", "regexp", 20, func(i int) string { return fmt.Sprintf(`/^dialup-[0-9]+\.pool%d\.example$/ REJECT`, i) }},
	{"helos", "hash", 1000, func(i int) string { return fmt.Sprintf("host%d.example REJECT", i) }},
	{"helo-patterns", "regexp", 20, func(i int) string { return fmt.Sprintf(`/^[0-9.-]+\.dyn%d\.example$/ REJECT`, i) }},
	{"senders", "hash", 1000, func(i int) string { return fmt.Sprintf("user%d@sender.example REJECT", i) }},
	{"sender-domains", "hash", 1000, func(i int) string { return fmt.Sprintf("spam%d.example REJECT", i) }},
	{"sender-patterns", "regexp", 20, func(i int) string { return fmt.Sprintf(`/^bounce-.*@list%d\.example$/ REJECT`, i) }},
	{"recipients", "hash", 1000, func(i int) string { return fmt.Sprintf("gone%d@sink.example REJECT", i) }},
	{"recipients2", "hash", 1000, func(i int) string { return fmt.Sprintf("trap%d@sink.example DEFER", i) }},
	{"recipient-patterns", "regexp", 20, func(i int) string { return fmt.Sprintf(`/^[0-9a-f]+-%d@sink\.example$/ REJECT`, i) }},
}

// restrictions are 20 rules, three DNS lists and a policy service, as both systems write them;
// {NAME} is a table.
var restrictions = []string{
	"permit_mynetworks", "permit_sasl_authenticated", "reject_unauth_destination",
	"reject_invalid_helo_hostname", "reject_non_fqdn_helo_hostname", "reject_non_fqdn_sender", "reject_non_fqdn_recipient", "reject_unknown_sender_domain",
	"check_client_access {networks}", "check_client_access {networks2}", "check_client_access {clients}", "check_client_access {client-names}",
	"check_helo_access {helos}", "check_helo_access {helo-patterns}",
	"check_sender_access {senders}", "check_sender_access {sender-domains}", "check_sender_access {sender-patterns}",
	"check_recipient_access {recipients}", "check_recipient_access {recipients2}", "check_recipient_access {recipient-patterns}",
	"reject_rbl_client bl1.test", "reject_rbl_client bl2.test=127.0.0.[2..11]", "reject_rbl_client bl3.test",
	"check_policy_service inet:{service}",
}

// writeRules writes the tables into a directory and returns the restrictions with their names;
// source makes one of a table's kind and path.
func (b *outside) writeRules(dir string, source func(kind, path string) string) (rules []string, err error) {
	names := []string{"{service}", b.service.Addr().String()}
	for _, f := range ruleFiles {
		var text strings.Builder
		for i := range f.lines {
			text.WriteString(f.line(i) + "\n")
		}
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			return nil, err
		}
		names = append(names, "{"+f.name+"}", source(f.kind, path))
	}
	replace := strings.NewReplacer(names...)
	for _, r := range restrictions {
		rules = append(rules, replace.Replace(r))
	}
	return rules, nil
}

// outside is what both systems ask: a name server and a policy service, both in this process,
// whose processor time is not a system's.
type outside struct {
	names     *dns.Server
	addr      string // of the name server, without its port
	service   net.Listener
	questions atomic.Int64
	requests  atomic.Int64
}

func newOutside() (*outside, error) {
	b := &outside{addr: fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&255, max(1, os.Getpid()&255))}
	pc, err := net.ListenPacket("udp", b.addr+":53")
	if err != nil {
		return nil, fmt.Errorf("name server on port 53, the only one that Postfix asks: %w", err)
	}
	b.names = &dns.Server{PacketConn: pc, Handler: b}
	if b.service, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, pc.Close())
	}
	go func() { _ = b.names.ActivateAndServe() }() // it ends with us
	go func() {
		for {
			c, err := b.service.Accept()
			if err != nil {
				return
			}
			go b.serve(c)
		}
	}()
	return b, nil
}

// ServeDNS implements dns.Handler: the sender's domain exists, and no list has the client.
func (b *outside) ServeDNS(w dns.ResponseWriter, ask *dns.Msg) {
	b.questions.Add(1)
	m := new(dns.Msg).SetReply(ask)
	q := ask.Question[0]
	text := map[uint16]string{dns.TypeMX: "stranger.example. 600 MX 10 mx.stranger.example.", dns.TypeA: "stranger.example. 600 A 192.0.2.1"}[q.Qtype]
	if strings.HasSuffix(q.Name, ".test.") {
		m.Rcode = dns.RcodeNameError
	}
	if q.Name != "stranger.example." || text == "" {
		text = "test. 600 SOA ns.test. hostmaster.test. 1 600 600 600 600"
	}
	rr, err := dns.NewRR(text)
	if err != nil {
		panic(err)
	}
	if _, soa := rr.(*dns.SOA); soa {
		m.Ns = append(m.Ns, rr)
	} else {
		m.Answer = append(m.Answer, rr)
	}
	_ = w.WriteMsg(m) // who asked asks again
}

// serve is a policy service that leaves each decision to the next rule.
func (b *outside) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewScanner(c)
	for in.Scan() {
		if len(in.Bytes()) > 0 {
			continue
		}
		b.requests.Add(1)
		if _, err := c.Write([]byte("action=DUNNO\n\n")); err != nil {
			return
		}
	}
}

// withPolicy is a system in the role of an MX for another domain. Its rules are added if there
// is an outside.
type withPolicy struct {
	system
	prepare func(p place) error
	wrap    func(cmd *exec.Cmd, p place) (*exec.Cmd, error)
}

func (s *withPolicy) command(p place) (*exec.Cmd, error) {
	if err := s.prepare(p); err != nil {
		return nil, err
	}
	cmd, err := s.system.command(p)
	if err != nil || s.wrap == nil {
		return cmd, err
	}
	return s.wrap(cmd, p)
}

// ourPolicy is this system; rules: with the rules.
func ourPolicy(o options, b *outside, rules bool) system {
	s := &ours{bin: o.bin, settings: "RELAYNETS=192.0.2.200\nRELAYDOMAINS=relay-domains\nRCPTCHECK=no\nRESOLVER=" + b.addr + ":53\n"}
	return &withPolicy{system: s, prepare: func(p place) error {
		// zmctl init takes a directory that has files.
		conf := filepath.Join(p.dir, "conf")
		err := errors.Join(os.MkdirAll(conf, 0o755), os.WriteFile(filepath.Join(conf, "relay-domains"), []byte("sink.example\n"), 0o644))
		if err != nil || !rules {
			return err
		}
		list, err := b.writeRules(conf, func(_, path string) string { return "file:" + path })
		return errors.Join(err, os.WriteFile(filepath.Join(conf, "access"), []byte(strings.Join(list, "\n")+"\n"), 0o644))
	}}
}

// postfixPolicy is Postfix, the same. It reads a resolv.conf of its own.
func postfixPolicy(b *outside, rules bool) system {
	s := &postfix{}
	var tables []string
	s.more = []string{"mynetworks = 192.0.2.200", "relay_domains = sink.example", "smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination",
		"smtpd_recipient_restrictions ="}
	return &withPolicy{system: s, prepare: func(p place) error {
		err := os.WriteFile(filepath.Join(p.dir, "resolv.conf"), []byte("nameserver "+b.addr+"\n"), 0o644)
		if err != nil || !rules {
			return err
		}
		list, err := b.writeRules(p.dir, func(kind, path string) string {
			if kind == "hash" {
				tables = append(tables, kind+":"+path)
			}
			return kind + ":" + path
		})
		s.more[len(s.more)-1] = "smtpd_recipient_restrictions = " + strings.Join(list, ", ")
		return err
	}, wrap: func(cmd *exec.Cmd, p place) (*exec.Cmd, error) {
		if len(tables) > 0 {
			if out, err := exec.Command("/usr/sbin/postmap", append([]string{"-c", s.Config()}, tables...)...).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("postmap: %w: %s", err, out)
			}
		}
		script := `mount --make-rprivate / && mount --bind "$0" /etc/resolv.conf && exec "$@"`
		wrapped := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, filepath.Join(p.dir, "resolv.conf")}, cmd.Args...)...)
		wrapped.Env = cmd.Env
		return wrapped, nil
	}}
}

// policy compares what 20 rules, three DNS lists and a policy service add to the cost of a
// message, here and in Postfix: runs of all four in turn.
func policy(o options) error {
	if _, err := exec.LookPath(peer.PostfixMaster); err != nil || os.Geteuid() != 0 {
		return errors.New("-policy compares with Postfix, which is to be installed, as root")
	}
	b, err := newOutside()
	if err != nil {
		return err
	}
	o.share, o.from = 1, "sender@stranger.example"
	kinds := []struct {
		name  string
		rules bool
		make  func() system
	}{
		{"zmailer", false, func() system { return ourPolicy(o, b, false) }},
		{"zmailer-rules", true, func() system { return ourPolicy(o, b, true) }},
		{"postfix", false, func() system { return postfixPolicy(b, false) }},
		{"postfix-rules", true, func() system { return postfixPolicy(b, true) }},
	}
	cost := make([][]float64, len(kinds)) // milliseconds per message
	for i := range o.runs {
		for j := range kinds {
			n := (i + j) % len(kinds)
			k := kinds[n]
			if !chosen(o.systems, k.name) {
				continue // to be profiled
			}
			requests, questions := b.requests.Load(), b.questions.Load()
			v, err := rate(o, k.make())
			if err != nil {
				return err
			}
			requests, questions = b.requests.Load()-requests, b.questions.Load()-questions
			if k.rules != (requests >= int64(o.messages)) || k.rules != (questions > 0) {
				return fmt.Errorf("%s: %d requests to the policy service and %d questions to the name server for %d messages", k.name, requests, questions, o.messages)
			}
			cost[n] = append(cost[n], v["cpu"][0])
			fmt.Printf("run %d %-15s delivered %.0f/s  CPU %.0f µs/message  DNS questions %.2f  policy requests %.2f\n", i+1, k.name,
				v["delivered"][0], v["cpu"][0]*1000, float64(questions)/float64(o.messages), float64(requests)/float64(o.messages))
		}
	}
	if o.systems != "" {
		return nil
	}
	var mine, theirs, extra, total []float64
	for i := range o.runs {
		mine, theirs = append(mine, cost[1][i]-cost[0][i]), append(theirs, cost[3][i]-cost[2][i])
		extra, total = append(extra, mine[i]/theirs[i]), append(total, cost[1][i]/cost[3][i])
	}
	fmt.Printf("\nmedians of %d runs, %d messages of %d bytes, %d connections, lowest and highest in brackets\n", o.runs, o.messages, o.size, o.connections)
	fmt.Printf("rules, lists and service cost zmailer %s and postfix %s ms per message\n", brackets(mine, 3), brackets(theirs, 3))
	fmt.Printf("ratio of that %s, of medians %.2f; ratio of all that a message costs with them %s\n", brackets(extra, 2), middle(mine)/middle(theirs), brackets(total, 2))
	return nil
}

func middle(list []float64) float64 {
	list = slices.Clone(list)
	slices.SortFunc(list, cmp.Compare[float64])
	return list[len(list)/2]
}

func brackets(list []float64, digits int) string {
	return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, middle(list), digits, slices.Min(list), digits, slices.Max(list))
}
