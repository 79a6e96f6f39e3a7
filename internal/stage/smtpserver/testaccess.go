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
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
)

// ErrQuestion means that the arguments of TestAccess are wrong.
var ErrQuestion = errors.New("bad arguments")

// TestAccess prints what would become of a recipient, and by which rule. The arguments are
// client=192.0.2.1 from=a@b to=c@d, and any other key of a rule; dkim=pass, spf=, dmarc=,
// size= or rcpts= mean that the content was read. Nothing is stored, and no connection is
// made but to tables and the router.
func TestAccess(c Config, args []string, out io.Writer) error {
	f, err := parseFacts(args)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrQuestion, err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	// A bad file is to be reported, and not replaced by the copy of the last good one.
	c.Access.Keeper, c.Access.Source.Keeper = nil, nil
	ctx := context.Background()
	p, err := policy.Open(c.policy())
	if err != nil {
		return err
	}
	defer p.Close()
	network := p.IsRelayNet(f.Client)
	f.Trusted = network || f.User != ""
	class, err := p.ClassOf(ctx, f.To)
	if err != nil {
		return err
	}
	f.Local = class != ""
	who := "not in RELAYNETS"
	if network {
		who = "in RELAYNETS"
	}
	if f.User != "" {
		who += ", authenticated as " + f.User
	}
	lines := append([]string{"client   " + who, fmt.Sprintf("to       <%s>, %s", f.To, policy.ClassName(class))}, explain(ctx, p, f)...)
	_, err = io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}

// explain returns the decision of rules and checks, a line each.
func explain(ctx context.Context, p *policy.Policy, f *access.Facts) []string {
	if v := p.CheckSender(ctx, f, session.Client{}); v.Action != access.None {
		return []string{"rule     SENDERLOGIN", "verdict  " + describe(v)}
	}
	x, err := p.Explain(ctx, f)
	if err != nil {
		return []string{"rule     " + err.Error(), "verdict  " + describe(x.Verdict)}
	}
	rule := x.By
	if x.Rule != "" {
		rule += ": " + x.Rule
	} else {
		rule += ": RELAYNETS and authenticated users anywhere, others to local domains"
	}
	lines := []string{"rule     " + rule, "verdict  " + describe(x.Verdict)}
	if x.Pending != "" {
		waits := strings.Split(x.Pending, ",")
		lines[1] = "verdict  accept so far; these lines of access wait for the content: " + strings.Join(waits[:len(waits)-1], ", ")
	}
	switch {
	case x.RouterErr != nil:
		return append(lines, "rcpt     the router cannot be asked: "+x.RouterErr.Error())
	case !x.Asked:
		return lines
	case x.Router.Known:
		return append(lines, "rcpt     known to the router")
	}
	return append(lines, fmt.Sprintf("rcpt     refused: 550 %s %s", x.Router.Code, x.Router.Text))
}

// describe returns a verdict for operators.
func describe(v access.Verdict) string {
	switch v.Action {
	case access.Reject, access.Defer:
		code, st, text := v.Reply()
		return fmt.Sprintf("%s: %d %s %s", v.Action, code, st, text)
	case access.Freeze:
		return "freeze: accepted, and held as freezer/..." + v.Cause
	}
	return v.Action.String()
}

// parseFacts reads KEY=VALUE arguments.
func parseFacts(words []string) (*access.Facts, error) {
	f := &access.Facts{Role: string(session.RoleMX), Rcpts: 1}
	to := false
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want key=value", word)
		}
		if err := setFact(f, key, value); err != nil {
			return nil, fmt.Errorf("%s: %w", word, err)
		}
		to = to || key == "to"
	}
	if !to {
		return nil, errors.New("to=ADDRESS is missing")
	}
	return f, nil
}

// setFact sets one fact.
func setFact(f *access.Facts, key, value string) (err error) {
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
		if !slices.Contains(session.Roles(), session.Role(value)) {
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
			err = errors.New("the null address is no recipient")
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
		err = errors.New("unknown key; there are client, name, role, helo, user, cert, tls, from, to, spf, dkim, dmarc, size, rcpts")
	}
	return err
}
