package address

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"
)

// Key returns the same for two mailboxes that are one: the domain's form for comparison, the
// local part in NFC (RFC 6532 §3.1). The case of a local part counts, RFC 5321 §2.4:
// only its own host may know better.
func (m Mailbox) Key() string {
	if isASCII(m.Domain) && m.Domain == strings.ToLower(m.Domain) && isASCII(m.Local) && !strings.HasPrefix(m.Domain, "[") {
		return m.String()
	}
	if d, err := asciiDomain(m.Domain); err == nil {
		m.Domain = d
	}
	m.Local = norm.NFC.String(m.Local)
	return m.String()
}

// ASCIIDomain returns the domain in lower-case A-label form, for lookups and comparison
// (RFC 5890 §2.3.2.1); an IP literal comes with its address in canonical form. It
// is "" for a bare local name, and never fails for what Parse gave.
func (m Mailbox) ASCIIDomain() (string, error) {
	if m.Domain == "" {
		return "", nil
	}
	d, err := asciiDomain(m.Domain)
	if err != nil {
		return "", fmt.Errorf("domain %.300q: %w", m.Domain, err)
	}
	return d, nil
}

// asciiDomain checks a domain or literal and gives its form for comparison.
func asciiDomain(d string) (string, error) {
	if strings.HasPrefix(d, "[") {
		return literal(d)
	}
	if !isASCII(d) {
		// RFC 5891 §5: the label is mapped and checked as for a lookup.
		a, err := lookup.ToASCII(d)
		if err != nil {
			return "", fmt.Errorf("no internationalized domain: %w", err)
		}
		d = a
	}
	return strings.ToLower(d), checkDomain(d)
}

// lookup maps and checks U-labels (RFC 5891 §5, UTS 46).
var lookup = idna.Lookup

// unicodeDomain returns a domain as RFC 6531 §3.3 has it on the wire: of one that is not
// ASCII the U-labels, mapped and in NFC, with full stops between.
func unicodeDomain(d string) (string, error) {
	if isASCII(d) {
		return d, nil
	}
	u, err := lookup.ToUnicode(d)
	if err != nil {
		return "", fmt.Errorf("no internationalized domain: %w", err)
	}
	return u, nil
}

// checkDomain is RFC 5321 §4.1.2 Domain, plus underscores.
func checkDomain(d string) error {
	if d == "" {
		return errors.New("domain is empty")
	}
	if len(d) > maxDomain {
		return fmt.Errorf("domain of more than %d bytes", maxDomain)
	}
	start := 0
	for i := 0; i <= len(d); i++ {
		if i < len(d) && d[i] != '.' {
			if !isLDH(d[i]) {
				return fmt.Errorf("%q in the domain", d[i:i+1])
			}
			continue
		}
		switch label := d[start:i]; {
		case label == "":
			return errors.New("empty label in the domain")
		case len(label) > maxLabel:
			return fmt.Errorf("label of more than %d bytes in the domain", maxLabel)
		case label[0] == '-' || label[len(label)-1] == '-':
			return fmt.Errorf("label %q begins or ends with a hyphen", label)
		}
		start = i + 1
	}
	return nil
}

// isLDH is a letter, digit, hyphen or underscore.
func isLDH(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '-' || b == '_'
}

// literal reads RFC 5321 §4.1.3: "[192.0.2.1]", "[IPv6:2001:db8::1]", "[tag:text]".
func literal(d string) (string, error) {
	if len(d) < 2 || d[len(d)-1] != ']' {
		return "", errors.New("[ without ]")
	}
	if len(d) > maxDomain {
		return "", fmt.Errorf("address literal of more than %d bytes", maxDomain)
	}
	inner := d[1 : len(d)-1]
	tag, text, tagged := strings.Cut(inner, ":")
	if !tagged {
		a, err := netip.ParseAddr(inner)
		if err != nil || !a.Is4() {
			return "", errors.New("no IPv4 address in the literal")
		}
		return "[" + a.String() + "]", nil
	}
	if strings.EqualFold(tag, "IPv6") {
		a, err := netip.ParseAddr(text)
		if err != nil || !a.Is6() || a.Zone() != "" {
			return "", errors.New("no IPv6 address in the literal")
		}
		return "[ipv6:" + a.String() + "]", nil
	}
	if _, err := netip.ParseAddr(inner); err == nil {
		return "", errors.New("IPv6 address without its IPv6: tag")
	}
	if tag == "" || text == "" || checkDomain(tag) != nil || strings.Contains(tag, ".") {
		return "", errors.New("no address in the literal")
	}
	for i := 0; i < len(text); i++ { // dcontent
		if text[i] < '!' || text[i] > '~' || text[i] == '[' || text[i] == ']' || text[i] == '\\' {
			return "", fmt.Errorf("%q in the address literal", text[i:i+1])
		}
	}
	return strings.ToLower(d), nil
}
