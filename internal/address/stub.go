package address

// Parse reads "a@b", "<a@b>", "a", "<>" or "", with quoted local parts, address
// literals and a source route, which is dropped (RFC 5321 appendix C). Control
// characters, NUL and line ends are always errors.
func Parse(s string) (Mailbox, error) { panic("stub") }

// IsNull tells the null sender.
func (m Mailbox) IsNull() bool { return m == Mailbox{} }

// String is the address without brackets, the local part quoted if it must be.
func (m Mailbox) String() string { panic("stub") }

// ASCIIDomain is the domain in lower-case A-label form, for lookups and comparison.
func (m Mailbox) ASCIIDomain() (string, error) { panic("stub") }

// IsASCII tells whether SMTPUTF8 is needed for the address as it stands.
func (m Mailbox) IsASCII() bool { panic("stub") }

// EncodeXText and DecodeXText are RFC 3461 §4's xtext.
func EncodeXText(s string) string { panic("stub") }

// DecodeXText fails on a bad +HH.
func DecodeXText(s string) (string, error) { panic("stub") }
