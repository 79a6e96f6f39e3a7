package mailbox

import (
	"fmt"
	"path"
	"strings"

	"zmailer/internal/mail/status"
)

// TemplateError is a MAILBOX value that cannot be used.
type TemplateError struct {
	Template string
	Reason   string
}

func (e *TemplateError) Error() string {
	return fmt.Sprintf("MAILBOX=%s: %s", e.Template, e.Reason)
}

// template is a parsed MAILBOX value.
type template struct {
	parts    []string // text and, at odd places, the letter of a % sequence
	usesHome bool
}

func parseTemplate(s string) (template, error) {
	bad := func(reason string) (template, error) { return template{}, &TemplateError{s, reason} }
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "%h/") {
		return bad("it must be a path from the root, or start with %h/")
	}
	var t template
	text, user := "", false
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			text += s[i : i+1]
			continue
		}
		if i++; i == len(s) {
			return bad("it ends in the middle of a % sequence")
		}
		switch c := s[i]; c {
		case '%':
			text += "%"
			continue
		case 'u', 'd', 'h':
			user = user || c != 'd'
			t.usesHome = t.usesHome || c == 'h'
			t.parts = append(t.parts, text, string(c))
			text = ""
		default:
			return bad("%" + string(c) + " is none of %u, %h, %d, %%")
		}
	}
	t.parts = append(t.parts, text)
	if !user {
		return bad("without %u or %h all users would share one mailbox")
	}
	return t, nil
}

// expand gives the path for a user. The values must be safe elements, home a path.
func (t *template) expand(login, home, domain string) (string, error) {
	var b strings.Builder
	for i, p := range t.parts {
		switch {
		case i%2 == 0:
			b.WriteString(p)
		case p == "u":
			b.WriteString(login)
		case p == "d":
			if domain == "" {
				return "", &fault{code: configTrouble, text: "MAILBOX wants a domain and the address has none"}
			}
			b.WriteString(domain)
		case p == "h":
			if !path.IsAbs(home) || path.Clean(home) == "/" {
				return "", &fault{code: configTrouble, text: "the user has no home directory"}
			}
			b.WriteString(strings.TrimRight(home, "/"))
		}
	}
	return b.String(), nil
}

// safeElement tells whether a name can be an element of a path without leading
// anywhere else: it has no slash, is not "." or "..", and holds no control
// characters.
func safeElement(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > 200 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r < ' ' || r == 0x7f })
}

// cutAddress parts user@domain at the last @ and unquotes the user.
func cutAddress(s string) (login, domain string) {
	login = s
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		login, domain = s[:i], s[i+1:]
	}
	if len(login) >= 2 && login[0] == '"' && login[len(login)-1] == '"' {
		var b strings.Builder
		quoted := login[1 : len(login)-1]
		for i := 0; i < len(quoted); i++ {
			if quoted[i] == '\\' && i+1 < len(quoted) {
				i++
			}
			b.WriteByte(quoted[i])
		}
		login = b.String()
	}
	return login, domain
}

// configTrouble is RFC 3463's 4.3.5, system incorrectly configured.
var configTrouble = status.Code{Class: 4, Subject: 3, Detail: 5}
