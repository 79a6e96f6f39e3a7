package policy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// openNames opens LOCALNAMES or, without it, the file localnames. While that does not exist
// the built-in one is used. A file that cannot be read at the start, or that has a line which
// is not a domain, is an error: with the built-in one in its place every domain of ours would
// be answered 550. Later, the version that was read last stays in use.
func (p *Policy) openNames() (err error) {
	switch {
	case len(p.LocalNames) > 0:
		o := p.source
		o.Name = string(text.LocalNames)
		p.names, err = openSources(p.LocalNames, o, parseLocalNames, false)
	case p.LocalNamesFile != "":
		var f *config.File[words]
		if f, err = config.OpenFile(p.LocalNamesFile, parseLocalNames, config.FileOptions{Directory: p.Directory, Keeper: p.Keeper, Log: p.Log}); err == nil {
			p.names = sources{file{f}}
		}
	default:
		var builtIn words
		builtIn, err = parseLocalNames("", nil)
		p.names = sources{builtIn}
	}
	return err
}

// Domains are the domains of one class beside the local ones.
type Domains struct {
	Kind    text.Kind // virtualaliasdomains, virtualmailboxdomains or relaydomains
	Sources []string  // none: there are no such domains
}

// class is what Domains are opened as.
type class struct {
	kind    text.Kind
	sources sources
}

// classNames are the classes as operators read them.
var classNames = map[text.Kind]string{
	text.LocalNames: "local domain", text.VirtualAliasDomains: "virtual alias domain",
	text.VirtualMailboxDomains: "virtual mailbox domain", text.RelayDomains: "relay domain",
}

// ClassName names a class of domains; "" is none of ours.
func ClassName(kind text.Kind) string {
	if name := classNames[kind]; name != "" {
		return name
	}
	return "not a local domain"
}

func (p *Policy) openDomains() error {
	var errs []error
	for _, d := range p.Domains {
		o := p.source
		o.Name = string(d.Kind)
		list, err := openSources(d.Sources, o, func(name string, b []byte) (words, error) {
			out := words{}
			err := text.Scan(d.Kind, name, bytes.NewReader(b), func(e text.Entry) error {
				out[e.Key] = nil
				return nil
			})
			return out, err
		}, true)
		errs = append(errs, err)
		if len(list) > 0 {
			p.classes = append(p.classes, class{d.Kind, list})
		}
	}
	return errors.Join(errs...)
}

// IsLocal reports whether a recipient is in a domain of ours, of any class; an address without
// a domain is. An error means that a table cannot be asked now.
func (p *Policy) IsLocal(ctx context.Context, m address.Mailbox) (bool, error) {
	kind, err := p.ClassOf(ctx, m)
	return kind != "", err
}

// ClassOf returns the table of domains that a recipient's is in, as the router has them; "":
// none.
func (p *Policy) ClassOf(ctx context.Context, m address.Mailbox) (text.Kind, error) {
	if m.Domain == "" {
		return text.LocalNames, nil
	}
	domain, err := m.ASCIIDomain()
	if err != nil {
		return "", nil
	}
	if domain == p.host {
		return text.LocalNames, nil
	}
	if _, ok, err := p.names.lookup(ctx, domain); ok || err != nil {
		return text.LocalNames, err
	}
	for _, c := range p.classes {
		if _, ok, err := c.sources.lookup(ctx, domain); ok || err != nil {
			return c.kind, err
		}
		if c.kind != text.RelayDomains || domain[0] == '[' {
			continue
		}
		for d, more := domain, true; more; _, d, more = strings.Cut(d, ".") {
			if _, ok, err := c.sources.lookup(ctx, "."+d); ok || err != nil {
				return c.kind, err
			}
		}
	}
	return "", nil
}

// parseLocalNames reads the first word of each line as a domain; # begins a comment. No
// bytes at all, not even an empty slice, are a file that is not there.
func parseLocalNames(name string, b []byte) (words, error) {
	if b == nil {
		b = config.Default("localnames")
	}
	names := words{}
	sc := bufio.NewScanner(bytes.NewReader(b))
	n := 1
	var wrong config.Mistakes
	for ; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		domain, err := text.Domain(f[0])
		if err != nil {
			if wrong.Add(&config.Error{File: name, Line: n, Reason: "not a domain", Err: err}) {
				break
			}
			continue
		}
		names[domain] = nil
	}
	if err := sc.Err(); err != nil {
		wrong.Add(&config.Error{File: name, Line: n, Reason: "cannot read", Err: err})
	}
	return names, wrong.Err()
}
