package e2e

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// signer signs with RSA and Ed25519, simple and relaxed: four signatures a message.
type signer struct {
	keys    map[string]crypto.Signer // by selector
	records map[string]string        // TXT records by domain name
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	record := func(kind string, key []byte) string {
		return "v=DKIM1; k=" + kind + "; p=" + base64.StdEncoding.EncodeToString(key)
	}
	der, err := x509.MarshalPKIXPublicKey(&r.PublicKey)
	must(t, err)
	return &signer{
		keys: map[string]crypto.Signer{"rsa": r, "ed": private},
		records: map[string]string{
			"rsa._domainkey.signed.example": record("rsa", der), "ed._domainkey.signed.example": record("ed25519", public),
		},
	}
}

// sign puts the signatures on a message that has CRLF line ends.
func (s *signer) sign(t *testing.T, message string) string {
	t.Helper()
	for _, selector := range []string{"rsa", "ed"} {
		for _, canon := range []dkim.Canonicalization{dkim.CanonicalizationSimple, dkim.CanonicalizationRelaxed} {
			var out bytes.Buffer
			err := dkim.Sign(&out, strings.NewReader(message), &dkim.SignOptions{
				Domain: "signed.example", Selector: selector, Signer: s.keys[selector],
				HeaderCanonicalization: canon, BodyCanonicalization: canon,
			})
			must(t, err)
			message = out.String()
		}
	}
	return message
}

// valid is how many of a message's signatures are.
func (s *signer) valid(message []byte) (n int, err error) {
	list, err := dkim.VerifyWithOptions(bytes.NewReader(message), &dkim.VerifyOptions{
		LookupTXT: func(name string) ([]string, error) {
			if r, ok := s.records[strings.TrimSuffix(name, ".")]; ok {
				return []string{r}, nil
			}
			return nil, errors.New("no such record")
		},
	})
	for _, v := range list {
		if v.Err == nil {
			n++
			continue
		}
		err = errors.Join(err, v.Err)
	}
	return n, err
}

// signedMessages are made to be changed on the way.
var signedMessages = map[string]string{
	"usual":                    "From: bob@signed.example\nTo: far@sink.example\nSubject: usual\nDate: Mon, 2 Jan 2006 15:04:05 -0700\nMessage-ID: <1@signed.example>\n\nHello\n",
	"8-bit":                    "From: =?utf-8?q?B=C3=B6b?= <bob@signed.example>\nSubject: gr\u00fc\u00dfe\nX-Latin: caf\xe9\n\ncaf\xe9 gr\u00fc\u00dfe \xff\xfe\x80\n",
	"folded header":            "From: bob@signed.example\nSubject: a\n b\n\tc\n  \td\nX-Empty:\nX-Blank: \nX-Folded-Empty:\n x\n\nbody\n",
	"blanks at ends of lines":  "From: bob@signed.example  \nSubject:   two  blanks \t \n\na \nb\t\n \n\t\nc  d \n",
	"no newline at the end":    "From: bob@signed.example\nSubject: end\n\nlast line",
	"empty lines at the end":   "From: bob@signed.example\nSubject: end\n\nlast line\n\n\n\n",
	"nothing but empty lines":  "From: bob@signed.example\nSubject: end\n\n\n\n",
	"no body":                  "From: bob@signed.example\nSubject: end\n\n",
	"huge lines":               "From: bob@signed.example\nX-Long: " + strings.Repeat("0123456789", 20000) + "\nTo: " + strings.Repeat("far@sink.example, ", 10000) + "far@sink.example\n\n" + strings.Repeat("0123456789", 30000) + "\n",
	"dots":                     "From: bob@signed.example\nSubject: .\n\n.\n..\n.x\n...\n.\n",
	"From lines":               "From: bob@signed.example\nSubject: x\n\nFrom here\n>From there\n\nFrom the end\n",
	"two of a kind, odd names": "FROM: bob@signed.example\nsubject: a\nSUBJECT: b\nsubJect : c\nBcc-Like: x\n\nbody\n",
	"Received and Resent":      "Received: from a by b; Mon, 2 Jan 2006 15:04:05 -0700\nResent-From: carl@signed.example\nResent-Date: Mon, 2 Jan 2006 15:04:05 -0700\nFrom: bob@signed.example\nSubject: x\n\nbody\n",
	"NUL":                      "From: bob@signed.example\nSubject: x\n\na\x00b\n",
}

// Signatures of mail that passes through verify at the other end, whichever way it came
// in: what is added stands above what was signed, and nothing else is changed.
func TestSignaturesOfPassingMailStillVerify(t *testing.T) {
	t.Parallel()
	keys := newSigner(t)
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	n := 0
	for name, text := range signedMessages {
		signed := keys.sign(t, strings.ReplaceAll(text, "\n", "\r\n"))
		if got, err := keys.valid([]byte(signed)); got != 4 {
			t.Fatalf("%s: %d signatures verify before it is sent: %v", name, got, err)
		}
		// By submit, as a local program would hand on what it got.
		submit(t, s, strings.ReplaceAll(signed, "\r\n", "\n"), "-f", "bob@signed.example", "far@sink.example")
		// By SMTP.
		sendSMTP(t, s, "bob@signed.example", "far@sink.example", strings.ReplaceAll(signed, "\r\n", "\n"))
		n += 2
		if err := sink.Wait(n, patience); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, m := range sink.Messages()[n-2:] {
			if got, err := keys.valid(m.Data); got != 4 {
				t.Errorf("%s: %d of 4 signatures verify at the sink: %v\n%s", name, got, err, abbreviate(string(m.Data)))
			}
			if !bytes.HasPrefix(m.Data, []byte("Received: ")) {
				t.Errorf("%s: the sink got %s", name, abbreviate(string(m.Data)))
			}
			// The check can fail: one byte more and none does.
			if got, _ := keys.valid(bytes.Replace(m.Data, []byte("bob@signed"), []byte("bobb@signed"), 1)); got != 0 {
				t.Errorf("%s: %d signatures verify of a message that was changed", name, got)
			}
		}
	}
	awaitEmpty(t, s)
}

// M12, M15, S13, and masquerading, with the real programs: one system that has all of it
// configured.
func TestHeadersAndTheirFaults(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, attempt int) string {
		if address == "later@sink.example" && attempt < 3 {
			return "451 4.3.0 later"
		}
		return ""
	}})
	s := start(t, sink, func(s *suite.Suite) {
		s.Settings = map[string]string{"POSTMANCOPY": "yes"}
		s.Files["header-rules"] = "# whose mail it is\nlocal add X-Origin: inside\nall remove X-Secret*\nall replace Subject /^\\[x\\] */\n"
		s.Files["masquerade"] = "@mta.example: @example.com\nalice@mta.example: Alice.A@example.com\n"
	})
	t.Run("added once, however often it is tried", func(t *testing.T) { addedOnce(t, s, sink) })
	t.Run("masqueraded when it is local", func(t *testing.T) { masqueraded(t, s, sink) })
	t.Run("51 Received fields", func(t *testing.T) { tooManyReceived(t, s, sink) })
}

// S13
func addedOnce(t *testing.T, s *suite.Suite, sink *peer.Sink) {
	before, _ := sink.Count()
	submit(t, s, "Subject: [x] x\nX-Secret-1: y\nBcc: hidden@sink.example\n\nbody\n", "-f", "bob@elsewhere.example", "later@sink.example")
	m := arrived(t, sink, before)
	got, err := mail.ReadMessage(bytes.NewReader(m.Data))
	must(t, err)
	for name, want := range map[string]int{
		"Received": 1, "Date": 1, "Message-Id": 1, "From": 1, "X-Origin": 1, "Subject": 1, "X-Secret-1": 0, "Bcc": 0,
	} {
		if list := got.Header[name]; len(list) != want {
			t.Errorf("%s: got %q, want %d", name, list, want)
		}
	}
	if got := got.Header.Get("Subject"); got != "x" {
		t.Errorf("Subject: got %q, want what the rule makes of it", got)
	}
}

func masqueraded(t *testing.T, s *suite.Suite, sink *peer.Sink) {
	before, _ := sink.Count()
	submit(t, s, "From: \"A. (a)\" <alice@mta.example> (home)\nReply-To: bob@mta.example, x@y.example\nTo: alice@mta.example\n\nbody\n", "-f", "alice@mta.example", "far@sink.example")
	m := arrived(t, sink, before)
	if m.From != "Alice.A@example.com" {
		t.Errorf("sender: got %s", m.From)
	}
	wantIn(t, string(m.Data), "\r\nFrom: \"A. (a)\" <Alice.A@example.com> (home)\r\nReply-To: bob@example.com, x@y.example\r\nTo: alice@mta.example\r\n")
	// From outside the same stays.
	sendSMTP(t, s, "alice@mta.example", "far@sink.example", "From: alice@mta.example\n\nbody\n")
	if m = arrived(t, sink, before+1); m.From != "alice@mta.example" || !bytes.HasSuffix(m.Data, []byte("\r\nFrom: alice@mta.example\r\n\r\nbody\r\n")) {
		t.Errorf("from outside: got %s and\n%s", m.From, m.Data)
	}
}

// M15
func tooManyReceived(t *testing.T, s *suite.Suite, sink *peer.Sink) {
	before, _ := sink.Count()
	text := strings.Repeat("Received: from a by b; Mon, 2 Jan 2006 15:04:05 -0700\n", 51) + "From: alice@mta.example\nSubject: round\n\nbody\n"
	sendSMTP(t, s, "alice@mta.example", "far@sink.example", text)
	report := awaitMail(t, s, "alice", 1)[0]
	wantIn(t, string(report), "Final-Recipient: rfc822; far@sink.example", "Action: failed", "Status: 5.4.6")
	if soft := postman(t, s, "_loop"); len(soft) != 1 || !strings.HasSuffix(read(t, path(s, soft[0])), "\n"+text) {
		t.Errorf("soft copies: got %q, want one of the message", soft)
	}
	if after, _ := sink.Count(); after != before {
		t.Errorf("the sink got %d messages", after-before)
	}
}

// postman lists the copies in postman/ whose names end so.
func postman(t *testing.T, s *suite.Suite, ending string) []string {
	t.Helper()
	entries, err := os.ReadDir(path(s, "postman"))
	must(t, err)
	var list []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ending) {
			list = append(list, filepath.Join("postman", e.Name()))
		}
	}
	return list
}
