package smtpserver

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/table"
)

// senders says who may send as whom: the sources of SENDERLOGIN.
type senders struct{ sources []senderSource }

// senderSource gives the users who may use an address; ok is false if it does not name
// it.
type senderSource interface {
	users(ctx context.Context, key string) (list []string, ok bool, err error)
}

// openSenders opens the sources; nil: authenticated users send as whom they like.
func openSenders(sources []string, o table.Options) (*senders, error) {
	if len(sources) == 0 {
		return nil, nil
	}
	n := &senders{}
	for _, name := range sources {
		s, err := table.Parse(name, o.Dir)
		if err != nil {
			return nil, err
		}
		if s.Scheme == "file" {
			f, err := config.OpenFile(s.Rest, parseSenders, config.FileOptions{Required: true, Log: o.Log})
			if err != nil {
				return nil, err
			}
			n.sources = append(n.sources, senderFile{f})
			continue
		}
		o.Name = "senderlogin"
		t, err := table.Open(name, o)
		if err != nil {
			return nil, err
		}
		n.sources = append(n.sources, senderTable{t})
	}
	return n, nil
}

func (n *senders) close() error {
	if n == nil {
		return nil
	}
	for _, s := range n.sources {
		if t, ok := s.(senderTable); ok {
			if err := t.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// may tells whether a user may send as an address: one who stands behind it, behind its
// domain, or behind .domain for one above it. The first of these keys that there is
// counts. An error means that nobody knows now.
func (n *senders) may(ctx context.Context, user string, from address.Mailbox) (bool, error) {
	d, err := from.ASCIIDomain()
	if err != nil {
		return false, nil
	}
	keys := []string{strings.ToLower(from.Local) + "@" + d, d}
	for rest, more := d, d != ""; more; _, rest, more = strings.Cut(rest, ".") {
		keys = append(keys, "."+rest)
	}
	for _, key := range keys {
		for _, s := range n.sources {
			list, ok, err := s.users(ctx, key)
			if err != nil {
				return false, err
			}
			if ok {
				return slices.ContainsFunc(list, func(u string) bool { return u == "*" || strings.EqualFold(u, user) }), nil
			}
		}
	}
	return false, nil
}

// senderFile is a text file.
type senderFile struct {
	*config.File[map[string][]string]
}

func (f senderFile) users(_ context.Context, key string) ([]string, bool, error) {
	list, ok := f.Current()[key]
	return list, ok, nil
}

// senderTable is a source that is asked.
type senderTable struct{ table.Table }

func (t senderTable) users(ctx context.Context, key string) ([]string, bool, error) {
	v, ok, err := t.Lookup(ctx, key)
	return splitUsers(v.Text), ok, err
}

func splitUsers(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
}

// parseSenders reads lines "ADDRESS USER ...".
func parseSenders(name string, text []byte) (map[string][]string, error) {
	all := map[string][]string{}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		content, _, _ := strings.Cut(string(line), "#")
		f := splitUsers(strings.TrimSpace(content))
		if len(f) == 0 {
			continue
		}
		bad := func(format string, args ...any) (map[string][]string, error) {
			return nil, &config.Error{File: name, Line: number, Reason: fmt.Sprintf(format, args...)}
		}
		key, err := senderKey(strings.TrimSuffix(f[0], ":"))
		if err != nil {
			return bad("%v", err)
		}
		if len(f) == 1 {
			return bad("%s is followed by no user", f[0])
		}
		if _, twice := all[key]; twice {
			return bad("%s stands there twice", f[0])
		}
		all[key] = f[1:]
	}
	return all, nil
}

// senderKey is an address, @domain, domain or .domain as it is looked up.
func senderKey(s string) (string, error) {
	local, domain, at := strings.Cut(s, "@")
	if at && local != "" {
		m, err := address.Parse(s)
		if err != nil {
			return "", err
		}
		local, domain = strings.ToLower(m.Local)+"@", m.Domain
	} else if !at {
		local, domain = "", s
		if rest, below := strings.CutPrefix(s, "."); below {
			local, domain = ".", rest
		}
	}
	d, err := (address.Mailbox{Local: "x", Domain: domain}).ASCIIDomain()
	if err != nil || d == "" {
		return "", fmt.Errorf("%q is neither an address nor a domain", s)
	}
	return local + d, nil
}

// judgeSender decides whether the client may send as from; None: it may.
func (s *session) judgeSender(from address.Mailbox) access.Verdict {
	if s.client.user == "" || s.srv.senders == nil || from.IsNull() {
		return access.Verdict{}
	}
	ok, err := s.srv.senders.may(s.srv.ctx, s.client.user, from)
	switch {
	case err != nil:
		s.srv.tables.begin(s.srv.Log, "access-trouble", "reason", err, "client", s.client.String())
		return lookupTrouble
	case ok:
		s.srv.tables.end(s.srv.Log, "access-recovered")
		return access.Verdict{}
	}
	return access.Verdict{Action: access.Reject, Code: 553, Status: status.Code{Class: 5, Subject: 7, Detail: 1},
		Text: fmt.Sprintf("<%s> is not an address that %s may send from", from, s.client.user), By: "senderlogin"}
}
