package access

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

// parseCondition reads key=value, key!=value or key>number.
func parseCondition(word string, src *sources) (condition, error) {
	i := strings.IndexAny(word, "!=><")
	if i <= 0 {
		return condition{}, fmt.Errorf("%q is not a condition: want key=value", word)
	}
	c := condition{key: strings.ToLower(word[:i])}
	rest := word[i:]
	if c.key == "dnsbl" {
		return c, c.score(rest, src)
	}
	if rest[0] == '>' {
		return c, c.above(rest[1:])
	}
	if c.negate = strings.HasPrefix(rest, "!="); c.negate {
		rest = rest[1:]
	}
	value := strings.TrimPrefix(rest, "=")
	if rest[0] != '=' || value == "" {
		return condition{}, fmt.Errorf("%q is not a condition: want key=value", word)
	}
	return c, c.among(value, src.set)
}

// above is a condition on a number.
func (c *condition) above(value string) error {
	n, err := int64(0), error(nil)
	switch c.key {
	case "size":
		if n, err = config.ParseSize(value); err == nil {
			c.match = func(_ context.Context, f *Facts) (answer, error) { return when(f.Whole, f.Size > n), nil }
		}
	case "rcpts":
		if n, err = strconv.ParseInt(value, 10, 64); err == nil {
			c.match = func(_ context.Context, f *Facts) (answer, error) { return when(f.Whole, int64(f.Rcpts) > n), nil }
		} else {
			err = errors.New("not a number")
		}
	default:
		err = errors.New("only size and rcpts are numbers")
	}
	if err != nil {
		return fmt.Errorf("%s>%s: %w", c.key, value, err)
	}
	return nil
}

// score is a condition on the sum of the weights of the DNS lists that have the client.
func (c *condition) score(rest string, src *sources) error {
	if !src.o.Lists {
		return errors.New("dnsbl needs DNSBL_SITES in zmailer.conf")
	}
	op := rest[:len(rest)-len(strings.TrimLeft(rest, "<>="))]
	n, err := strconv.Atoi(rest[len(op):])
	if err != nil {
		return fmt.Errorf("dnsbl%s: want a number, like dnsbl>=3", rest)
	}
	var holds func(score int) bool
	switch op {
	case ">":
		holds = func(score int) bool { return score > n }
	case ">=":
		holds = func(score int) bool { return score >= n }
	case "<":
		holds = func(score int) bool { return score < n }
	case "<=":
		holds = func(score int) bool { return score <= n }
	default:
		return fmt.Errorf("dnsbl%s: want >, >=, < or <=", rest)
	}
	c.match = func(ctx context.Context, f *Facts) (answer, error) {
		score := 0 // of clients that are not looked up, too
		if f.Score != nil {
			score = f.Score.Get(ctx).Score
		}
		return is(holds(score))
	}
	return nil
}

// splitValues cuts a list at its commas, but not within /expressions/.
func splitValues(value string) (list []string) {
	for {
		end := 0
		if strings.HasPrefix(value, "/") {
			end = max(exprEnd(value), 0)
		}
		i := strings.IndexByte(value[end:], ',')
		if i < 0 {
			return append(list, value)
		}
		list = append(list, value[:end+i])
		value = value[end+i+1:]
	}
}

// when returns an answer that is known at a time.
func when(known, holds bool) answer {
	switch {
	case !known:
		return later
	case holds:
		return yes
	}
	return no
}

func is(holds bool) (answer, error) { return when(true, holds), nil }

// among is a condition on words, nets, hosts or addresses.
func (c *condition) among(value string, open func(source, key string) (set, error)) error {
	var s set
	var err error
	switch c.key {
	case "client", "name", "helo", "from", "to", "user":
		if isSource(value) {
			s, err = open(value, c.key)
		} else {
			m := newMembers(c.key)
			for _, v := range splitValues(value) {
				if err = m.add(v); err != nil {
					break
				}
			}
			s = m
		}
	}
	if err != nil {
		if bad := (*config.Error)(nil); errors.As(err, &bad) {
			return err
		}
		return fmt.Errorf("%s=%s: %w", c.key, value, err)
	}
	words := strings.Split(strings.ToLower(value), ",")
	switch c.key {
	case "client":
		c.match = func(ctx context.Context, f *Facts) (answer, error) { return s.client(ctx, f.Client) }
	case "name":
		c.match = func(ctx context.Context, f *Facts) (answer, error) { return s.host(ctx, f.Name) }
	case "helo":
		c.match = func(ctx context.Context, f *Facts) (answer, error) { return s.host(ctx, f.Helo) }
	case "user":
		c.match = func(ctx context.Context, f *Facts) (answer, error) { return s.word(ctx, f.User) }
	case "from":
		c.match = func(ctx context.Context, f *Facts) (answer, error) { return s.mailbox(ctx, f.From, false) }
	case "to":
		c.to = s
		c.match = func(ctx context.Context, f *Facts) (answer, error) { return s.mailbox(ctx, f.To, f.Local) }
	case "role":
		c.match = func(_ context.Context, f *Facts) (answer, error) { return is(slices.Contains(words, f.Role)) }
		return known(words, "mx", "submission", "submissions", "lmtp", "reinject")
	case "tls":
		c.match = func(_ context.Context, f *Facts) (answer, error) { return is(f.TLS == (words[0] == "yes")) }
		if len(words) > 1 {
			return errors.New("tls= is yes or no")
		}
		return known(words, "yes", "no")
	case "cert":
		return c.certificate(words)
	case "policy":
		c.result(words)
		return known(words, "none", "quarantine", "reject")
	case "spf", "dkim", "dmarc":
		c.result(words)
		return known(words, "none", "neutral", "pass", "fail", "softfail", "policy", "temperror", "permerror")
	default:
		return fmt.Errorf("unknown key %q: want client, name, role, helo, user, from, to, tls, cert, spf, dkim, dmarc, policy, size>, rcpts> or dnsbl>", c.key)
	}
	return nil
}

// known checks words.
func known(words []string, all ...string) error {
	for _, w := range words {
		if !slices.Contains(all, w) {
			return fmt.Errorf("%q is none of %s", w, strings.Join(all, ", "))
		}
	}
	return nil
}

// certificate is a condition on the fingerprint of the client's certificate.
func (c *condition) certificate(words []string) error {
	for i, w := range words {
		words[i] = strings.ReplaceAll(w, ":", "")
		if b, err := hex.DecodeString(words[i]); w != "*" && (err != nil || len(b) != 32) {
			return fmt.Errorf("%q is not a fingerprint: want the 64 hexadecimal digits of a SHA-256", w)
		}
	}
	any := slices.Contains(words, "*")
	c.match = func(_ context.Context, f *Facts) (answer, error) {
		return is(f.Cert != "" && (any || slices.Contains(words, f.Cert)))
	}
	return nil
}

// result is a condition on the result of a check.
func (c *condition) result(words []string) {
	key := c.key
	c.match = func(_ context.Context, f *Facts) (answer, error) {
		got := map[string]string{"spf": f.SPF, "dkim": f.DKIM, "dmarc": f.DMARC, "policy": f.Policy}[key]
		if got == "" && !f.Whole {
			return later, nil
		}
		if got == "" {
			got = "none"
		}
		return is(slices.Contains(words, got))
	}
}

// members is a set that the file itself, or a list, holds.
type members struct {
	key   string
	any   bool
	none  bool // the value none: no user, the null sender, or a Unix socket
	local bool // domains of ours
	nets  []netip.Prefix
	exact map[string]struct{} // addresses, words, hosts and domains, in lower case
	below map[string]struct{} // domains that are meant with all below them
	parts map[string]struct{} // local parts, in any domain
	exprs []*regexp.Regexp
}

func newMembers(key string) *members {
	return &members{key: key, exact: map[string]struct{}{}, below: map[string]struct{}{}, parts: map[string]struct{}{}}
}

// add takes one value.
func (m *members) add(v string) error {
	if v == "" {
		return errors.New("empty value")
	}
	if v == "*" {
		m.any = true
		return nil
	}
	if v[0] == '/' {
		expr, err := compile(v)
		m.exprs = append(m.exprs, expr)
		return err
	}
	switch m.key {
	case "client":
		return m.addNet(v)
	case "user":
		if v == "-" {
			m.none = true
			return nil
		}
		m.exact[strings.ToLower(v)] = struct{}{}
		return nil
	case "name", "helo":
		return m.addDomain(v)
	}
	return m.addMailbox(v)
}

func (m *members) addNet(v string) error {
	if v == "unix" {
		m.none = true
		return nil
	}
	n, err := netip.ParsePrefix(v)
	if err != nil {
		a, aerr := netip.ParseAddr(v)
		if aerr != nil {
			return fmt.Errorf("%q is neither a network nor an address", v)
		}
		n = netip.PrefixFrom(a, a.BitLen())
	}
	m.nets = append(m.nets, n.Masked())
	return nil
}

// addDomain takes a domain, or .domain, which is that and all below it.
func (m *members) addDomain(v string) error {
	domain, all := strings.CutPrefix(v, ".")
	d, err := (address.Mailbox{Local: "x", Domain: strings.TrimSuffix(domain, ".")}).ASCIIDomain()
	if err != nil || d == "" {
		return fmt.Errorf("%q is not a domain", v)
	}
	if all {
		m.below[d] = struct{}{}
	} else {
		m.exact[d] = struct{}{}
	}
	return nil
}

// addMailbox takes an address, a domain, .domain, @domain, user@, @local or <>.
func (m *members) addMailbox(v string) error {
	local, domain, at := strings.Cut(v, "@")
	switch {
	case v == "<>":
		m.none = true
		return nil
	case v == "@local":
		if m.key != "to" {
			return errors.New("@local applies to recipients only: to=@local")
		}
		m.local = true
		return nil
	case !at || local == "":
		return m.addDomain(strings.TrimPrefix(v, "@"))
	case domain == "":
		m.parts[strings.ToLower(local)] = struct{}{}
		return nil
	}
	box, err := address.Parse(v)
	if err != nil {
		return err
	}
	m.exact[mailboxKey(box)] = struct{}{}
	return nil
}

// mailboxKey returns an address as it is compared: in lower case, its domain in A-labels.
func mailboxKey(m address.Mailbox) string {
	d, err := m.ASCIIDomain()
	if err != nil {
		d = strings.ToLower(m.Domain)
	}
	return strings.ToLower(m.Local) + "@" + d
}
