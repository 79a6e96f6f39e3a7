package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/policy/access"
)

// ErrQuestion means that what is asked of TestAccess is written wrong.
var ErrQuestion = errors.New("not a question")

// TestAccess tells a person what would become of a recipient, and by which rule. The
// question is words: client=192.0.2.1 from=a@b to=c@d, and any other key of a rule;
// dkim=pass, spf=, dmarc=, size= or rcpts= tell that the content was read. Nothing is
// taken, and nobody is connected.
func TestAccess(c Config, question []string, out io.Writer) error {
	f, err := askedFacts(question)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrQuestion, err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{Config: c, relay: newRelay(c.RelayNets, c.Hostname)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer s.cancel()
	if err := s.openAccess(); err != nil {
		return err
	}
	defer s.closeAccess()
	network := s.relay.trusts(f.Client)
	f.Trusted = network || f.User != ""
	if f.Local, err = s.relay.isLocal(s.ctx, f.To); err != nil {
		return err
	}
	n := &session{srv: s, client: client{addr: netip.AddrPortFrom(f.Client, 0), user: f.User}}
	n.facts = *f
	who := "a stranger"
	if network {
		who = "in RELAYNETS"
	}
	if f.User != "" {
		who += ", authenticated as " + f.User
	}
	ours := "in no domain of ours"
	if f.Local {
		ours = "in a domain of ours"
	}
	_, err = fmt.Fprintf(out, "client   %s\nto       <%s>, %s\n", who, f.To, ours)
	for _, line := range n.told() {
		if err == nil {
			_, err = fmt.Fprintln(out, line)
		}
	}
	return err
}

// told is what the rules and the checks say, a line each.
func (s *session) told() []string {
	if v := s.judgeSender(s.facts.From); v.Action != access.None {
		return []string{"rule     SENDERLOGIN", "verdict  " + sayVerdict(v)}
	}
	d, err := s.srv.access.Decide(s.srv.ctx, &s.facts)
	if err != nil {
		return []string{"rule     " + err.Error(), "verdict  " + sayVerdict(lookupTrouble)}
	}
	rule := d.By
	if d.Rule != "" {
		rule += ": " + d.Rule
	} else {
		rule += ": RELAYNETS and authenticated users anywhere, others to our domains"
	}
	lines := []string{"rule     " + rule, "verdict  " + sayVerdict(d.Verdict)}
	if d.Pending != "" {
		waits := strings.Split(d.Pending, ",")
		lines[1] = "verdict  taken so far; rules in these lines of access wait for the content: " + strings.Join(waits[:len(waits)-1], ", ")
	}
	if d.Action == access.Reject || d.Action == access.Defer || s.srv.rcpts == nil {
		return lines
	}
	a, err := s.srv.rcpts.Check(s.srv.ctx, s.facts.From, s.facts.To)
	switch {
	case err != nil:
		return append(lines, "rcpt     nobody knows: "+err.Error())
	case a.Known:
		return append(lines, "rcpt     the router knows it")
	}
	return append(lines, fmt.Sprintf("rcpt     refused: 550 %s %s", a.Code, a.Text))
}

// sayVerdict is a verdict for people.
func sayVerdict(v access.Verdict) string {
	switch v.Action {
	case access.Reject, access.Defer:
		code, st, text := v.Reply()
		return fmt.Sprintf("%s: %d %s %s", v.Action, code, st, text)
	case access.Freeze:
		return "freeze: taken, and held as freezer/..." + v.Cause
	}
	return v.Action.String()
}

// askedFacts reads the words of a question.
func askedFacts(words []string) (*access.Facts, error) {
	f := &access.Facts{Role: string(RoleMX), Rcpts: 1}
	to := false
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want key=value", word)
		}
		if err := ask(f, key, value); err != nil {
			return nil, fmt.Errorf("%s: %w", word, err)
		}
		to = to || key == "to"
	}
	if !to {
		return nil, errors.New("to whom? to=ADDRESS")
	}
	return f, nil
}

// ask puts one word of a question among the facts.
func ask(f *access.Facts, key, value string) (err error) {
	switch key {
	case "client":
		if value != "unix" {
			f.Client, err = netip.ParseAddr(value)
		}
	case "name":
		f.Name = value
	case "helo":
		f.Helo = value
	case "user":
		f.User = value
	case "cert":
		f.Cert = strings.ToLower(strings.ReplaceAll(value, ":", ""))
	case "role":
		f.Role = value
		if !slices.Contains([]Role{RoleMX, RoleSubmission, RoleSubmissions, RoleLMTP}, Role(value)) {
			err = errors.New("want mx, submission, submissions or lmtp")
		}
	case "tls":
		f.TLS = value == "yes"
		if value != "yes" && value != "no" {
			err = errors.New("want yes or no")
		}
	case "from":
		f.From, err = address.Parse("<" + strings.Trim(value, "<>") + ">")
	case "to":
		f.To, err = address.Parse("<" + strings.Trim(value, "<>") + ">")
		if err == nil && f.To.IsNull() {
			err = errors.New("that is nobody")
		}
	case "spf":
		f.SPF, f.Whole = value, true
	case "dkim":
		f.DKIM, f.Whole = value, true
	case "dmarc":
		f.DMARC, f.Whole = value, true
	case "size":
		f.Size, err = config.ParseSize(value)
		f.Whole = true
	case "rcpts":
		f.Rcpts, err = strconv.Atoi(value)
		f.Whole = true
	default:
		err = errors.New("no such key; there are client, name, role, helo, user, cert, tls, from, to, spf, dkim, dmarc, size, rcpts")
	}
	return err
}
