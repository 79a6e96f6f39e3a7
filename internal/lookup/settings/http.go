package settings

import (
	"fmt"
	"net/url"
	"strings"
)

// HTTP is what an http: source asks.
type HTTP struct {
	URL           string   // with %s, %u and %d
	Authorization string   // the field of that name; "": none
	Value         []string // the way to the value in a JSON answer; nil: the answer is text
	JSON          bool
	NotFound      bool // the status 404 means that there is no such key
	CAFile        string
	Limit         int // values that one key may have
}

// ReadHTTP reads the settings of an http: source.
func ReadHTTP(open Open, path string) (HTTP, error) {
	f, err := read(open, path, "url", "authorization", "authorization_file", "format", "value", "not_found", "ca_file", "limit")
	if err != nil {
		return HTTP{}, err
	}
	c := HTTP{
		URL:           f.need("url", "https://HOST/PATH?address=%s"),
		Authorization: f.secret("authorization", "authorization_file"),
		JSON:          f.word("format", "json", "text") == "json",
		NotFound:      f.word("not_found", "204", "404") == "404",
		CAFile:        f.abs(f.get("ca_file")),
		Limit:         f.number("limit", 100),
	}
	if value := f.get("value"); value != "" {
		if c.Value = strings.Split(value, "."); !c.JSON {
			f.bad(f.values["value"].line, "value is the way to a member of a JSON answer; format is text")
		}
	}
	if strings.ContainsAny(c.Authorization, "\r\n") {
		f.bad(f.values["authorization_file"].line, "authorization has more than one line")
	}
	if c.URL == "" {
		return c, f.err()
	}
	line := f.values["url"].line
	f.checkPlaces("url", c.URL)
	head, _, _ := strings.Cut(c.URL, "%")
	u, err := url.Parse(c.Fill("x"))
	switch {
	case err != nil:
		f.bad(line, fmt.Sprintf("url %s: %v", c.URL, err))
	case u.Scheme != "http" && u.Scheme != "https":
		f.bad(line, fmt.Sprintf("url %s: want http:// or https://", c.URL))
	case u.Host == "":
		f.bad(line, fmt.Sprintf("url %s: it names no server", c.URL))
	case strings.Count(head, "/") < 3:
		f.bad(line, fmt.Sprintf("url %s: the key may be in the path and the query, not in the server's name", c.URL))
	case u.User != nil:
		f.bad(line, fmt.Sprintf("url %s: a password belongs in authorization_file", u.Redacted()))
	}
	return c, f.err()
}

// Fill returns the URL for a key, of which all but letters, digits, '-', '_' and '~' is
// percent-encoded: also dots, so that no key is a step up in the path.
func (c HTTP) Fill(key string) string {
	return fill(c.URL, key, func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			if ch := s[i]; ch < 0x80 && isWord(ch) || ch == '-' || ch == '~' {
				b.WriteByte(ch)
			} else {
				fmt.Fprintf(&b, "%%%02X", ch)
			}
		}
		return b.String()
	})
}
