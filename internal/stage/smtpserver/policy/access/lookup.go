package access

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
)

// accessTable makes check_client_access and the like: a table in the form of access(5), a key
// and an action in each line.
func accessTable(key, class string) builder {
	return builder{arg: "a table, like file:sender_access", make: func(s *sources, arg string, _ *ruleOptions) (*restriction, error) {
		find, err := s.actions(arg, key)
		if err != nil {
			return nil, err
		}
		return &restriction{check: func(ctx context.Context, f *Facts) (outcome, error) {
			keys, object := s.keys(ctx, key, f)
			text, ok, err := find(ctx, keys)
			if !ok || err != nil {
				return outcome{}, err
			}
			out, err := parseAction(text, object, class)
			if err != nil {
				return outcome{}, fmt.Errorf("%s: %w", arg, err)
			}
			return out, nil
		}}, nil
	}}
}

// subject is what a table is asked about: keys in their order, and the text that expressions
// and networks are compared with.
type subject struct {
	keys []string
	text string
	addr netip.Addr
}

// keys returns what a table is asked for about the client, the greeting, the sender or the
// recipient, and that for the reply.
func (s *sources) keys(ctx context.Context, key string, f *Facts) (list []subject, object string) {
	switch key {
	case "client":
		_, name, _ := s.clientName(ctx, f) // a name that cannot be looked up is unknown
		if name == "" {
			name = "unknown" // Postfix looks that up, too
		}
		list = append(list, subject{keys: domainKeys(name), text: name})
		if f.Client.IsValid() {
			a := f.Client.Unmap().WithZone("")
			keys := []string{a.String()}
			sep := "." // access(5): 192.168.1, 192.168, 192
			if a.Is6() {
				sep = ":" // 2001:db8:1, 2001:db8, 2001
			}
			for rest, _ := cutLast(a.String(), sep); rest != ""; rest, _ = cutLast(rest, sep) {
				keys = append(keys, rest)
			}
			list = append(list, subject{keys: keys, text: a.String(), addr: a})
		}
		return list, "<" + name + "[" + f.Client.Unmap().String() + "]>"
	case "helo":
		name := strings.ToLower(strings.TrimSuffix(f.Helo, "."))
		return []subject{{keys: domainKeys(name), text: f.Helo}}, "<" + f.Helo + ">"
	}
	m := f.From
	if key == "to" {
		m = f.To
	}
	return []subject{{keys: s.mailboxKeys(m), text: mailboxText(m)}}, "<" + m.String() + ">"
}

// cutLast returns what is before the last sep; "": there is none.
func cutLast(s, sep string) (before string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", false
	}
	return s[:i], true
}

func mailboxText(m address.Mailbox) string {
	if m.IsNull() {
		return "<>"
	}
	return mailboxKey(m)
}

// mailboxKeys returns the keys of an address in the order of access(5): the address, the same without
// its tag, the domain and those above it, user+tag@, user@.
func (s *sources) mailboxKeys(m address.Mailbox) []string {
	if m.IsNull() {
		return []string{"<>"}
	}
	key := mailboxKey(m)
	local, domain := key[:strings.LastIndexByte(key, '@')], key[strings.LastIndexByte(key, '@')+1:]
	keys, user := []string{key}, s.withoutTag(local)
	if user != local {
		keys = append(keys, user+"@"+domain)
	}
	keys = append(append(keys, domainKeys(domain)...), local+"@")
	if user != local {
		keys = append(keys, user+"@")
	}
	return keys
}

// withoutTag returns a local part without +tag, by the characters of SUBADDRESS.
func (s *sources) withoutTag(local string) string {
	if i := strings.IndexAny(local, s.o.Subaddress); i > 0 && local[0] != '"' {
		return local[:i]
	}
	return local
}

// domainKeys returns a name and those above it, each also with a dot before it: in an access
// table example.com is that and all below it, unless parent_domain_matches_subdomains says
// otherwise.
func domainKeys(d string) (keys []string) {
	for more := d != ""; more; _, d, more = strings.Cut(d, ".") {
		keys = append(keys, d, "."+d)
	}
	return keys
}

// finder returns the action that a table has.
type finder func(ctx context.Context, list []subject) (string, bool, error)

// actions opens a table of actions.
func (s *sources) actions(source, key string) (finder, error) {
	if s.instead != nil {
		_, err := s.instead(source, key)
		return func(context.Context, []subject) (string, bool, error) { return "", false, nil }, err
	}
	from, err := table.Parse(source, s.o.Dir)
	if err != nil {
		return nil, err
	}
	if from.Scheme == "file" {
		f, err := config.OpenFile(from.Rest, parseActions(key), config.FileOptions{Required: true, Keeper: s.o.Keeper, Now: s.o.Now, Log: s.o.Log})
		if err != nil {
			return nil, err
		}
		return func(_ context.Context, list []subject) (string, bool, error) {
			text, ok := f.Current().find(list)
			return text, ok, nil
		}, nil
	}
	set, err := s.set(source, key)
	if err != nil {
		return nil, err
	}
	t := set.(asked) // every source that is no file is
	return func(ctx context.Context, list []subject) (string, bool, error) {
		for _, one := range list {
			if v, ok, err := t.first(ctx, one.keys); ok || err != nil {
				return v.Text, ok, err
			}
		}
		return "", false, nil
	}, nil
}

// actionList is a file of keys and actions.
type actionList struct {
	exact   map[string]string // addresses, user@, <>, and names: they count for all below them, too
	ordered []pattern         // networks and expressions, in the order of the file
	// cidr: there are networks, so that addresses are tried in the order of the file, too.
	cidr bool
}

type pattern struct {
	net    netip.Prefix
	expr   *regexp.Regexp
	not    bool // it is met by what expr does not match, or net does not have
	action string
}

func (l *actionList) find(list []subject) (string, bool) {
	for _, one := range list {
		for _, k := range one.keys {
			if text, ok := l.exact[k]; ok && !(l.cidr && one.addr.IsValid() && k == one.text) {
				return text, true
			}
		}
		for _, p := range l.ordered {
			switch {
			case p.expr != nil && p.expr.MatchString(one.text) != p.not,
				// cidr_table(5): !192.0.2.0/24 is met by no IPv6 address, either.
				l.cidr && p.expr == nil && one.addr.IsValid() && p.net.Addr().Is4() == one.addr.Is4() && p.net.Contains(one.addr) != p.not:
				return p.action, true
			}
		}
	}
	return "", false
}

// parseActions reads lines "KEY ACTION": # begins a comment, a line that begins with a blank
// continues the one above.
func parseActions(key string) func(name string, text []byte) (*actionList, error) {
	return func(name string, text []byte) (*actionList, error) {
		l := &actionList{exact: map[string]string{}}
		number, start, pending := 0, 0, ""
		var wrong config.Mistakes
		add := func() (enough bool) {
			line := pending
			pending = ""
			if line == "" {
				return false
			}
			if err := l.add(key, line); err != nil {
				return wrong.Add(&config.Error{File: name, Line: start, Reason: err.Error()})
			}
			return false
		}
		for b := range bytes.Lines(text) {
			number++
			line := strings.TrimRight(string(b), " \t\r\n")
			trimmed := strings.TrimLeft(line, " \t")
			switch {
			case trimmed == "" || trimmed[0] == '#':
				continue
			case trimmed != line && pending != "":
				pending += " " + trimmed
				continue
			}
			if add() {
				break
			}
			pending, start = trimmed, number
		}
		add()
		return l, wrong.Err()
	}
}

func (l *actionList) add(key, line string) error {
	word, action, err := cutKey(line)
	if err != nil {
		return err
	}
	if action == "" {
		return fmt.Errorf("%q has no action: want KEY ACTION, like example.com REJECT", word)
	}
	if _, err := parseAction(action, "", ""); err != nil {
		return err
	}
	if text, not := strings.CutPrefix(word, "!"); text != "" && text[0] == '/' {
		expr, err := compile(text)
		if err != nil {
			return err
		}
		l.ordered = append(l.ordered, pattern{expr: expr, not: not, action: action})
		return nil
	}
	word = strings.ToLower(word)
	if key == "client" {
		network, not := strings.CutPrefix(word, "!")
		if n, err := netip.ParsePrefix(network); err == nil {
			l.ordered, l.cidr = append(l.ordered, pattern{net: n.Masked(), not: not, action: action}), true
			return nil
		}
		if a, err := netip.ParseAddr(network); err == nil {
			a = a.Unmap().WithZone("")
			l.ordered, l.cidr = append(l.ordered, pattern{net: netip.PrefixFrom(a, a.BitLen()), not: not, action: action}), l.cidr || not
			if not {
				return nil
			}
			word = a.String()
		}
	}
	if _, double := l.exact[word]; !double { // access(5), hash: the first one counts
		l.exact[word] = action
	}
	return nil
}

// cutKey cuts a line into its key, which may be an expression with blanks, and the rest.
func cutKey(line string) (word, rest string, err error) {
	begin := len(line) - len(strings.TrimPrefix(line, "!"))
	if !strings.HasPrefix(line[begin:], "/") {
		i := strings.IndexAny(line, " \t")
		if i < 0 {
			return line, "", nil
		}
		return line[:i], strings.TrimLeft(line[i:], " \t"), nil
	}
	end := begin + exprEnd(line[begin:])
	if end < begin {
		return "", "", fmt.Errorf("%q has no closing /", line)
	}
	word, rest = line[:end], line[end:]
	flags := len(rest) - len(strings.TrimLeft(rest, "i"))
	return word + rest[:flags], strings.TrimLeft(rest[flags:], " \t"), nil
}

// exprEnd returns where /EXPRESSION/ at the begin of a text ends; -1: nowhere.
func exprEnd(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '/':
			return i + 1
		}
	}
	return -1
}

// maxExpr bounds an expression. Bytes.
const maxExpr = 2000

// compile reads /EXPRESSION/. As in Postfix, case does not count unless it ends in /i, which
// toggles that. The expressions are those of RE2: the time is linear, whatever the text.
func compile(word string) (*regexp.Regexp, error) {
	end := exprEnd(word)
	flags := ""
	if end > 0 {
		flags = word[end:]
	}
	switch {
	case end < 0:
		return nil, fmt.Errorf("%q has no closing /", word)
	case len(word) > maxExpr:
		return nil, fmt.Errorf("the expression is longer than %d bytes", maxExpr)
	case flags != "" && flags != "i":
		return nil, fmt.Errorf("unknown flags %q of the expression %s: there is only i", flags, strconv.Quote(word))
	}
	expr := strings.ReplaceAll(word[1:end-1], `\/`, `/`)
	if flags == "" {
		expr = "(?i)" + expr
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("the expression %s: %w", word[:end], err)
	}
	return re, nil
}
