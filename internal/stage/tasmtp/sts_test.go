package tasmtp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/stage/tasmtp/tlsrpt"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
	"zmailer/test/peer"
)

// policyHost serves there.test's MTA-STS policy over HTTPS.
type policyHost struct {
	*httptest.Server
	mu    sync.Mutex
	text  string // "": there is none
	asked int
}

func (h *policyHost) set(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = text
}

func (h *policyHost) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	if h.text == "" || req.URL.Path != "/.well-known/mta-sts.txt" {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, h.text)
}

func (h *policyHost) port() int { return h.Listener.Addr().(*net.TCPAddr).Port }

func servePolicy(t *testing.T, ca *peer.CA, text string) *policyHost {
	t.Helper()
	h := &policyHost{text: text}
	h.Server = httptest.NewUnstartedServer(h)
	h.TLS = serverTLS(ca.Issue("mta-sts.there.test"))
	h.Config.ErrorLog = nil
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

const stsZone = tlsZone + `
_mta-sts.there.test.  300 IN TXT "v=STSv1; id=1;"
mta-sts.there.test.   300 IN A   127.0.0.1
`

func stsText(mode, mx string) string {
	return fmt.Sprintf("version: STSv1\r\nmode: %s\r\nmx: %s\r\nmax_age: 604800\r\n", mode, mx)
}

// stsStation returns a station that fetches policies from a host and keeps them on the disk.
func stsStation(t *testing.T, ca *peer.CA, sink *Sink, h *policyHost, zone, policies string) (*station, *mxtest.Server, string) {
	t.Helper()
	var spool *Spool
	s, names := tlsStation(t, sink, zone, policies, func(c *Config) {
		c.Security.Roots, c.Security.STSPort, c.Security.Report = ca.Pool(), h.port(), true
		spool = NewSpool(t)
		c.Security.use(spool.PostOffice, nil)
	})
	return s, names, spool.Dir // where sts/ and tlsrpt/ are
}

// RFC 8461 §5: what a policy makes of a server.
func TestMTASTS(t *testing.T) {
	ca, other := peer.NewCA(t, "known"), peer.NewCA(t, "unknown")
	const clear, secure = "in the clear", "under TLS"
	cases := map[string]struct {
		text   string
		cert   string // name in it; "": no TLS; "unknown": of another authority
		level  string
		want   string
		result string // all, of RFC 8460; "-": success
	}{
		"enforced, good":              {stsText("enforce", "mx.there.test"), "mx.there.test", "sts", secure, "-"},
		"enforced, by a wildcard":     {stsText("enforce", "*.there.test"), "mx.there.test", "sts", secure, "-"},
		"enforced, another name":      {stsText("enforce", "mx.there.test"), "there.test", "sts", "the certificate is for there.test, not for mx.there.test", tlsrpt.HostMismatch},
		"enforced, unknown authority": {stsText("enforce", "mx.there.test"), "unknown", "sts", "unknown authority", tlsrpt.NotTrusted},
		"enforced, no TLS":            {stsText("enforce", "mx.there.test"), "", "sts", "the server does not offer STARTTLS", tlsrpt.NotSupported},
		"enforced, another server":    {stsText("enforce", "mail.there.test"), "mx.there.test", "sts", "mx.there.test is no server of there.test's MTA-STS policy", tlsrpt.Failure},
		"testing, another name":       {stsText("testing", "mx.there.test"), "there.test", "sts", secure, tlsrpt.HostMismatch},
		"testing, another server":     {stsText("testing", "mail.there.test"), "mx.there.test", "sts", secure, tlsrpt.Failure},
		"testing, no TLS":             {stsText("testing", "mx.there.test"), "", "sts", clear, tlsrpt.NotSupported},
		"none, no TLS":                {stsText("none", "mx.there.test"), "", "sts", clear, tlsrpt.NotSupported},
		"no policy, no TLS":           {"", "", "sts", clear, "starttls-not-supported sts-policy-fetch-error"},
		"a policy that is none":       {"hello", "mx.there.test", "sts", secure, "- sts-policy-invalid"},
		"may does not look for it":    {stsText("enforce", "mail.there.test"), "mx.there.test", "may", secure, "-"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := &Sink{}
			switch c.cert {
			case "":
			case "unknown":
				sink.TLS = serverTLS(other.Issue("mx.there.test"))
			default:
				sink.TLS = serverTLS(ca.Issue(c.cert))
			}
			sink.Start(t, "", "")
			s, _, dir := stsStation(t, ca, sink, servePolicy(t, ca, c.text), stsZone, "* "+c.level)
			got := s.one("smtp", "there.test")
			if c.want == clear || c.want == secure {
				if got.Word != taproto.OK3 || under(sink) != c.want {
					t.Errorf("got %+v, %s, want %s", got, under(sink), c.want)
				}
			} else if got.Word != taproto.DeferAll || !strings.Contains(got.Text, c.want) || len(sink.Messages()) > 0 {
				t.Errorf("got %+v, %s, want %q", got, under(sink), c.want)
			}
			s.relay.security.reports.Close()
			assert.Equal(t, countedResults(t, dir), c.result, "results")
		})
	}
}

// A server that refuses the hello under TLS has had its TLS: the reply counts, and nothing
// is tried in the clear.
func TestRefusedHelloUnderTLSIsNoTLSTrouble(t *testing.T) {
	ca := peer.NewCA(t, "known")
	hellos := 0
	sink := (&Sink{TLS: serverTLS(ca.Issue("mx.there.test")), Answer: func(command string) string {
		if strings.HasPrefix(command, "EHLO") {
			if hellos++; hellos == 2 {
				return "450 4.3.2 not before noon"
			}
		}
		return ""
	}}).Start(t, "", "")
	s, _, dir := stsStation(t, ca, sink, servePolicy(t, ca, stsText("enforce", "mx.there.test")), stsZone, "* sts")
	got := s.one("smtp", "there.test")
	if got.Word != taproto.DeferAll || !strings.Contains(got.Text, "450 4.3.2 not before noon") || strings.Contains(got.Text, "MTA-STS") || !strings.Contains(got.Notary, "4.3.2") || sink.Connects() != 1 {
		t.Errorf("got %+v on %d connections", got, sink.Connects())
	}
	s.relay.security.reports.Close()
	assert.Equal(t, countedResults(t, dir), "-", "results")
}

// RFC 8689 §4.2.1: whether a server is the domain's may be known later; the message that
// requires it waits, and no other does.
func TestREQUIRETLSWaitsForWhatIsNotKnownNow(t *testing.T) {
	ca := peer.NewCA(t, "known")
	cases := map[string]struct {
		policy string // "": the fetch fails
		fail   string // the questions that the name server fails
		word   taproto.Word
		want   string
	}{
		"known":                             {stsText("enforce", "mx.there.test"), "", taproto.OK3, "250 2.0.0 queued"},
		"the policy cannot be fetched":      {"", "", taproto.Deferred, "it is unknown now whether mx.there.test is a server of there.test: fetch the MTA-STS policy"},
		"its record cannot be looked up":    {stsText("enforce", "mx.there.test"), "_mta-sts.there.test", taproto.Deferred, "SERVFAIL"},
		"the MX records cannot be, a while": {stsText("enforce", "mx.there.test"), "there.test MX", taproto.Deferred, "look up MX of there.test"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{TLS: serverTLS(ca.Issue("mx.there.test")), Secure: []string{"REQUIRETLS"}}).Start(t, "", "")
			zone := stsZone
			if c.fail == "there.test MX" {
				zone = strings.Replace(zone, "300 IN MX", "0 IN MX", 1) // asked for twice
			}
			s, names, _ := stsStation(t, ca, sink, servePolicy(t, ca, c.policy), zone, "")
			if c.fail == "there.test MX" {
				names.Hold(c.fail, func() { names.Fail(c.fail, dns.RcodeServerFailure, 99) })
			} else if c.fail != "" {
				names.Fail(c.fail, dns.RcodeServerFailure, 99)
			}
			message := s.Queue(Message{Rcpts: []workspec.Recipient{{Channel: "smtp", Host: "there.test", Address: "to@there.test", Notary: "REQUIRETLS=YES"}}})
			Only(t, s.deliver(message, "there.test"), c.word, c.want)
		})
	}
}

// countedResults returns those of today's file in tlsrpt/, "-" for a success.
func countedResults(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, tlsrpt.Dir, tlsrpt.Day(time.Now())))
	assert.Must(t, err)
	defer f.Close()
	list, err := tlsrpt.Read(f)
	assert.Must(t, err)
	var results []string
	for _, s := range list {
		if s.Result == "" {
			s.Result = "-"
		}
		results = append(results, s.Result)
	}
	return strings.Join(results, " ")
}

// --test-tls prints a policy that agents have kept, and keeps none itself.
func TestTestTLSPrintsAKeptPolicy(t *testing.T) {
	ca := peer.NewCA(t, "known")
	h := servePolicy(t, ca, stsText("enforce", "mx.there.test"))
	sink := (&Sink{TLS: serverTLS(ca.Issue("mx.there.test"))}).Start(t, "", "")
	s, names, dir := stsStation(t, ca, sink, h, stsZone, "* sts")
	tell := func() string {
		var out bytes.Buffer
		cfg := Config{Hostname: "here.test", Resolver: names.Addr, PostOffice: dir,
			Security: Security{Policies: s.relay.security.policies.Path(), Roots: ca.Pool(), STSPort: h.port(), Report: true}}
		assert.NoError(t, TestTLS(context.Background(), cfg, "there.test", &out))
		return out.String()
	}
	const told = "MTA-STS policy 1, enforce"
	assert.Contains(t, tell(), told, "fetched")
	if left, err := os.ReadDir(filepath.Join(dir, "sts")); err != nil || len(left) > 0 {
		t.Errorf("it has left %v, %v", left, err)
	}
	s.want(taproto.OK3, "smtp", "there.test")
	names.SetZone(t, tlsZone)
	h.set("")
	assert.Contains(t, tell(), told, "kept")
}

// RFC 8461 §5.1: a policy that still counts survives a restart, the loss of its record and
// of its host, and is readable by cat.
func TestCachedPolicyIsNotDowngraded(t *testing.T) {
	ca := peer.NewCA(t, "known")
	sink := (&Sink{TLS: serverTLS(ca.Issue("mx.there.test"))}).Start(t, "", "")
	h := servePolicy(t, ca, stsText("enforce", "mx.there.test"))
	s, names, dir := stsStation(t, ca, sink, h, stsZone, "* sts")
	s.want(taproto.OK3, "smtp", "there.test")
	text, err := os.ReadFile(filepath.Join(dir, "sts", "there.test"))
	if err != nil || !strings.HasPrefix(string(text), "id: 1\nfetched: 20") || !strings.Contains(string(text), "\nmode: enforce\nmx: mx.there.test\n") {
		t.Errorf("got %v, %s", err, text)
	}
	// The attacker takes away record, host and STARTTLS.
	names.SetZone(t, tlsZone)
	h.set("")
	disk, err := durable.NewOS(dir)
	assert.Must(t, err)
	t.Cleanup(func() { disk.Close() })
	plain := (&Sink{}).Start(t, "", "")
	again, _ := tlsStation(t, plain, tlsZone, "* sts", func(c *Config) {
		c.Security.Roots, c.Security.STSPort, c.Security.Disk = ca.Pool(), h.port(), disk
	})
	if got := again.one("smtp", "there.test"); got.Word != taproto.DeferAll || !strings.Contains(got.Text, "does not offer STARTTLS") || len(plain.Messages()) > 0 {
		t.Errorf("got %+v", got)
	}
}
