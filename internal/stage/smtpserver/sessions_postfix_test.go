package smtpserver

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/test/peer"
)

var (
	policySeed     = flag.Uint64("policy-seed", 0, "the seed of the random policies and sessions; 0: by the clock")
	policySessions = flag.Int("policy-sessions", 30, "how many random sessions are compared with Postfix")
)

// policies makes random access tables and restriction lists, for us and for Postfix.
type policies struct {
	*rand.Rand
	dir    string
	tables int
}

func pick[T any](r *policies, list ...T) T { return list[r.IntN(len(list))] }

// accessKeys are those of access(5), by what is looked up.
var accessKeys = map[string][]string{
	"client": {"198.51.100.7", "198.51.100.10", "198.51.100", "198.51", "198", "good.test", "mail.good.test", "test", "unknown", "192.0.2.200", "2001:db8", "2001:db8::7", "2001", "2001:db8:1:2"},
	"helo":   {"mail.good.test", "good.test", "test", "plain", "[198.51.100.7]", "-bad.test"},
	"sender": {"a@good.test", "good.test", "sub.good.test", "test", "a@", "news-7@", "<>", "plain", "A@GOOD.test", "a+c@", "a+c@good.test", "a@onlya.test"},
}

// accessPatterns are those of regexp_table(5).
var accessPatterns = map[string][]string{
	"client": {"/^198\\.51\\./", "/good/", "!/^198/", "/^unknown$/", "/GOOD\\.TEST$/"},
	"helo":   {"/^[0-9.]*$/", "/\\.test$/", "!/\\./", "/^\\[/", "/MAIL/i"},
	"sender": {"/^a@/", "/good\\.test$/", "!/@/", "/^news-[0-9]+@/", "/^<>$/", "/\\+/"},
}

var accessNetworks = []string{"198.51.100.0/24", "198.51.100.7", "198.51.0.0/16", "198.51.100.8/31", "192.0.2.0/24", "0.0.0.0/0", "!198.51.0.0/16", "2001:db8::/32", "2001:db8::7"}

var accessActions = []string{"OK", "DUNNO", "REJECT", "REJECT 5.7.9 no", "DEFER", "DEFER_IF_PERMIT later", "DEFER_IF_REJECT 4.3.2 x", "450 4.1.8 not now",
	"554 gone", "550", "WARN look", "PREPEND X-Seen: yes", "HOLD", "42", "REDIRECT case0@here.test", "BCC case0@here.test", "FILTER smtp:"}

// table writes a random table; it returns its name for us, and for Postfix.
func (r *policies) table(what string) (ours, theirs string) {
	r.tables++
	file := filepath.Join(r.dir, fmt.Sprintf("t%d", r.tables))
	form := pick(r, "texthash", "texthash", "regexp", "pcre", "cidr")
	if form == "cidr" && what != "client" {
		form = "texthash"
	}
	keys := accessKeys[what]
	if what == "recipient" {
		keys = []string{"here.test", "test", fmt.Sprintf("case%d@here.test", r.IntN(60)), fmt.Sprintf("case%d@", r.IntN(60))}
	}
	switch form {
	case "regexp", "pcre":
		if keys = accessPatterns[what]; what == "recipient" {
			keys = []string{"/^case[0-9]@/", "/[24680]@/", "!/[13579]@/", "/HERE/"}
		}
	case "cidr":
		keys = accessNetworks
	}
	var b strings.Builder
	used := map[string]bool{}
	for range 1 + r.IntN(4) {
		key := pick(r, keys...)
		if used[strings.ToLower(key)] && form == "texthash" {
			continue // Postfix takes the last one, and warns
		}
		used[strings.ToLower(key)] = true
		fmt.Fprintf(&b, "%s %s\n", key, pick(r, accessActions...))
	}
	writeTable(file, b.String())
	scheme := "file:"
	if form == "regexp" || form == "pcre" {
		scheme = pick(r, "file:", "regexp:")
	}
	return scheme + file, form + ":" + file
}

func writeTable(file, text string) {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		panic(err)
	}
}

// list makes a random list of restrictions.
func (r *policies) list(user string) (ours, theirs []string) {
	for range 1 + r.IntN(4) {
		one := pick(r, "client", "helo", "sender", "recipient", "client", "sender", "reject_non_fqdn_sender", "reject_non_fqdn_helo_hostname",
			"reject_invalid_helo_hostname", "permit_mynetworks", "reject_unauth_destination", "permit_auth_destination", "reject")
		warn := ""
		if r.IntN(8) == 0 {
			warn = "warn_if_reject "
		}
		text := ""
		switch one {
		case "client", "helo", "sender", "recipient":
			a, b := r.table(one)
			ours, theirs = append(ours, fmt.Sprintf("%scheck_%s_access %s", warn, one, a)), append(theirs, fmt.Sprintf("%scheck_%s_access %s", warn, one, b))
			continue
		case "reject":
			text = fmt.Sprintf(` : "554 5.7.1 <%s>: Recipient address rejected: Access denied"`, user)
		}
		ours, theirs = append(ours, warn+one+text), append(theirs, warn+one)
	}
	return ours, theirs
}

// Op10: in random sessions under random policies, each recipient has the reply of Debian's Postfix
// with the same tables and restrictions: code, enhanced code and so what is accepted. Postfix is
// the judge. Recipients elsewhere are compared in being accepted: Postfix looks at
// smtpd_relay_restrictions first, we last.
func TestRandomSessionsAreDecidedAsByPostfix(t *testing.T) {
	if _, err := os.Stat(peer.PostfixMaster); err != nil || os.Getuid() != 0 {
		t.Skip("Postfix is not installed, or not root")
	}
	seed := cmp.Or(*policySeed, uint64(time.Now().UnixNano()))
	dir := assert.Get(os.MkdirTemp("/tmp", "sessions"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	assert.Must(t, os.Chmod(dir, 0o755))
	r := &policies{Rand: rand.New(rand.NewPCG(seed, 3)), dir: dir}
	const lists = 60
	theirs, shown := map[string]string{}, map[string]string{}
	var access strings.Builder
	for i := range lists {
		user := fmt.Sprintf("case%d@here.test", i)
		a, b := r.list(user)
		theirs[user], shown[user] = strings.Join(b, ", "), strings.Join(a, "\n")
		theirs[fmt.Sprintf("case%d@far.test", i)], theirs[fmt.Sprintf("case%d+tag@here.test", i)] = theirs[user], theirs[user]
		for _, rule := range a {
			before, text, has := strings.Cut(rule, " : ")
			if has {
				text = " : " + text
			}
			fmt.Fprintf(&access, "%s to=/^case%d[@+]/%s\n", before, i, text)
		}
	}
	_, server := checkstest.ServeAt(t, nameServer, policyZone...)
	addr := startPolicyPostfix(t, theirs, "smtpd_recipient_limit = 10000", "smtpd_soft_error_limit = 10000", "smtpd_hard_error_limit = 10000", "smtpd_junk_command_limit = 10000", "recipient_delimiter = +", "inet_protocols = all")
	own := files(t, map[string]string{"access": access.String(), "localnames": "here.test\n"})
	s := start(t, func(c *Config) {
		c.XClientNets = loopback
		c.Access.RelayNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.200/32")}
		c.Access.Subaddress = "+"
		c.Access.Dir, c.Access.LocalNamesFile, c.Access.Resolver = own, filepath.Join(own, "localnames"), server
		unlimited(c)
	})
	type input struct{ client, helo, from string }
	dialogue := func(at string, i input, to []string) (replies []string) {
		c := s.connectFrom(nil, assert.Get(netAddr(at))(t))
		defer c.Close()
		c.expect("220")
		c.say("EHLO client.test", "250")
		c.say("XCLIENT ADDR="+i.client+" NAME="+cmp.Or(map[string]string{"198.51.100.7": "mail.good.test"}[i.client], "[UNAVAILABLE]"), "220")
		c.say("EHLO "+i.helo, "250")
		c.say("MAIL FROM:<"+i.from+">", "250")
		for _, rcpt := range to {
			c.send("RCPT TO:<" + rcpt + ">\r\n")
			replies = append(replies, c.reply())
		}
		return replies
	}
	decisions, refused, differences := 0, 0, 0
	for range *policySessions {
		i := input{
			pick(r, "198.51.100.7", "198.51.100.8", "198.51.100.10", "198.51.99.3", "192.0.2.200", "203.0.113.1", "IPV6:2001:db8::7", "IPV6:2001:db8:1:2:3:4:5:6"),
			pick(r, "mail.good.test", "plain", "[198.51.100.7]", "a.b.good.test", "-bad.test", "GOOD.test", "1.2.3.4"),
			pick(r, "", "a@good.test", "b@sub.good.test", "a@plain", "A@Good.test", "news-7@bad.test", "a+c@onlya.test", "A+C@good.test", "a+@good.test", "+c@good.test"),
		}
		var to []string
		for n := range lists {
			to = append(to, fmt.Sprintf("case%d@here.test", n), fmt.Sprintf("case%d+tag@here.test", n))
			if n%4 == 0 {
				to = append(to, fmt.Sprintf("case%d@far.test", n))
			}
		}
		want, got := dialogue(addr, i, to), dialogue(s.addr, i, to)
		for n := range to {
			decisions++
			short := func(reply string) string { return reply[:min(len(reply), 9)] }
			same := short(want[n]) == short(got[n])
			if strings.HasSuffix(to[n], "@far.test") {
				same = want[n][0] == '2' == (got[n][0] == '2')
			}
			if want[n][0] != '2' {
				refused++
			}
			if differences++; same {
				differences--
			} else if differences <= 5 {
				user := strings.Replace(to[n], "far.test", "here.test", 1)
				t.Errorf("%+v to %s\nPostfix: %sours:    %s%s\n%s", i, to[n], want[n], got[n], shown[user], tablesOf(t, shown[user]))
			}
		}
	}
	t.Logf("%d decisions, %d of them refusals, %d differences; repeat with -args -policy-seed %d", decisions, refused, differences, seed)
	if refused < decisions/10 || refused > decisions*9/10 {
		t.Errorf("%d refusals: the policies test too little", refused)
	}
}

// tablesOf returns the tables that rules name.
func tablesOf(t *testing.T, rules string) (text string) {
	for word := range strings.FieldsSeq(rules) {
		if _, file, ok := strings.Cut(word, ":/"); ok {
			text += word + "\n" + string(read(t, "/"+file))
		}
	}
	return text
}
