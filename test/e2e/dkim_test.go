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
	"fmt"
	"net/mail"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
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
	assert.Must(t, err)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	assert.Must(t, err)
	record := func(kind string, key []byte) string {
		return "v=DKIM1; k=" + kind + "; p=" + base64.StdEncoding.EncodeToString(key)
	}
	der, err := x509.MarshalPKIXPublicKey(&r.PublicKey)
	assert.Must(t, err)
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
			assert.Must(t, err)
			message = out.String()
		}
	}
	return message
}

// valid returns how many of a message's signatures are.
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

// Signatures of mail that passes through verify at the next host, whether it was submitted
// locally or by SMTP: fields are added above what was signed, and nothing else is changed.
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
		assert.Must(t, sink.Wait(n, patience))
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

// S13: fields are added once however often a message is tried, and rules of header-rules apply.
func TestFieldsAreAddedOnce(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(_ string, attempt int) string {
		if attempt < 3 {
			return "451 4.3.0 later"
		}
		return ""
	}})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["header-rules"] = "local add X-Origin: inside\nall remove X-Secret*\nall replace Subject /^\\[x\\] */\n"
	})
	submit(t, s, "Subject: [x] x\nX-Secret-1: y\nBcc: hidden@sink.example\n\nbody\n", "-f", "bob@elsewhere.example", "later@sink.example")
	got := assert.Get(mail.ReadMessage(bytes.NewReader(arrived(t, sink, 0).Data)))(t)
	for name, want := range map[string]int{
		"Received": 1, "Date": 1, "Message-Id": 1, "From": 1, "X-Origin": 1, "Subject": 1, "X-Secret-1": 0, "Bcc": 0,
	} {
		assert.Equal(t, len(got.Header[name]), want, name)
	}
	assert.Equal(t, got.Header.Get("Subject"), "x")
}

// M15: a message with 51 Received fields is reported, and a copy stays in postman/.
func TestMessageWithTooManyReceivedFieldsIsReported(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, func(s *suite.Suite) { s.Settings = map[string]string{"POSTMANCOPY": "yes"} })
	text := strings.Repeat("Received: from a by b; Mon, 2 Jan 2006 15:04:05 -0700\n", 51) + "From: alice@mta.example\nSubject: round\n\nbody\n"
	sendSMTP(t, s, "alice@mta.example", "far@sink.example", text)
	report := awaitMail(t, s, "alice", 1)[0]
	wantIn(t, string(report), "Final-Recipient: rfc822; far@sink.example", "Action: failed", "Status: 5.4.6")
	if name := only(t, s, "postman"); !strings.HasSuffix(name, "_loop") || !strings.HasSuffix(read(t, path(s, "postman/"+name)), "\n"+text) {
		t.Errorf("postman/ holds %s, want a copy of the message", name)
	}
	wantArrived(t, sink, 0)
}

// newkey makes a key by zmctl, adds it to the file dkim and gives its record.
func newkey(t *testing.T, s *suite.Suite, domain, selector, kind string) string {
	t.Helper()
	out, err := s.Command("zmctl", "dkim", "newkey", "--type", kind, domain, selector).CombinedOutput()
	if err != nil {
		t.Fatalf("newkey: %v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	f, err := os.OpenFile(filepath.Join(filepath.Dir(s.Config()), "dkim"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	assert.Must(t, err)
	_, err = fmt.Fprintln(f, lines[len(lines)-1])
	assert.Must(t, errors.Join(err, f.Close()))
	record := ""
	for _, m := range regexp.MustCompile(`"([^"]*)"`).FindAllSubmatch(out, -1) {
		record += string(m[1])
	}
	return record
}

// The whole way with the real programs: zmctl makes the keys, mail of every shape that is
// submitted, or comes from our networks, is signed with both, and both verify at the
// other end; mail of another domain, and what only passes through, is not signed.
func TestMailIsSignedOnItsWayOut(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := prepare(t, sink, func(s *suite.Suite) { s.Settings = map[string]string{"SIGNNETS": "192.0.2.0/24"} })
	records := map[string]string{
		"r1._domainkey.signed.example": newkey(t, s, "signed.example", "r1", "rsa"),
		"e1._domainkey.signed.example": newkey(t, s, "signed.example", "e1", "ed25519"),
	}
	begin(t, s)
	keys := &signer{records: records}
	check := func(name string, m *peer.Message, want int) {
		t.Helper()
		if got, err := keys.valid(m.Data); got != want || err != nil {
			t.Errorf("%s: %d signatures verify, want %d: %v\n%s", name, got, want, err, abbreviate(string(m.Data)))
		}
	}
	n := 0
	for name, text := range signedMessages {
		submit(t, s, text, "-f", "bob@signed.example", "far@sink.example")
		check(name, arrived(t, sink, n), 2)
		n++
	}
	submit(t, s, "From: bob@elsewhere.example\nSubject: x\n\nbody\n", "-f", "bob@signed.example", "far@sink.example")
	check("another domain", arrived(t, sink, n), 0)
	n++
	sendSMTP(t, s, "bob@signed.example", "far@sink.example", "From: bob@signed.example\nSubject: x\n\nbody\n")
	check("a client that is in RELAYNETS, and not in SIGNNETS", arrived(t, sink, n), 0)
	awaitEmpty(t, s)
	exits(t, s, 0, "zmctl", "check-config")
	assert.Must(t, os.Remove(filepath.Join(filepath.Dir(s.Config()), "keys", "e1.signed.example.pem")))
	exits(t, s, 78, "zmctl", "check-config")
}

// Two systems of ours: one signs and sends under TLS, the other verifies, adds the results, and
// rejects forged mail.
func TestSignedMailIsVerifiedByAnotherOfUs(t *testing.T) {
	t.Parallel()
	dns := mxtest.Start(t, "")
	cert, err := peer.NewCertificate(openDir(t), "mx.far.example")
	assert.Must(t, err)
	far := prepare(t, nil, func(s *suite.Suite) {
		s.Hostname = "mx.far.example"
		s.Settings = map[string]string{
			"RESOLVER": dns.Addr, "CHECKS": "spf dkim dmarc", "RELAYNETS": "192.0.2.0/24",
			"TLSCERT": cert.CertFile, "TLSKEY": cert.KeyFile,
		}
		s.Files["localnames"] = "far.example\n"
		s.Files["access"] = "reject dmarc=fail policy=reject : \"550 5.7.26 not vouched for\"\n"
	})
	begin(t, far)
	_, port := split(t, far.SMTPAddr)
	near := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RESOLVER": dns.Addr, "SMTPPORT": port}
		s.Files["routes"] = ". smtp!\n"
	})
	zone := "far.example. 300 IN MX 10 mx.far.example.\nmx.far.example. 300 IN A 127.0.0.1\n" +
		"mta.example. 300 IN A 127.0.0.9\nmta.example. 300 IN TXT \"v=spf1 ip4:127.0.0.1 -all\"\n" +
		"forged.example. 300 IN TXT \"v=spf1 -all\"\n"
	for _, domain := range []string{"mta.example", "forged.example"} {
		zone += "_dmarc." + domain + ". 300 IN TXT \"v=DMARC1; p=reject\"\n"
	}
	for selector, kind := range map[string]string{"r": "rsa", "e": "ed25519"} {
		// A TXT record consists of strings of at most 255 octets.
		var text []string
		for chunk := range slices.Chunk([]byte(newkey(t, near, "mta.example", selector, kind)), 255) {
			text = append(text, strconv.Quote(string(chunk)))
		}
		zone += fmt.Sprintf("%s._domainkey.mta.example. 300 IN TXT %s\n", selector, strings.Join(text, " "))
	}
	dns.SetZone(t, zone)
	begin(t, near)

	submit(t, near, letter, "-f", "bob@mta.example", "alice@far.example")
	submit(t, near, strings.Replace(letter, "bob@mta.example", "ceo@forged.example", 1), "-f", "bob@mta.example", "alice@far.example")
	mail := awaitMail(t, far, "alice", 1)[0]
	head, _, _ := bytes.Cut(mail, []byte("\n\n"))
	unfolded := strings.Join(strings.Fields(string(head)), " ")
	wantIn(t, unfolded, "Authentication-Results: mx.far.example; spf=pass", "dkim=pass", "dmarc=pass", "header.from=mta.example", "with ESMTPS")
	assert.Equal(t, strings.Count(unfolded, "dkim=pass"), 2)
	awaitLetters(t, far, 1)
	event(t, near, "failed", "rcpt", "alice@far.example", "status", "5.7.26")
	awaitEmpty(t, near)
	awaitEmpty(t, far)
}
