package route

import (
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
)

// isBlind reports whether a field has recipients that others must not see.
func isBlind(name string) bool {
	return strings.EqualFold(name, "Bcc") || strings.EqualFold(name, "Resent-Bcc")
}

// fromHeader takes the recipients from the header: from the uppermost block of
// Resent fields if there is one, since that is what was sent last (RFC 5322
// §3.6.6), else from To, Cc and Bcc.
func fromHeader(fields []envelope.Field) []envelope.Recipient {
	prefix := ""
	if from, to := envelope.UppermostResent(fields); from >= 0 {
		prefix, fields = "Resent-", fields[from:to]
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

// appendAddresses reads an address list, RFC 5322 §3.4. What cannot be read becomes a
// recipient that cannot be delivered, so that the sender hears of it.
func appendAddresses(list []envelope.Recipient, value string) []envelope.Recipient {
	for _, it := range address.ParseList(value) {
		switch {
		case it.Err != nil:
			list = append(list, envelope.Recipient{Address: it.Text})
		case !it.Mailbox.IsNull():
			list = append(list, envelope.Recipient{Address: it.Mailbox.String()})
		}
	}
	return list
}
