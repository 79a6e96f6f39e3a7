package access

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/xrash/smetrics"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/smtpserver/policy/dnslist"
	"zmailer/internal/stage/smtpserver/policy/dnsq"
)

// restriction is a rule's test under the name that Postfix has for it.
type restriction struct {
	check func(ctx context.Context, f *Facts) (outcome, error)
	// once: its answer is asked for once for each recipient, also if rules that wait for the
	// content are decided later.
	once bool
}

// builder makes a restriction. arg is the word behind the name.
type builder struct {
	arg string // what is expected; "": none
	// options are the words KEY= that a rule may have beside conditions.
	options []string
	make    func(s *sources, arg string, o *ruleOptions) (*restriction, error)
}

// ruleOptions are the words of a rule that are no conditions.
type ruleOptions struct {
	timeout time.Duration
	action  string // default_action=
	context string // policy_context=
	state   string // protocol_state=
	// rejectCode and deferCode are of an address that is refused, or about which nothing is
	// known now; tempfail is the action then.
	rejectCode, deferCode int
	tempfail              string
}

func reply(a Action, code int, st status.Code, format string, args ...any) outcome {
	return outcome{verdict: Verdict{Action: a, Code: code, Status: st, Text: fmt.Sprintf(format, args...)}}
}

func detail(class, subject, detail uint16) status.Code {
	return status.Code{Class: class, Subject: subject, Detail: detail}
}

// plainTest makes a restriction without an argument that asks no one.
func plainTest(check func(f *Facts) outcome) builder {
	return builder{make: func(*sources, string, *ruleOptions) (*restriction, error) {
		return &restriction{check: func(_ context.Context, f *Facts) (outcome, error) { return check(f), nil }}, nil
	}}
}

// dnsTest makes a restriction without an argument that asks the DNS.
func dnsTest(check func(ctx context.Context, s *sources, f *Facts) (outcome, error)) builder {
	return builder{make: func(s *sources, _ string, _ *ruleOptions) (*restriction, error) {
		return &restriction{check: func(ctx context.Context, f *Facts) (outcome, error) { return check(ctx, s, f) }}, nil
	}}
}

// listTest makes a restriction that asks one DNS list about what key returns; "": it does
// not apply.
func listTest(permit bool, what string, key func(ctx context.Context, s *sources, f *Facts) (string, error)) builder {
	return builder{arg: "a DNS list, like zen.example=127.0.0.[2..11]", make: func(s *sources, arg string, _ *ruleOptions) (*restriction, error) {
		site, err := dnslist.ParseSite(arg)
		if err == nil && strings.Contains(arg, "*") {
			err = fmt.Errorf("%s: a rule has no weight; DNSBL_SITES has", arg)
		}
		if err != nil {
			return nil, err
		}
		list := dnslist.New(s.o.DNS, []dnslist.Site{site}, s.o.listTime(), s.o.logger()).Alarms(s.o.Keeper)
		return &restriction{check: func(ctx context.Context, f *Facts) (outcome, error) {
			name, err := key(ctx, s, f)
			if name == "" || err != nil {
				return outcome{}, nil // a client whose name is not known is not listed by it
			}
			query := func(zone string) string { return name + "." + zone }
			if a, err := netip.ParseAddr(name); err == nil {
				query = func(zone string) string { return dnsq.Reverse(a, zone) }
			}
			r := list.Name(ctx, query)
			if len(r.Listings) == 0 {
				return outcome{}, nil
			}
			if permit {
				return outcome{verdict: Verdict{Action: Accept}}, nil
			}
			full := name // of an address the reply has all
			switch what {
			case "Sender address":
				full = f.From.String()
			case "Recipient address":
				full = f.To.String()
			}
			return outcome{verdict: Blocked(ctx, list, site, what, full, query)}, nil
		}}, nil
	}}
}

// Blocked returns the verdict about what a list has, with the list's reason.
func Blocked(ctx context.Context, l *dnslist.Lists, site dnslist.Site, what, name string, query func(zone string) string) Verdict {
	text := fmt.Sprintf("Service unavailable; %s [%s] blocked using %s", what, name, site.Domain)
	if why := l.Reason(ctx, query(site.Domain)); why != "" {
		text += "; " + why
	}
	return Verdict{Action: Reject, Code: 554, Status: detail(5, 7, 1), Text: text}
}

// restrictions are the tests that a rule may name.
func restrictions() map[string]builder {
	client := func(_ context.Context, _ *sources, f *Facts) (string, error) {
		if !f.Client.IsValid() || f.Client.IsUnspecified() {
			return "", nil
		}
		return f.Client.Unmap().WithZone("").String(), nil
	}
	helo := func(_ context.Context, _ *sources, f *Facts) (string, error) { return hostname(f.Helo), nil }
	sender := func(_ context.Context, _ *sources, f *Facts) (string, error) { return domainOf(f.From), nil }
	recipient := func(_ context.Context, _ *sources, f *Facts) (string, error) { return domainOf(f.To), nil }
	verified := func(ctx context.Context, s *sources, f *Facts) (string, error) {
		_, name, err := s.clientName(ctx, f)
		return name, err
	}
	reverse := func(ctx context.Context, s *sources, f *Facts) (string, error) {
		name, _, err := s.clientName(ctx, f)
		return name, err
	}
	m := map[string]builder{
		"permit_mynetworks":         plainTest(func(f *Facts) outcome { return permitIf(f.Network) }),
		"permit_sasl_authenticated": plainTest(func(f *Facts) outcome { return permitIf(f.User != "") }),
		"permit_auth_destination":   plainTest(func(f *Facts) outcome { return permitIf(f.Local) }),
		"reject_unauth_destination": plainTest(func(f *Facts) outcome {
			if f.Local {
				return outcome{}
			}
			return reply(Reject, 554, detail(5, 7, 1), "<%s>: Relay access denied", f.To)
		}),
		"defer_unauth_destination": plainTest(func(f *Facts) outcome {
			if f.Local {
				return outcome{}
			}
			return reply(Defer, 454, detail(4, 7, 1), "<%s>: Relay access denied", f.To)
		}),
		"reject_invalid_helo_hostname": plainTest(func(f *Facts) outcome {
			if _, err := netip.ParseAddr(f.Helo); err == nil || isLiteral(f.Helo) || isHostname(f.Helo) {
				return outcome{}
			}
			what := "Invalid name"
			if strings.HasPrefix(f.Helo, "[") {
				what = "invalid ip address"
			}
			return reply(Reject, 501, detail(5, 5, 2), "<%s>: Helo command rejected: %s", f.Helo, what)
		}),
		"reject_non_fqdn_helo_hostname": plainTest(func(f *Facts) outcome {
			if isLiteral(f.Helo) || isHostname(f.Helo) && strings.Contains(strings.TrimSuffix(f.Helo, "."), ".") {
				return outcome{}
			}
			return reply(Reject, 504, detail(5, 5, 2), "<%s>: Helo command rejected: need fully-qualified hostname", f.Helo)
		}),
		"reject_non_fqdn_sender": plainTest(func(f *Facts) outcome {
			if f.From.IsNull() || isQualified(f.From) {
				return outcome{}
			}
			return reply(Reject, 504, detail(5, 5, 2), "<%s>: Sender address rejected: need fully-qualified address", f.From)
		}),
		"reject_non_fqdn_recipient": plainTest(func(f *Facts) outcome {
			if isQualified(f.To) || f.To.Domain == "" && strings.EqualFold(f.To.Local, "postmaster") {
				return outcome{}
			}
			return reply(Reject, 504, detail(5, 5, 2), "<%s>: Recipient address rejected: need fully-qualified address", f.To)
		}),
		"reject_unknown_helo_hostname": dnsTest(func(ctx context.Context, s *sources, f *Facts) (outcome, error) {
			if isLiteral(f.Helo) {
				return outcome{}, nil
			}
			text := "<" + f.Helo + ">: Helo command rejected: Host not found"
			if !isHostname(f.Helo) {
				return reply(Defer, 450, detail(4, 7, 1), "%s", text), nil
			}
			return s.unknown(ctx, hostname(f.Helo), reply(Defer, 450, detail(4, 7, 1), "%s", text), outcome{}), nil
		}),
		"reject_unknown_sender_domain": dnsTest(func(ctx context.Context, s *sources, f *Facts) (outcome, error) {
			if s.isOurs(ctx, f.From) {
				return outcome{}, nil
			}
			text := "<" + f.From.String() + ">: Sender address rejected: Domain "
			return s.unknown(ctx, domainOf(f.From), reply(Defer, 450, detail(4, 1, 8), "%snot found", text),
				reply(Reject, 550, detail(5, 7, 27), "%s%s does not accept mail (nullMX)", text, f.From.Domain)), nil
		}),
		"reject_unknown_recipient_domain": dnsTest(func(ctx context.Context, s *sources, f *Facts) (outcome, error) {
			if f.Local {
				return outcome{}, nil
			}
			text := "<" + f.To.String() + ">: Recipient address rejected: Domain "
			return s.unknown(ctx, domainOf(f.To), reply(Defer, 450, detail(4, 1, 2), "%snot found", text),
				reply(Reject, 556, detail(5, 1, 10), "%s%s does not accept mail (nullMX)", text, f.To.Domain)), nil
		}),
		"reject_unknown_client_hostname": dnsTest(func(ctx context.Context, s *sources, f *Facts) (outcome, error) {
			if !f.Client.IsValid() || f.Name != "" {
				return outcome{}, nil
			}
			if _, name, err := s.clientName(ctx, f); err == nil && name != "" {
				return outcome{}, nil
			}
			return reply(Defer, 450, detail(4, 7, 25), "Client host rejected: cannot find your hostname, [%s]", f.Client.Unmap()), nil
		}),
		"reject_unknown_reverse_client_hostname": dnsTest(func(ctx context.Context, s *sources, f *Facts) (outcome, error) {
			if !f.Client.IsValid() || f.Name != "" {
				return outcome{}, nil
			}
			if name, _, err := s.clientName(ctx, f); err == nil && name != "" {
				return outcome{}, nil
			}
			return reply(Defer, 450, detail(4, 7, 1), "Client host rejected: cannot find your reverse hostname, [%s]", f.Client.Unmap()), nil
		}),
		"reject_rbl_client":           listTest(false, "Client host", client),
		"permit_dnswl_client":         listTest(true, "", client),
		"reject_rhsbl_client":         listTest(false, "Client host", verified),
		"permit_rhswl_client":         listTest(true, "", verified),
		"reject_rhsbl_reverse_client": listTest(false, "Client host", reverse),
		"reject_rhsbl_helo":           listTest(false, "Helo command", helo),
		"reject_rhsbl_sender":         listTest(false, "Sender address", sender),
		"reject_rhsbl_recipient":      listTest(false, "Recipient address", recipient),
		"check_policy_service":        policyService(),
		"reject_unlisted_sender":      addressTest(false, "Sender address"),
		"reject_unlisted_recipient":   addressTest(false, "Recipient address"),
		"reject_unverified_sender":    addressTest(true, "Sender address"),
		"reject_unverified_recipient": addressTest(true, "Recipient address"),
	}
	for name, t := range map[string]struct{ key, class string }{
		"check_client_access": {"client", "Client host"}, "check_helo_access": {"helo", "Helo command"},
		"check_sender_access": {"from", "Sender address"}, "check_recipient_access": {"to", "Recipient address"},
	} {
		m[name] = accessTable(t.key, t.class)
	}
	// The names before Postfix 2.3.
	for old, name := range map[string]string{
		"reject_unknown_client": "reject_unknown_client_hostname", "reject_unknown_hostname": "reject_unknown_helo_hostname",
		"reject_invalid_hostname": "reject_invalid_helo_hostname", "reject_non_fqdn_hostname": "reject_non_fqdn_helo_hostname",
		"check_relay_domains": "reject_unauth_destination",
	} {
		m[old] = m[name]
	}
	return m
}

func permitIf(ok bool) outcome {
	if ok {
		return outcome{verdict: Verdict{Action: Accept}}
	}
	return outcome{}
}

// unknown returns the outcome for a domain that has no record for mail. While the DNS does not
// answer, and nothing else refuses the mail, it is deferred.
func (s *sources) unknown(ctx context.Context, domain string, missing, null outcome) outcome {
	if domain == "" {
		return outcome{}
	}
	switch has, err := s.o.DNS.MailDomain(ctx, domain); {
	case err != nil:
		missing.verdict.Action, missing.ifPermit, missing.trouble = Defer, true, true
		return missing
	case has == dnsq.NoRecord:
		return missing
	case has == dnsq.NullMX && null.verdict.Action != None:
		return null
	}
	return outcome{}
}

// clientName returns the client's name by its PTR record, and the one that leads back to it.
func (s *sources) clientName(ctx context.Context, f *Facts) (reverse, verified string, err error) {
	if f.Name != "" {
		return f.Name, f.Name, nil
	}
	if !f.Client.IsValid() || f.Client.IsUnspecified() {
		return "", "", nil
	}
	return s.o.DNS.ClientName(ctx, f.Client)
}

// isOurs reports whether a sender is in a domain of ours. One that cannot be looked up now is
// looked up in the DNS.
func (s *sources) isOurs(ctx context.Context, m address.Mailbox) bool {
	if s.o.IsLocal == nil || m.IsNull() {
		return false
	}
	ok, err := s.o.IsLocal(ctx, m)
	return err == nil && ok
}

// domainOf returns the domain of an address as the DNS has it; "": it has none, or an address
// literal.
func domainOf(m address.Mailbox) string {
	d, err := m.ASCIIDomain()
	if err != nil || isLiteral(d) {
		return ""
	}
	return strings.TrimSuffix(d, ".")
}

func isQualified(m address.Mailbox) bool {
	d, err := m.ASCIIDomain()
	return err == nil && (isLiteral(d) || isHostname(d) && strings.Contains(strings.TrimSuffix(d, "."), "."))
}

// isLiteral reports whether a name is an address in brackets (RFC 5321 section 4.1.3).
func isLiteral(name string) bool {
	inside, ok := strings.CutPrefix(name, "[")
	if !ok || !strings.HasSuffix(inside, "]") {
		return false
	}
	inside = strings.TrimSuffix(inside, "]")
	if v6, ok := cutPrefixFold(inside, "IPv6:"); ok {
		inside = v6
	}
	_, err := netip.ParseAddr(inside)
	return err == nil
}

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix) {
		return s[len(prefix):], true
	}
	return s, false
}

// hostname returns a name in the form in which it is looked up; "": it is none.
func hostname(name string) string {
	if !isHostname(name) {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// isHostname reports whether a name has the form of a host name, as Postfix checks it: letters,
// digits, hyphens and underscores in labels of at most 63, not digits and dots alone.
func isHostname(name string) bool {
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > 255 || strings.Trim(name, "0123456789.") == "" {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

// unknownAction explains the first word of a line that no rule begins with.
func unknownAction(words []string) error {
	bad := func(what string) error { return fmt.Errorf("unknown action %q: %s", words[0], what) }
	if name, comma := strings.CutSuffix(words[0], ","); comma {
		return bad("each rule has a line of its own, without a comma: " + name)
	}
	if len(words) > 1 && slices.Contains([]string{"OK", "REJECT", "DUNNO", "DISCARD", "HOLD", "DEFER", "DEFER_IF_PERMIT", "PERMIT", "RELAY", "WARN"}, words[1]) {
		return bad("KEY ACTION is a line of a table that a rule names: check_client_access FILE, check_sender_access FILE, ... (docs/access.md)")
	}
	best, least := "", len(words[0])
	for _, name := range slices.Concat([]string{"accept", "relay", "reject", "defer", "freeze", "greylist", "etrn"}, slices.Sorted(maps.Keys(restrictions()))) {
		if d := smetrics.WagnerFischer(words[0], name, 1, 1, 1); d < least {
			best, least = name, d
		}
	}
	if least <= 1+len(best)/6 {
		return bad("did you mean " + best + "?")
	}
	return bad("want accept, relay, reject, defer, freeze, greylist, etrn or a restriction of Postfix (docs/access.md lists those that there are)")
}

func (o *Options) listTime() time.Duration { return cmp.Or(o.ListTime, DefaultListTime) }

// DefaultListTime is how long a DNS list may take to answer (postscreen_dnsbl_timeout).
const DefaultListTime = 10 * time.Second
