package smtpserver

// Role is what a listener is for.
type Role string

const (
	RoleMX          Role = "mx"          // other hosts' mail for us, port 25; and, where RELAYNETS says so, programs of this machine
	RoleSubmission  Role = "submission"  // our users' mail, port 587: STARTTLS and AUTH (RFC 6409)
	RoleSubmissions Role = "submissions" // the same in TLS from the start, port 465 (RFC 8314 §3.3)
	RoleLMTP        Role = "lmtp"        // another mail system's, mostly by a Unix socket (RFC 2033)
)
