package checks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/internal/mail/envelope"
)

const (
	// maxSignatures are checked of one message; each costs a question and a digest of
	// the whole body.
	maxSignatures = 5
	// maxBlank is the longest run of blanks and line ends that is digested. The library
	// keeps such a run in memory and goes over it again at each read, because those at the
	// end of a message do not count. Bytes.
	maxBlank = 256 << 10
	// maxSignature is the longest field with a signature, and maxNames how many fields it
	// may name. Bytes.
	maxSignature = 16 << 10
	maxNames     = 500
	// maxHeader is the longest header that is given to the library, which keeps it in
	// memory. Bytes.
	maxHeader = 1 << 20
)

// Signature is the result for one DKIM-Signature field.
type Signature struct {
	Value      Value
	Domain     string // d=
	Identifier string // i=
}

// DKIM verifies a message's signatures. content gives all its bytes as they came, header
// too, but with LF line ends; it is asked for if there is a signature. The error is
// content's.
func (c *Checker) DKIM(ctx context.Context, header []envelope.Field, content func() (io.Reader, error)) ([]Signature, error) {
	if !c.cfg.DKIM || !signed(header) {
		return nil, nil
	}
	if hostile(header) {
		return []Signature{{Value: PermError}}, nil
	}
	r, err := content()
	if err != nil {
		return nil, err
	}
	g := &guard{r: r, line: true}
	k := keys{records: map[string]tagList{}}
	options := &dkim.VerifyOptions{
		MaxVerifications: maxSignatures,
		LookupTXT:        func(name string) ([]string, error) { return k.note(name)(c.dns.LookupTXT(ctx, name)) },
	}
	found, err := dkim.VerifyWithOptions(wireForm(g), options)
	if g.err != nil {
		return nil, g.err
	}
	if err != nil && !errors.Is(err, dkim.ErrTooManySignatures) {
		// A header that the library cannot read; the content's reader has not erred.
		return []Signature{{Value: PermError}}, nil
	}
	results := make([]Signature, 0, len(found))
	fields := signatures(header)
	for i, v := range found {
		tags := tagList{}
		if i < len(fields) {
			tags = fields[i]
		}
		s := Signature{Domain: strings.ToLower(v.Domain), Identifier: v.Identifier}
		switch {
		case g.over:
			s.Value = Neutral
		case v.Err == nil && k.strict(tags["s"], s.Domain) && !strings.HasSuffix(strings.ToLower(v.Identifier), "@"+s.Domain):
			s.Value = PermError // the key is not for names below its domain: RFC 6376 section 3.6.1
		case v.Err == nil:
			s.Value = Pass
		case dkim.IsTempFail(v.Err):
			s.Value = TempError
		case dkim.IsPermFail(v.Err):
			s.Value = PermError
		case tags["l"] != "":
			// RFC 6376 section 3.5: a verifier may ignore a signature of a part of the body, to
			// which anyone can append. The library does, whatever the length is.
			s.Value = Policy
		default:
			s.Value = Fail
		}
		results = append(results, s)
	}
	return results, nil
}

// tagList is the tags of a signature or a key record, without blanks (RFC 6376 section 3.2).
type tagList map[string]string

func parseTags(text string) tagList {
	tags := tagList{}
	for part := range strings.SplitSeq(text, ";") {
		name, value, _ := strings.Cut(part, "=")
		tags[strings.TrimSpace(name)] = strings.Join(strings.Fields(value), "")
	}
	return tags
}

// signatures returns the tags of each signature, in the order of the header.
func signatures(header []envelope.Field) (list []tagList) {
	for _, f := range header {
		if strings.EqualFold(f.Name, "DKIM-Signature") && len(list) < maxSignatures {
			list = append(list, parseTags(f.Value()))
		}
	}
	return list
}

// keys are the key records that were looked up. The library asks for several at once.
type keys struct {
	mu      sync.Mutex
	records map[string]tagList
}

// note keeps the record of a name.
func (k *keys) note(name string) func([]string, error) ([]string, error) {
	return func(texts []string, err error) ([]string, error) {
		if len(texts) == 1 {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.records[strings.ToLower(name)] = parseTags(texts[0])
		}
		return texts, err
	}
}

// strict reports whether a key has the flag s.
func (k *keys) strict(selector, domain string) bool {
	flags := k.records[strings.ToLower(selector+"._domainkey."+domain)]["t"]
	return slices.Contains(strings.Split(flags, ":"), "s")
}

// hostile reports whether a signature is long or names many fields: the library searches
// all of the header for each of them.
func hostile(header []envelope.Field) bool {
	return slices.ContainsFunc(header, func(f envelope.Field) bool {
		return strings.EqualFold(f.Name, "DKIM-Signature") && (len(f.Raw) > maxSignature || bytes.Count(f.Raw, []byte{':'}) > maxNames)
	})
}

func signed(header []envelope.Field) bool {
	return slices.ContainsFunc(header, func(f envelope.Field) bool { return strings.EqualFold(f.Name, "DKIM-Signature") })
}

// guard ends a content that would cost the library too much, and one whose reader fails:
// the library would leak goroutines.
type guard struct {
	r      io.Reader
	header int  // bytes so far; -1: it has ended
	line   bool // the next byte begins a line
	run    int  // blanks and line ends in a row
	over   bool
	err    error
}

func (g *guard) Read(p []byte) (int, error) {
	if g.over || g.err != nil {
		return 0, io.EOF
	}
	n, err := g.r.Read(p)
	for _, b := range p[:n] {
		if g.header >= 0 {
			g.header++
			g.over = g.over || g.header > maxHeader
			if b == '\n' && g.line {
				g.header = -1
			}
			g.line = b == '\n'
		}
		switch b {
		case ' ', '\t', '\r', '\n':
			g.run++
			g.over = g.over || g.run > maxBlank
		default:
			g.run = 0
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		g.err, err = err, io.EOF
	}
	return n, err
}

// crlfReader reads the bytes that were signed: with CRLF where the message file has LF.
type crlfReader struct {
	r  *bufio.Reader
	lf bool // a CR was given, its LF is due
}

func wireForm(r io.Reader) io.Reader { return &crlfReader{r: bufio.NewReaderSize(r, 32<<10)} }

func (w *crlfReader) Read(p []byte) (n int, err error) {
	if w.lf && len(p) > 0 {
		p[0] = '\n'
		w.lf = false
		n = 1
	}
	for n < len(p) {
		if w.r.Buffered() == 0 {
			if n > 0 {
				return n, nil
			}
			if _, err := w.r.Peek(1); err != nil {
				return 0, err
			}
		}
		b, err := w.r.Peek(min(w.r.Buffered(), len(p)-n))
		if err != nil {
			return n, err
		}
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			n += copy(p[n:], b)
			_, _ = w.r.Discard(len(b)) // it is in the buffer
			continue
		}
		n += copy(p[n:], b[:i])
		_, _ = w.r.Discard(i + 1)
		p[n] = '\r'
		if n++; n == len(p) {
			w.lf = true
			return n, nil
		}
		p[n] = '\n'
		n++
	}
	return n, nil
}
