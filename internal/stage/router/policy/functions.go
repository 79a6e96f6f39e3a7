package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

// callState is one call of the program, or its top level. Functions find it in the thread.
type callState struct {
	ctx  context.Context
	c    *Config
	prog *Program
	top  bool // the top level is run: tables may be declared, nothing may be asked
	env  *Env
	id   string // of the message
	// rates is nil while the program is only checked.
	rates *rates
	calls map[rateKey]int // of rate, for this message
	logs  int
}

const callKey = "call"

func callOf(t *starlark.Thread) *callState { return t.Local(callKey).(*callState) }

// caller returns the place in the program that called a function of ours.
func caller(t *starlark.Thread) syntax.Position {
	for i := 1; i < t.CallStackDepth(); i++ {
		if f := t.CallFrame(i); isProgram(f.Pos) {
			return f.Pos
		}
	}
	return syntax.Position{}
}

// isProgram reports whether a place is in a postmaster's file.
func isProgram(p syntax.Position) bool {
	return p.Filename() != "<builtin>"
}

func functions() starlark.StringDict {
	d := starlark.StringDict{}
	for name, do := range map[string]func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error){
		"table": declare, "is_local": isLocal, "resolve": resolved, "rate": rate, "log": logLine, "print": logLine,
		"domain": domain, "local_part": localPart, "in_network": inNetwork, "match": match,
	} {
		d[name] = starlark.NewBuiltin(name, do)
	}
	return d
}

// asking is an error where the top level asks what only a message can be asked.
func (s *callState) asking() error {
	if s.top {
		return errors.New("may be called for a message only, inside of a function")
	}
	return nil
}

// isLocal is is_local(address or domain).
func isLocal(t *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var s string
	if err := starlark.UnpackArgs(b.Name(), a, kw, "address", &s); err != nil {
		return nil, err
	}
	c := callOf(t)
	if err := c.asking(); err != nil {
		return nil, fmt.Errorf("is_local: %w", err)
	}
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		s = s[at+1:]
	}
	d, err := address.Mailbox{Local: "x", Domain: strings.TrimSuffix(s, ".")}.ASCIIDomain()
	if err != nil || d == "" {
		return starlark.False, nil
	}
	defer wait(t)()
	ok, err := c.env.IsLocal(c.ctx, d)
	return starlark.Bool(ok), err
}

// maxPlaces bounds what resolve gives.
const maxPlaces = 1000

// resolved is resolve(address): where the tables would send it.
func resolved(t *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var s string
	if err := starlark.UnpackArgs(b.Name(), a, kw, "address", &s); err != nil {
		return nil, err
	}
	c := callOf(t)
	if err := c.asking(); err != nil {
		return nil, fmt.Errorf("resolve: %w", err)
	}
	if m, err := address.Parse(s); err != nil || m.IsNull() {
		return nil, fmt.Errorf("resolve: %.100q is no address", s)
	}
	defer wait(t)()
	list := starlark.NewList(nil)
	err := c.env.Resolve(c.ctx, s, func(channel, host, user string) error {
		if list.Len() >= maxPlaces {
			return fmt.Errorf("more than %d places: a list; ask for its name in aliases or lists instead", maxPlaces)
		}
		return list.Append(&object{"place", channel + "!" + host + " " + user, starlark.StringDict{
			"channel": starlark.String(channel), "host": starlark.String(host), "address": starlark.String(user),
		}})
	})
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", s, err)
	}
	return list, nil
}

// rate is rate(key, limit, period="1h", n=1): counts n, once for a message however often it is
// routed, and reports whether the key has had more than limit in the period.
func rate(t *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	key, period := "", "1h"
	var limit int64
	n := int64(1)
	if err := starlark.UnpackArgs(b.Name(), a, kw, "key", &key, "limit", &limit, "period?", &period, "n?", &n); err != nil {
		return nil, err
	}
	c := callOf(t)
	if err := c.asking(); err != nil {
		return nil, fmt.Errorf("rate: %w", err)
	}
	d, err := config.ParseDuration(period)
	if err != nil {
		return nil, fmt.Errorf("rate: period %q: %w", period, err)
	}
	switch {
	case d < time.Second || d > 31*24*time.Hour:
		return nil, fmt.Errorf("rate: period %s: want 1s to 31d", period)
	case n < 0 || n > 1<<30 || limit < 0 || limit > 1<<40:
		return nil, fmt.Errorf("rate: %d of %d is out of range", n, limit)
	case len(key) > 500:
		return nil, fmt.Errorf("rate: key of %d bytes, at most 500", len(key))
	}
	if c.rates == nil {
		return starlark.False, nil
	}
	k := rateKey{key, d}
	c.calls[k]++
	return starlark.Bool(c.rates.count(k, n, c.id, c.calls[k], c.c.Now(), c.env.Play) > limit), nil
}

// maxLogs bounds what one call may log.
const maxLogs = 20

// logLine is log(text).
func logLine(t *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var v starlark.Value
	if err := starlark.UnpackArgs(b.Name(), a, kw, "text", &v); err != nil {
		return nil, err
	}
	s, ok := starlark.AsString(v)
	if !ok {
		s = v.String()
	}
	c := callOf(t)
	if c.logs++; c.logs > maxLogs || c.env != nil && c.env.Play || c.rates == nil {
		return starlark.None, nil
	}
	if len(s) > 1000 {
		s = s[:1000] + "..."
	}
	p := caller(t)
	c.c.Log.Info("policy-said", "id", c.id, "rule", (&Action{pos: p}).Rule(), "text", s)
	return starlark.None, nil
}

// domain is domain(address): lower case, A-labels; "" if it has none.
func domain(_ *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	m, err := parse(b, a, kw)
	return starlark.String(domainOf(m, "")), err
}

// localPart is local_part(address).
func localPart(_ *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	m, err := parse(b, a, kw)
	return starlark.String(m.Local), err
}

// parse reads the address that a function is given; one that is none has no parts.
func parse(b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (address.Mailbox, error) {
	var s string
	if err := starlark.UnpackArgs(b.Name(), a, kw, "address", &s); err != nil {
		return address.Mailbox{}, err
	}
	m, err := address.Parse(s)
	if err != nil {
		return address.Mailbox{}, nil
	}
	return m, nil
}

// inNetwork is in_network(ip, "192.0.2.0/24", ...).
func inNetwork(_ *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(kw) > 0 || len(a) < 2 {
		return nil, errors.New("in_network: want an IP address and networks like \"192.0.2.0/24\"")
	}
	var words []string
	for _, v := range a {
		s, ok := starlark.AsString(v)
		if !ok {
			return nil, fmt.Errorf("in_network: want strings, got a value of type %s", v.Type())
		}
		words = append(words, s)
	}
	ip, iperr := netip.ParseAddr(words[0])
	found := false
	for _, w := range words[1:] {
		net, err := netip.ParsePrefix(w)
		if err != nil {
			one, aerr := netip.ParseAddr(w)
			if aerr != nil {
				return nil, fmt.Errorf("in_network: %q is no network: want one like 192.0.2.0/24 or 2001:db8::/32", w)
			}
			net = netip.PrefixFrom(one, one.BitLen())
		}
		found = found || iperr == nil && net.Contains(ip.Unmap())
	}
	return starlark.Bool(found), nil
}
