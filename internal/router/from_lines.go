package router

import (
	"net/mail"
	"slices"
	"strings"

	"zmailer/internal/address"
	"zmailer/internal/envelope"
)

// isBlind tells the fields whose recipients others are not to see.
func isBlind(name string) bool {
	return strings.EqualFold(name, "Bcc") || strings.EqualFold(name, "Resent-Bcc")
}

// fromHeader takes the recipients from the header: from the uppermost block of
// Resent fields if there is one, since that is what was sent last (RFC 5322
// §3.6.6), else from To, Cc and Bcc.
func fromHeader(fields []envelope.Field) []envelope.Recipient {
	prefix := ""
	if i := slices.IndexFunc(fields, isResent); i >= 0 {
		prefix, fields = "Resent-", fields[i:]
		seen := map[string]bool{}
		end := slices.IndexFunc(fields, func(f envelope.Field) bool {
			name := strings.ToLower(f.Name)
			again := seen[name]
			seen[name] = true
			return !isResent(f) || again
		})
		if end >= 0 {
			fields = fields[:end]
		}
	}
	var list []envelope.Recipient
	for _, f := range fields {
		for _, name := range [...]string{"To", "Cc", "Bcc"} {
			if strings.EqualFold(f.Name, prefix+name) {
				list = appendAddresses(list, f.Value())
			}
		}
	}
	return list
}

func isResent(f envelope.Field) bool {
	const prefix = "Resent-"
	return len(f.Name) > len(prefix) && strings.EqualFold(f.Name[:len(prefix)], prefix)
}

// appendAddresses reads an address list, RFC 5322 §3.4. What the grammar does not
// allow, such as "To: bond", is read one by one; what cannot be read at all becomes
// a recipient that cannot be delivered, so that the sender hears of it.
func appendAddresses(list []envelope.Recipient, value string) []envelope.Recipient {
	if all, err := mail.ParseAddressList(value); err == nil {
		for _, a := range all {
			list = append(list, envelope.Recipient{Address: bare(a.Address)})
		}
		return list
	}
	for value != "" {
		var one string
		one, value = cutAddress(value)
		if one == "" {
			continue
		}
		if a, err := mail.ParseAddress(one); err == nil {
			one = bare(a.Address)
		} else if open := strings.LastIndexByte(one, '<'); open >= 0 && strings.HasSuffix(one, ">") {
			one = one[open+1 : len(one)-1]
		}
		if one != "" {
			list = append(list, envelope.Recipient{Address: one})
		}
	}
	return list
}

// bare gives an address that net/mail has unquoted its quotes back.
func bare(s string) string {
	at := strings.LastIndexByte(s, '@')
	return address.Mailbox{Local: s[:at], Domain: s[at+1:]}.String()
}

// cutAddress parts a list at its first comma or, of a group, colon or semicolon
// outside of quotes, comments and brackets. Comments and a group's name are dropped.
func cutAddress(s string) (first, rest string) {
	var out strings.Builder
	quoted, comment := false, 0
	for i := 0; i < len(s); i++ {
		b := s[i]
		switch {
		case b == '\\' && (quoted || comment > 0) && i+1 < len(s):
			if i++; quoted {
				out.WriteString(s[i-1 : i+1])
			}
			continue
		case comment > 0:
			switch b {
			case '(':
				comment++
			case ')':
				comment--
			}
			continue
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '(':
			comment++
			continue
		case b == ',' || b == ';':
			return strings.TrimSpace(out.String()), s[i+1:]
		case b == ':' && !strings.ContainsAny(out.String(), "<["):
			out.Reset()
			continue
		}
		out.WriteByte(b)
	}
	return strings.TrimSpace(out.String()), ""
}
