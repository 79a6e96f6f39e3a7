package milter

// What is here is libmilter's mfdef.h and mfapi.h: the numbers of version 6 of the protocol,
// which Sendmail 8.14 introduced.

// versions of the protocol that a filter may choose.
const (
	oldest = 2
	newest = 6
)

// Actions that a filter may ask for (SMFIF_...).
const (
	mayAddFields        = 1 << 0
	mayChangeBody       = 1 << 1
	mayAddRcpt          = 1 << 2
	mayDeleteRcpt       = 1 << 3
	mayChangeFields     = 1 << 4
	mayQuarantine       = 1 << 5
	mayChangeFrom       = 1 << 6
	mayAddRcptWithParam = 1 << 7
	mayListMacros       = 1 << 8

	allActions = 1<<9 - 1
)

// Steps that a filter leaves out (no...), does not answer (noReply...), or what else it wants
// (SMFIP_...).
const (
	noConnect       = 1 << 0
	noHelo          = 1 << 1
	noMail          = 1 << 2
	noRcpt          = 1 << 3
	noBody          = 1 << 4
	noFields        = 1 << 5
	noEndOfHeader   = 1 << 6
	noReplyField    = 1 << 7
	noUnknown       = 1 << 8
	noData          = 1 << 9
	maySkipBody     = 1 << 10 // it may answer a part of the body with skip
	wantsRefused    = 1 << 11 // it wants to see recipients that were refused
	noReplyConnect  = 1 << 12
	noReplyHelo     = 1 << 13
	noReplyMail     = 1 << 14
	noReplyRcpt     = 1 << 15
	noReplyData     = 1 << 16
	noReplyUnknown  = 1 << 17
	noReplyEndOfHdr = 1 << 18
	noReplyBody     = 1 << 19
	leadingSpace    = 1 << 20 // values of fields are passed with the blank that they begin with

	allSteps = 1<<21 - 1
)

// stepsOf returns the steps that a version of the protocol knows; the others are left out.
func stepsOf(version uint32) (known, missing uint32) {
	const (
		v2 = noConnect | noHelo | noMail | noRcpt | noBody | noFields | noEndOfHeader
		v3 = v2 | noUnknown
		v4 = v3 | noData
	)
	switch {
	case version >= newest:
		return allSteps, 0
	case version >= 4:
		return v4, 0
	case version == 3:
		return v3, noData
	}
	return v2, noUnknown | noData
}

// Commands, from us to the filter.
const (
	cmdNegotiate   = 'O'
	cmdMacros      = 'D'
	cmdConnect     = 'C'
	cmdHelo        = 'H'
	cmdMail        = 'M'
	cmdRcpt        = 'R'
	cmdData        = 'T'
	cmdUnknown     = 'U'
	cmdField       = 'L'
	cmdEndOfHeader = 'N'
	cmdBody        = 'B'
	cmdEnd         = 'E'
	cmdAbort       = 'A'
	cmdQuit        = 'Q'
)

// Answers, from the filter to us.
const (
	ansContinue     = 'c'
	ansAccept       = 'a'
	ansReject       = 'r'
	ansTempFail     = 't'
	ansDiscard      = 'd'
	ansReply        = 'y'
	ansShutdown     = '4'
	ansConnFail     = 'f'
	ansSkip         = 's'
	ansProgress     = 'p'
	ansAddField     = 'h'
	ansInsertField  = 'i'
	ansChangeField  = 'm'
	ansBody         = 'b'
	ansAddRcpt      = '+'
	ansAddRcptParam = '2'
	ansDeleteRcpt   = '-'
	ansChangeFrom   = 'e'
	ansQuarantine   = 'q'
)

// step is what happens at one stage of a transaction.
type step struct {
	command byte
	leave   uint32 // the filter has left it out
	silent  uint32 // the filter does not answer it
}

var (
	atConnect     = step{cmdConnect, noConnect, noReplyConnect}
	atHelo        = step{cmdHelo, noHelo, noReplyHelo}
	atMail        = step{cmdMail, noMail, noReplyMail}
	atRcpt        = step{cmdRcpt, noRcpt, noReplyRcpt}
	atData        = step{cmdData, noData, noReplyData}
	atUnknown     = step{cmdUnknown, noUnknown, noReplyUnknown}
	atField       = step{cmdField, noFields, noReplyField}
	atEndOfHeader = step{cmdEndOfHeader, noEndOfHeader, noReplyEndOfHdr}
	atBody        = step{cmdBody, noBody, noReplyBody}
)

// symbolStages are the stages of SMFIM_..., for which a filter may name the macros that it
// wants.
var symbolStages = []byte{cmdConnect, cmdHelo, cmdMail, cmdRcpt, cmdData, cmdEnd, cmdEndOfHeader}

// defaultMacros are the macros of each stage that are sent to a filter that names none:
// Postfix's, by its milter_..._macros, and those that Postfix sends only where it is told to.
var defaultMacros = map[byte][]string{
	cmdConnect: {"j", "{daemon_name}", "{daemon_addr}", "{daemon_port}", "v", "_",
		"{client_addr}", "{client_name}", "{client_port}", "{client_ptr}", "{client_connections}"},
	cmdHelo: {"{tls_version}", "{cipher}", "{cipher_bits}", "{cert_subject}", "{cert_issuer}"},
	cmdMail: {"i", "{auth_type}", "{auth_authen}", "{auth_author}", "{auth_ssf}",
		"{mail_addr}", "{mail_host}", "{mail_mailer}"},
	cmdRcpt:        {"i", "{rcpt_addr}", "{rcpt_host}", "{rcpt_mailer}"},
	cmdData:        {"i"},
	cmdEndOfHeader: {"i"},
	cmdEnd:         {"i"},
}
