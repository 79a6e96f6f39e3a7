package tasmtp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/tasmtp/dane"
	"zmailer/internal/stage/tasmtp/mx"
	"zmailer/internal/stage/tasmtp/sts"
	"zmailer/internal/stage/tasmtp/tlspolicy"
	"zmailer/internal/stage/tasmtp/tlsrpt"
)

// Codes of TLS trouble (RFC 3463 §3.8, RFC 8689 §7).
var (
	notSecure = status.Code{Class: 4, Subject: 7, Detail: 5}
	notSafe   = status.Code{Class: 5, Subject: 7, Detail: 30}
)

// requirement is what the connection to one server must have before mail goes over it.
type requirement struct {
	terms
	off   bool                             // TLS is not even tried
	must  bool                             // nothing goes in the clear
	check func(*tls.ConnectionState) error // of the certificate; nil: any will do
	soft  bool                             // a check that fails is counted, and that is all (RFC 8461 §5, testing)
	sni   string
	mine  bool            // the message or its sender requires more than others would
	lost  error           // why it is unknown now whether the domain has an MTA-STS policy
	why   string          // for logs and reports: what decided
	count *tlsrpt.Session // for TLS reports; nil: not counted, it is no domain's server
}

// insecure returns the refusal of a server that does not meet the policy.
func (g *requirement) insecure(reply string) *refusal {
	return &refusal{code: notSecure, weight: weightServer, reply: reply + " (" + g.why + ")", mine: g.mine}
}

// requirement finds what is required of a server.
func (r *security) requirement(ctx context.Context, t terms, d *destination, s *server) (*requirement, *refusal) {
	g := &requirement{terms: t, sni: s.name}
	if t.policy == nil {
		g.off, g.why = true, "a socket of this machine"
		return g, nil
	}
	g.why = t.policy.Text + ", " + t.policy.Where
	if d.mx {
		g.count = &tlsrpt.Session{Domain: d.name, Type: tlsrpt.PolicyNone, MX: s.name}
	}
	switch t.policy.Level {
	case tlspolicy.None:
		g.off = true
	case tlspolicy.Encrypt:
		g.must = true
	case tlspolicy.Verify:
		g.must = true
		r.verify(ctx, g, d, s)
	case tlspolicy.Fingerprint:
		g.must, g.check = true, t.policy.CheckFingerprint
	}
	level := t.policy.Level
	if t.require && (level == tlspolicy.May || level == tlspolicy.Encrypt || level == tlspolicy.DANE) {
		level, g.mine = tlspolicy.STS, true // anything that verifies the server
	}
	if why := r.published(ctx, g, level, d, s); why != nil {
		why.mine = g.mine
		return nil, why
	}
	if t.account != nil {
		r.verifyForLogin(ctx, g, d, s)
	}
	return g, r.requireTLS(ctx, g, d, s)
}

// published applies what the destination publishes: its TLSA records first, then its
// MTA-STS policy (RFC 8461 §2). TLS-Required: No of a sender (RFC 8689 §5) waives these,
// but not the postmaster's policy.
func (r *security) published(ctx context.Context, g *requirement, level tlspolicy.Level, d *destination, s *server) *refusal {
	own := level == tlspolicy.DANEOnly
	if level != tlspolicy.DANE && level != tlspolicy.STS && !own || g.relaxed && !own {
		if g.relaxed {
			g.why += "; the message has TLS-Required: No"
		}
		return nil
	}
	found, why := r.dane(ctx, g, d, s)
	switch {
	case why != nil || found:
		return why
	case own:
		g.must = true
		r.record(g, nil, tlsrpt.DANERequired, "no TLSA record")
		return g.insecure(s.name + " has no TLSA records that are secure, and they are wanted")
	case level == tlspolicy.STS && d.mx:
		return r.mtaSTS(ctx, g, d, s)
	}
	return nil
}

// dane looks for TLSA records (RFC 7672 §2.2).
func (r *security) dane(ctx context.Context, g *requirement, d *destination, s *server) (bool, *refusal) {
	if why := r.untrusted(g); why != nil || s.name == "" || r.resolver.Trusted() != nil {
		return false, why
	}
	if d.mx {
		secure, err := r.resolver.Secure(ctx, d.name)
		if err != nil {
			return false, lookupRefusal(err)
		}
		if !secure {
			return false, nil
		}
	}
	found, err := r.resolver.TLSA(ctx, s.name, d.port)
	if err != nil {
		if g.count != nil {
			g.count.Type = tlsrpt.PolicyTLSA
		}
		r.record(g, nil, tlsrpt.DNSSECInvalid, err.Error())
		return false, &refusal{code: status.RoutingTrouble, weight: weightLookup, reply: err.Error()}
	}
	if len(found.Records) == 0 {
		return false, nil
	}
	g.must, g.sni = true, found.Base
	g.why += fmt.Sprintf("; %d TLSA records of %s", len(found.Records), found.Base)
	if g.count != nil {
		g.count.Type = tlsrpt.PolicyTLSA
		var lines []string
		for _, rec := range found.Records {
			lines = append(lines, fmt.Sprintf("%d %d %d %x", rec.Usage, rec.Selector, rec.Matching, rec.Data))
		}
		slices.Sort(lines)
		g.count.Lines = strings.Join(lines, "\n")
	}
	usable := dane.Usable(found.Records)
	if len(usable) == 0 {
		g.why += ", none of them usable"
		if g.policy.Level == tlspolicy.DANEOnly {
			return true, g.insecure("no TLSA record of " + found.Base + " can be used")
		}
		return true, nil
	}
	names := []string{found.Base, s.name}
	if d.mx {
		names = append(names, d.name) // RFC 7672 §3.2.2
	}
	g.check = func(state *tls.ConnectionState) error {
		return dane.Verify(usable, state.PeerCertificates, slices.Compact(names), time.Now())
	}
	return true, nil
}

// untrusted logs, once, that no answer of the name server counts as secure.
func (r *security) untrusted(g *requirement) *refusal {
	err := r.resolver.Trusted()
	if err == nil {
		return nil
	}
	if !r.warned.Swap(true) {
		r.log.Warn("dane-unusable", "reason", err, "advice", "let RESOLVER be a validating name server on this machine, or set DANETRUST=yes if the way to it is safe")
	}
	if !errors.Is(err, mx.ErrUntrusted) || g.policy.Level != tlspolicy.DANEOnly {
		return nil
	}
	return &refusal{code: badSetup, weight: weightOurs, reply: err.Error()}
}

// mtaSTS applies a domain's MTA-STS policy (RFC 8461 §4, §5).
func (r *security) mtaSTS(ctx context.Context, g *requirement, d *destination, s *server) *refusal {
	p, failed := r.sts.Policy(ctx, d.name)
	if failed != nil && p == nil {
		g.lost = failed
		if failed.Type != "" {
			g.count.Type = tlsrpt.PolicySTS
			r.record(g, nil, failed.Type, failed.Err.Error())
			g.count.Type = tlsrpt.PolicyNone
		}
	}
	if p == nil || p.Mode == sts.None {
		return nil
	}
	g.why += fmt.Sprintf("; MTA-STS policy %s, %s, until %s", p.ID, p.Mode, p.Until().UTC().Format(time.DateTime))
	g.count.Type, g.count.Lines, g.count.Hosts = tlsrpt.PolicySTS, strings.Join(p.Lines, "\n"), strings.Join(p.MX, " ")
	g.soft = p.Mode == sts.Testing
	g.must = g.must || !g.soft
	if !p.Has(s.name) {
		r.record(g, nil, tlsrpt.Failure, s.name+" is no mx of the policy")
		if !g.soft {
			return g.insecure(s.name + " is no server of " + d.name + "'s MTA-STS policy")
		}
		g.count = nil // it has been
		return nil
	}
	if g.check == nil || !g.must {
		g.check = r.chain(nil, s.name)
	}
	return nil
}

// chain requires a certificate of a known authority for one of the names.
func (r *security) chain(p *tlspolicy.Policy, names ...string) func(*tls.ConnectionState) error {
	roots := r.roots
	if p != nil && p.Roots != nil {
		roots = p.Roots
	}
	return func(state *tls.ConnectionState) error {
		return tlspolicy.VerifyChain(state.PeerCertificates, roots, names, time.Now())
	}
}

// verify requires a known authority's certificate for a name that the postmaster trusts:
// those of match=, else the destination and names below it, and the server's name if it
// does not come from a DNS answer that may be forged.
func (r *security) verify(ctx context.Context, g *requirement, d *destination, s *server) {
	match := g.policy.Match
	if len(match) == 0 {
		match = []string{"destination"}
		if d.mx {
			match = append(match, "."+d.name)
		}
		secure := !d.mx
		if !secure {
			secure, _ = r.resolver.Secure(ctx, d.name) // unknown is no
		}
		if secure {
			match = append(match, "host")
		}
	}
	var names []string
	for _, m := range match {
		switch {
		case m == "destination" && d.addr.IsValid():
			m = d.addr.String()
		case m == "destination":
			m = d.name
		case m == "host":
			m = s.name
		}
		if m != "" && !slices.Contains(names, m) {
			names = append(names, m)
		}
	}
	g.check = r.chain(g.policy, names...)
}

// verifyForLogin makes sure that a password reaches the server that it belongs to: over
// TLS, to a verified server, unless the postmaster's policy for the host waives that (may,
// encrypt), or the server is on this machine.
func (r *security) verifyForLogin(ctx context.Context, g *requirement, d *destination, s *server) {
	here := !slices.ContainsFunc(s.addrs, func(t target) bool { return !t.loopback() })
	if g.off || here && !r.far {
		return
	}
	own := g.account.From != "" // others have another one, or none
	g.mine = g.mine || own && !g.must
	g.must = true
	waived := g.explicit && (g.policy.Level == tlspolicy.May || g.policy.Level == tlspolicy.Encrypt)
	if g.check == nil && !waived || g.soft {
		g.soft, g.mine = false, g.mine || own
		g.why += "; verified for the login of " + g.account.Where
		r.verify(ctx, g, d, s)
	}
}

// loopback reports whether a target is on this machine.
func (t *target) loopback() bool {
	a, err := netip.ParseAddrPort(t.address)
	return t.network == "unix" || err == nil && a.Addr().Unmap().IsLoopback()
}

// requireTLS applies REQUIRETLS (RFC 8689 §4.2.1): a server whose name and certificate are
// known.
func (r *security) requireTLS(ctx context.Context, g *requirement, d *destination, s *server) *refusal {
	if !g.require {
		return nil
	}
	g.why += "; REQUIRETLS"
	if g.off {
		return never(notSafe, "the message requires TLS, and there is none to "+d.name+" ("+g.why+")")
	}
	g.mine = g.mine || !g.must || g.check == nil || g.soft
	g.must = true
	if g.check != nil && !g.soft {
		return nil
	}
	secure, err := !d.mx, error(nil)
	if d.mx {
		secure, err = r.resolver.Secure(ctx, d.name)
	}
	if err = cmp.Or(err, g.lost); err != nil && !secure {
		return g.insecure("the message requires TLS, and it is unknown now whether " + s.name + " is a server of " + d.name + ": " + err.Error())
	}
	if !secure {
		return never(notSafe, "the message requires TLS, and neither DNSSEC nor an MTA-STS policy confirms that "+s.name+" is a server of "+d.name)
	}
	g.soft = false
	name := s.name
	if d.addr.IsValid() {
		name = d.addr.String()
	}
	g.check = r.chain(nil, name)
	return nil
}
