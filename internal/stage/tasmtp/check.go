package tasmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp/discard"
	"zmailer/internal/stage/tasmtp/replies"
)

// CheckConfig reads everything that an agent reads when it starts or when it has use of
// it: zmailer.conf and the tables beside it, with the keys that they name. The error
// joins all problems.
func CheckConfig(c *config.Config) error { return check(c, true) }

// CheckStart returns the errors that keep an agent from starting.
func CheckStart(c *config.Config) error { return check(c, false) }

// check reads the settings and files; keys: the keys that dkim names, too, which are read when
// they are needed.
func check(c *config.Config, keys bool) error {
	err := errors.Join(checkRules(c, "replies", replies.Parse), checkRules(c, discardFile, discard.Parse))
	cfg, cerr := ConfigFrom(c)
	relay, rerr := NewRelay(cfg)
	if rerr == nil {
		if keys {
			rerr = relay.signer.keys.Check()
		}
		relay.Close()
	}
	return c.Locate(errors.Join(err, cerr, rerr))
}

// NamedFiles returns all files that agents read beside zmailer.conf, and the keys of DKIM.
func NamedFiles(c *config.Config) (files []string, err error) {
	cfg, err := ConfigFrom(c)
	if err != nil {
		return nil, err
	}
	cfg.Named = func(all []string) { files = all }
	relay, err := NewRelay(cfg)
	if err != nil {
		return nil, err
	}
	relay.Close()
	return files, nil
}

// checkRules reads a file of rules, which need not be there, as openRules does.
func checkRules[T any](c *config.Config, name string, parse func(file string, text []byte) (T, error)) error {
	path := c.Path(name)
	if path == "" {
		return nil
	}
	_, err := config.OpenFile(path, parse, config.FileOptions{Keeper: c.Keeper()})
	return err
}

// ErrNotSigned is returned by TestDKIM, which has printed why.
var ErrNotSigned = errors.New("mail of the domain is not signed as it is meant to be")

// TestDKIM prints which keys sign mail from a domain, and whether the name server has
// their public halves.
func TestDKIM(ctx context.Context, c *config.Config, domain string, out io.Writer) error {
	cfg, err := ConfigFrom(c)
	if err != nil {
		return err
	}
	relay, err := NewRelay(cfg)
	if err != nil {
		return err
	}
	defer relay.Close()
	if relay.signer.keys.Empty() {
		fmt.Fprintln(out, "the file dkim has no key: no mail is signed")
		return ErrNotSigned
	}
	keys := relay.signer.keys.For(domain)
	if len(keys) == 0 {
		fmt.Fprintf(out, "no line of the file dkim is for %s: its mail is not signed\n", domain)
		return ErrNotSigned
	}
	good := true
	for _, k := range keys {
		said, err := k.Kind()
		if err == nil {
			var texts []string
			if texts, err = relay.resolver.Text(ctx, k.Record()); err == nil {
				err = k.Published(texts)
			}
		}
		verdict := "published"
		if err != nil {
			good, verdict = false, err.Error()
		}
		if said == "" {
			said = "no key"
		}
		fmt.Fprintf(out, "line %d: d=%s s=%s, %s\n    %s: %s\n", k.Line, k.Domain, k.Selector, said, k.Record(), verdict)
	}
	if !good {
		return ErrNotSigned
	}
	return nil
}

// TestTLS prints what TLS is required towards a destination, [CHANNEL/]HOST, and why, for
// each of its servers. It looks up what mail would, reads the MTA-STS policies that the
// postoffice keeps, if there is one, and connects to no mail server. The error is a
// *config.Error.
func TestTLS(ctx context.Context, c Config, where string, out io.Writer) error {
	channel, host, ok := strings.Cut(where, "/")
	if !ok {
		channel, host = "smtp", where
	}
	if c.PostOffice != "" {
		if disk, err := durable.NewOS(c.PostOffice); err == nil {
			defer disk.Close()
			c.Security.Disk, c.Security.Look = disk, true
		}
	}
	r, err := NewRelay(c)
	if err != nil {
		return err
	}
	defer r.Close()
	d, err := parseDestination(channel, strings.ToLower(host), r.port)
	if err != nil {
		return &config.Error{File: "command line", Reason: where, Err: err}
	}
	t, err := r.security.terms(&d, "", false, nil)
	if err != nil {
		return &config.Error{File: c.Security.Credentials, Reason: "auth=", Err: err}
	}
	var b strings.Builder
	defer func() { io.WriteString(out, b.String()) }()
	if t.policy == nil {
		b.WriteString("a socket of this machine: no TLS\n")
		return nil
	}
	fmt.Fprintf(&b, "policy: %s (%s)\n", t.policy.Text, t.policy.Where)
	if t.account != nil {
		fmt.Fprintf(&b, "login: %s (%s)\n", t.account.User, t.account.Where)
	}
	if err := r.resolver.Trusted(); err != nil {
		fmt.Fprintf(&b, "DANE: %v\n", err)
	}
	for s, why := range r.servers(ctx, &d) {
		name := s.name
		if name == "" && len(s.addrs) > 0 {
			name = s.addrs[0].address
		}
		if name == "" { // its servers are not known
			name = d.name
		}
		if why == nil {
			var g *requirement
			if g, why = r.security.requirement(ctx, t, &d, &s); why == nil {
				fmt.Fprintf(&b, "%s: %s\n\t%s\n", name, g, g.why)
				continue
			}
		}
		fmt.Fprintf(&b, "%s: not used: %s %s\n", name, why.code, why.reply)
	}
	return nil
}

// String describes a requirement in words.
func (g *requirement) String() string {
	switch {
	case g.off:
		return "no TLS"
	case g.must && g.check != nil && !g.soft:
		return "TLS, verified; else mail waits"
	case g.must:
		return "TLS, not verified; else mail waits"
	case g.check != nil:
		return "TLS if it is offered; problems are counted"
	}
	return "TLS if it is offered, not verified"
}
