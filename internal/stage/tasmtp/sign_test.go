package tasmtp

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// testKey is a directory with a table and a key for example.org.
type testKey struct {
	dir, record string
	log         strings.Builder
}

func newSigner(t *testing.T) *testKey {
	t.Helper()
	s := &testKey{dir: t.TempDir()}
	s.newKey(t)
	table := "example.org sel key.pem\nxn--bcher-kva.example sel missing.pem\n"
	assert.Must(t, os.WriteFile(filepath.Join(s.dir, "dkim"), []byte(table), 0o600))
	return s
}

func (s *testKey) newKey(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	assert.Must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	assert.Must(t, err)
	assert.Must(t, os.WriteFile(filepath.Join(s.dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	s.record = "v=DKIM1; k=ed25519; p=" + base64.StdEncoding.EncodeToString(public)
}

func (s *testKey) use(c *Config) {
	c.DKIM, c.SignNets = filepath.Join(s.dir, "dkim"), []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	c.Log = slog.New(slog.NewTextHandler(&s.log, nil))
}

// verify returns the good signatures of what arrived, "" for none, or what is wrong.
func (s *testKey) verify(t *testing.T, taken Taken) string {
	t.Helper()
	data := strings.TrimSuffix(strings.ReplaceAll(taken.Data, "\r\n..", "\r\n."), ".\r\n")
	if !strings.Contains(data, "\r\n\r\n") {
		data += "\r\n" // the verifier wants the header's end
	}
	all, err := dkim.VerifyWithOptions(strings.NewReader(data), &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) {
		if name == "sel._domainkey.example.org" {
			return []string{s.record}, nil
		}
		return nil, errors.New("no such name")
	}})
	assert.Must(t, err)
	var words []string
	for _, v := range all {
		words = append(words, fmt.Sprint(v.Domain, " ", v.Err))
	}
	return strings.Join(words, "; ")
}

// send delivers one message with an envelope's lines and a header.
func (s *station) send(channel, lines, header, body string) taproto.Answer {
	s.t.Helper()
	file := s.NewName()
	head := lines + "from <a@here.test>\nto <to@there.test>\nenv-end\n" + header
	s.Write("queue/"+file, []byte(head+body))
	s.Specify(file, Message{Header: header, Rcpts: []workspec.Recipient{{Channel: channel, Host: "127.0.0.1:" + fmt.Sprint(s.relay.port), Address: "to@there.test"}}}, min(int64(len(head)+1), int64(len(head)+len(body))))
	a := s.deliver(file, "127.0.0.1:"+fmt.Sprint(s.relay.port))
	if len(a) != 1 {
		s.t.Fatalf("got %+v", a)
	}
	return a[0]
}

// Mail of our own domains is signed if it is ours, for any server, after its conversion;
// what only passes through is not.
func TestOwnMailIsSigned(t *testing.T) {
	const from = "From: Alice <alice@example.org>\nSubject: x\n"
	const good = "example.org <nil>"
	const outside = "external\nrcvdfrom example.org (evil.example [198.51.100.7])\n"
	cases := map[string]struct {
		lines, header, body string
		want                string
	}{
		"of this machine":          {"", from, "\nHello\n.\n..x \n\n\n", good},
		"converted":                {"", from, "\nGrüße\n.\n", good},
		"all header":               {"", from, "", good},
		"logged in":                {outside + "with ESMTPSA\n", from, "\nx\n", good},
		"of our networks":          {"external\nrcvdfrom [198.51.100.7] (host.example [192.0.2.7])\nwith ESMTP\n", from, "\nx\n", good},
		"of our networks, unnamed": {"external\nrcvdfrom x ([192.0.2.7])\nwith ESMTPS\n", from, "\nx\n", good},
		"passing through":          {outside + "with ESMTPS\n", from, "\nx\n", ""},
		"says it is of ours":       {"external\nrcvdfrom ([192.0.2.7]) (evil.example [198.51.100.7])\nwith ESMTP\n", from, "\nx\n", ""},
		"another domain":           {"", "From: a@example.net\n", "\nx\n", ""},
		"a domain below":           {"", "From: a@sub.example.org\n", "\nx\n", ""},
		"two From":                 {"", from + from, "\nx\n", ""},
		"no From":                  {"", "Subject: x\n", "\nx\n", ""},
		"two addresses":            {"", "From: a@example.org, b@example.net\n", "\nx\n", good},
		"our report":               {"errormsg\n", from, "\nx\n", good},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			keys := newSigner(t)
			sink := oldServer(t)
			s := newStation(t, sink.Port(), "", keys.use)
			if a := s.send("smtp", c.lines, c.header, c.body); a.Word != taproto.OK3 {
				t.Fatalf("got %+v", a)
			}
			assert.Equal(t, keys.verify(t, sink.Messages()[0]), c.want, sink.Messages()[0].Data)
		})
	}
}

// What goes to a local store is not signed.
func TestLocalStoreGetsNoSignature(t *testing.T) {
	keys := newSigner(t)
	sink, s := newPair(t, &Sink{LMTP: true, Extensions: []string{"8BITMIME"}}, keys.use)
	if a := s.send("lmtp", "", "From: a@example.org\n", "\nx\n"); a.Word != taproto.OK3 && a.Word != taproto.OK {
		t.Fatalf("got %+v", a)
	}
	assert.Equal(t, keys.verify(t, sink.Messages()[0]), "")
}

// A key that cannot be used is trouble of ours: its mail waits, other mail goes, and when
// the key is mended the mail goes too.
func TestMailWaitsForItsKey(t *testing.T) {
	keys := newSigner(t)
	sink := oldServer(t)
	s := newStation(t, sink.Port(), "", keys.use)
	for range 2 {
		a := s.send("smtp", "", "From: a@xn--bcher-kva.example\n", "\nx\n")
		if a.Word != taproto.Deferred || workspec.ParseNotary(a.Notary).Status != "4.7.5" || !strings.Contains(a.Text, "our signature for xn--bcher-kva.example cannot be made now") {
			t.Errorf("got %+v", a)
		}
	}
	assert.Equal(t, strings.Count(keys.log.String(), "dkim-key-unusable"), 1, "lines in the log: %s", keys.log.String())
	if a := s.send("smtp", "", "From: a@example.org\n", "\nx\n"); a.Word != taproto.OK3 {
		t.Errorf("got %+v", a)
	}
	assert.Must(t, os.Rename(filepath.Join(keys.dir, "key.pem"), filepath.Join(keys.dir, "missing.pem")))
	if a := s.send("smtp", "", "From: a@xn--bcher-kva.example\n", "\nx\n"); a.Word != taproto.OK3 {
		t.Errorf("got %+v", a)
	}
	assert.Equal(t, sink.Connects(), 1, "connections")
}
