package policy

import (
	"bufio"
	"bytes"
	"context"
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
		if f, err = config.OpenFile(p.LocalNamesFile, parseLocalNames, config.FileOptions{Log: p.Log}); err == nil {
			p.names = sources{file{f}}
		}
	default:
		var builtIn words
		builtIn, err = parseLocalNames("", nil)
		p.names = sources{builtIn}
	}
	return err
}

// IsLocal reports whether a recipient is in a domain of ours; an address without a domain
// is. An error means that a table cannot be asked now.
func (p *Policy) IsLocal(ctx context.Context, m address.Mailbox) (bool, error) {
	if m.Domain == "" {
		return true, nil
	}
	domain, err := m.ASCIIDomain()
	if err != nil {
		return false, nil
	}
	if domain == p.host {
		return true, nil
	}
	_, ok, err := p.names.lookup(ctx, domain)
	return ok, err
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
	for ; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		domain, err := text.Domain(f[0])
		if err != nil {
			return nil, &config.Error{File: name, Line: n, Reason: "not a domain", Err: err}
		}
		names[domain] = nil
	}
	if err := sc.Err(); err != nil {
		return nil, &config.Error{File: name, Line: n, Reason: "cannot read", Err: err}
	}
	return names, nil
}
