// Package address is the mailbox of an envelope: local part and domain, the null
// sender, SMTPUTF8 and IDNA (RFC 5321 §4.1.2, RFC 6531, RFC 5891).
//
// Diagnostics: Parse's errors say what is wrong with the address and quote it.
package address

// Mailbox is an address. The zero value is the null sender <>.
type Mailbox struct {
	Local  string // unquoted, case kept
	Domain string // as written, without a final dot; "" for a bare local name
}
