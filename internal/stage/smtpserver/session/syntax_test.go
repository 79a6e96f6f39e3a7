package session

import (
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"zmailer/internal/mail/address"
)

// arguments are seeds for the parsers of MAIL and RCPT.
var arguments = []string{"FROM:<a@b.example>", "FROM:<>", "FROM: a@b SIZE=5", "TO:<postmaster>", `TO:<"a> b"@c> NOTIFY=NEVER`,
	"FROM:<@r.example:a@b.example> RET=HDRS ENVID=a+2Bb", "TO:<c@d> ORCPT=rfc822;c+40d@e NOTIFY=SUCCESS,DELAY", "FROM:<ä@b> SMTPUTF8 BODY=8BITMIME",
	"FROM:<a@b> AUTH=<>", "FROM:<a@b> SIZE=99999999999999999999", "FROM:<a@b> REQUIRETLS", "TO:<a@b> ORCPT=utf-8;\\x{E4}@b", "FROM:<a@b>\tSIZE=1"}

func parsing() *Conn {
	_, ours := net.Pipe()
	return New(Config{MaxSize: 1000}).NewConn(ours, nil)
}

// Whatever the argument of MAIL, what is taken is within the RFCs' limits and can be written
// into an envelope line.
func FuzzMail(f *testing.F) {
	for _, s := range arguments {
		f.Add(s)
	}
	c := parsing()
	f.Fuzz(func(t *testing.T, arg string) {
		var m Mail
		if r := m.read(arg, c); r != nil {
			if r.Code < 500 || r.Code > 599 || strings.Count(string(r.append(nil, "")), "\n") != 1 {
				t.Fatalf("reply %+v", r)
			}
			return
		}
		again, err := address.Parse(m.From.String())
		if err != nil || again != m.From {
			t.Fatalf("%q: the sender %q is read as %v, %v", arg, m.From, again, err)
		}
		if m.Size < 0 || m.Size > 1000 || len(m.EnvID) > maxEnvID || strings.ContainsAny(m.EnvID, " \t\r\n") || m.Ret != "" && m.Ret != "FULL" && m.Ret != "HDRS" {
			t.Fatalf("%q gives %+v", arg, m)
		}
		if !m.UTF8 && !m.From.IsASCII() || !utf8.ValidString(m.From.String()) {
			t.Fatalf("%q gives the sender %q", arg, m.From)
		}
	})
}

// The same of RCPT.
func FuzzRcpt(f *testing.F) {
	for _, s := range arguments {
		f.Add(s, false)
	}
	c := parsing()
	f.Fuzz(func(t *testing.T, arg string, utf bool) {
		var r Rcpt
		c.mail.UTF8 = utf
		if r.read(arg, c) != nil {
			return
		}
		again, err := address.Parse(r.To.String())
		if err != nil || again != r.To || r.To.IsNull() {
			t.Fatalf("%q: the recipient %q is read as %v, %v", arg, r.To, again, err)
		}
		if len(r.ORCPT) > maxORCPT || strings.ContainsAny(r.ORCPT+r.Notify, " \t\r\n") {
			t.Fatalf("%q gives %+v", arg, r)
		}
		if !utf && (!r.To.IsASCII() || !isASCII(r.ORCPT)) {
			t.Fatalf("%q gives %+v without SMTPUTF8", arg, r)
		}
	})
}

// A size that BDAT takes is what its digits say.
func FuzzBDAT(f *testing.F) {
	for _, s := range []string{"5", "0 LAST", "9223372036854775807 last", "99999999999999999999", "-1", "+5", "5 LAST x", "0x5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		b, ok := parseBDAT(arg)
		if ok && (b.size < 0 || b.left != b.size || b.last != strings.Contains(strings.ToUpper(arg), "LAST")) {
			t.Fatalf("%q gives %+v", arg, b)
		}
	})
}
