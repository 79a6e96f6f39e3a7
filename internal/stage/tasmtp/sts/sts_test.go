package sts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"crypto/tls"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
)

const good = "version: STSv1\nmode: enforce\nmx: mx.a.test\nmax_age: 86400\n"

// host is a domain: its TXT records, its HTTPS server and the clock.
type host struct {
	mu     sync.Mutex
	texts  []string
	fails  error
	answer func(w http.ResponseWriter)
	asked  int
	now    time.Time
	store  *Store
	dir    string
}

func (h *host) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *host) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	h.answer(w)
}

// plain answers with a text.
func plain(text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, text)
	}
}

func newHost(t *testing.T, cert string) *host {
	t.Helper()
	h := &host{texts: []string{"v=STSv1; id=1;"}, answer: plain(good), now: time.Unix(1795220010, 0), dir: t.TempDir()}
	ca := peer.NewCA(t, "ca")
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(cert)}}
	s.StartTLS()
	t.Cleanup(s.Close)
	disk, err := durable.NewOS(h.dir)
	assert.Must(t, err)
	t.Cleanup(func() { disk.Close() })
	assert.Must(t, os.Mkdir(filepath.Join(h.dir, Dir), 0o755))
	h.store = New(Config{FS: disk, Roots: ca.Pool(), Port: s.Listener.Addr().(*net.TCPAddr).Port,
		Text: func(_ context.Context, name string) ([]string, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if name != "_mta-sts.a.test" {
				return nil, fmt.Errorf("asked for %s", name)
			}
			return h.texts, h.fails
		},
		Addrs: func(_ context.Context, name string) ([]netip.Addr, error) {
			if name != "mta-sts.a.test" {
				return nil, fmt.Errorf("asked for %s", name)
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		},
		Now: func() time.Time {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.now
		}})
	return h
}

// again returns the store of another process.
func (h *host) again() *Store { return New(h.store.cfg) }

func mode(s *Store) string {
	p, failed := s.Policy(context.Background(), "a.test")
	switch {
	case p == nil && failed == nil:
		return "no policy"
	case p == nil && failed.Type == "":
		return failed.Error()
	case p == nil:
		return failed.Type
	}
	return string(p.Mode)
}

// RFC 8461 §3.3
func TestFetchThatFails(t *testing.T) {
	cases := map[string]struct {
		cert   string
		answer func(http.ResponseWriter)
		want   string
	}{
		"good":                     {"mta-sts.a.test", plain(good), "enforce"},
		"a certificate of another": {"www.a.test", plain(good), WebPKIFailed},
		"not found":                {"mta-sts.a.test", func(w http.ResponseWriter) { w.WriteHeader(404) }, FetchError},
		"sent elsewhere": {"mta-sts.a.test", func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://mta-sts.a.test/other")
			w.WriteHeader(302)
		}, FetchError},
		"another type": {"mta-sts.a.test", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, good)
		}, FetchError},
		"too long":  {"mta-sts.a.test", plain(good + strings.Repeat("x", maxPolicy)), FetchError},
		"no policy": {"mta-sts.a.test", plain("hello"), Invalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.cert)
			h.answer = c.answer
			assert.Equal(t, mode(h.store), c.want)
			mode(h.store)
			if h.asked > 1 {
				t.Errorf("asked %d times in a moment", h.asked)
			}
		})
	}
}

// RFC 8461 §5.1: what is known counts for its time, whatever the network says, and no
// longer.
func TestPolicyCountsForItsTime(t *testing.T) {
	h := newHost(t, "mta-sts.a.test")
	step := func(what, want string, asked int, f func()) {
		t.Helper()
		h.set(f)
		if got := mode(h.store); got != want || h.asked != asked {
			t.Errorf("%s: got %s after %d fetches, want %s after %d", what, got, h.asked, want, asked)
		}
	}
	step("first", "enforce", 1, func() {})
	step("again", "enforce", 1, func() {})
	step("the record is gone", "enforce", 1, func() { h.texts = nil })
	step("the name server fails", "enforce", 1, func() { h.fails = errors.New("SERVFAIL") })
	step("two records", "enforce", 1, func() { h.fails, h.texts = nil, []string{"v=STSv1; id=1;", "v=STSv1; id=2;"} })
	step("a new id, and no host", "enforce", 2, func() { h.texts, h.answer = []string{"v=STSv1; id=2"}, plain("") })
	step("not asked again at once", "enforce", 2, func() {})
	step("after five minutes", "testing", 3, func() {
		h.now, h.answer = h.now.Add(5*time.Minute), plain(strings.Replace(good, "enforce", "testing", 1))
	})
	if got := mode(h.again()); got != "testing" || h.asked != 3 {
		t.Errorf("another process: got %s after %d fetches", got, h.asked)
	}
	step("half its time is over, the host is gone", "testing", 4, func() { h.now, h.answer = h.now.Add(13*time.Hour), plain("") })
	step("its time is over", Invalid, 5, func() { h.now = h.now.Add(12 * time.Hour) })
	step("the record is gone, too", "no policy", 5, func() { h.texts = nil })
	step("unknown whether there is one", "fetch the MTA-STS policy of a.test: SERVFAIL", 5, func() { h.fails = errors.New("SERVFAIL") })
	assert.NoError(t, Sweep(h.store.cfg.FS, h.now.Add(48*time.Hour)))
	if left, err := os.ReadDir(filepath.Join(h.dir, Dir)); err != nil || len(left) > 0 {
		t.Errorf("left after the sweep: %v, %v", left, err)
	}
}

func TestPoliciesThatCannotBe(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"good":                  {good, ""},
		"CRLF, unknown field":   {strings.ReplaceAll(good+"new: x\n", "\n", "\r\n"), ""},
		"none needs no mx":      {"version: STSv1\nmode: none\nmax_age: 1\n", ""},
		"a wildcard":            {strings.Replace(good, "mx.a.test", "*.a.test", 1), ""},
		"mode twice: the first": {good + "mode: rubbish\n", ""},
		"no version":            {"mode: none\nmax_age: 1\n", "no version"},
		"another version":       {"version: STSv2\n", "not STSv1"},
		"no mode":               {"version: STSv1\nmax_age: 1\nmx: a\n", "no mode"},
		"no max_age":            {"version: STSv1\nmode: none\n", "no max_age"},
		"a negative max_age":    {"version: STSv1\nmode: none\nmax_age: -1\n", "its max_age"},
		"no mx":                 {"version: STSv1\nmode: enforce\nmax_age: 1\n", "names no mx"},
		"a star inside":         {strings.Replace(good, "mx.a.test", "m*.a.test", 1), "its mx"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.text)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// RFC 8461 §4.1
func TestServersOfAPolicy(t *testing.T) {
	p := &Policy{MX: []string{"mx.a.test", "*.b.test"}}
	for host, want := range map[string]bool{"mx.a.test": true, "my.a.test": false, "x.b.test": true, "x.y.b.test": false, "b.test": false, ".b.test": false} {
		assert.Equal(t, p.Has(host), want, host)
	}
}

// FuzzParse: no policy ends the program, and one that was kept is the same when it is
// read.
func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("version: STSv1\r\nmode: none\r\nmax_age: 999999999999\r\nid: x\r\n")
	f.Add("version:STSv1\nmode:testing\nmax_age:1\nmx: *.a\nfetched: yesterday\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		p.ID, p.Fetched = "id", time.Unix(1795220010, 0).UTC()
		back, err := decode(p.encode())
		if err != nil {
			t.Fatalf("%v: %q", err, p.encode())
		}
		if fmt.Sprint(back) != fmt.Sprint(p) {
			t.Fatalf("got %v, want %v", back, p)
		}
	})
}

// FuzzRecord: no TXT record ends the program.
func FuzzRecord(f *testing.F) {
	f.Add("v=STSv1; id=20160831085700Z;")
	f.Add("v=STSv1;id=")
	f.Fuzz(func(t *testing.T, text string) {
		if id, ok := recordID([]string{text}); ok && !isID(id) {
			t.Fatal(id)
		}
	})
}

// Peer11: a policy that this process has seen counts to its end, also when its file is deleted
// and the network says that there is none, or nothing.
func TestDeletedFileMakesNoPolicyForgotten(t *testing.T) {
	h := newHost(t, "mta-sts.a.test")
	assert.Equal(t, mode(h.store), "enforce")
	other := h.again() // it has read the file, and fetched nothing
	assert.Equal(t, mode(other), "enforce")
	assert.Equal(t, h.asked, 1)
	assert.Must(t, os.RemoveAll(filepath.Join(h.dir, Dir)))
	for _, s := range []*Store{h.store, other} {
		for name, trouble := range map[string]func(){
			"nothing happens": func() {},
			"no record":       func() { h.texts = nil },
			"two records":     func() { h.texts = []string{"v=STSv1; id=1;", "v=STSv1; id=2;"} },
			"the DNS fails":   func() { h.fails = errors.New("no name server") },
			"another policy, not got": func() {
				h.texts, h.answer = []string{"v=STSv1; id=9;"}, func(w http.ResponseWriter) { w.WriteHeader(404) }
			},
			"it is old": func() { h.now = h.now.Add(20 * time.Hour) },
		} {
			h.set(func() {
				h.texts, h.fails, h.answer = []string{"v=STSv1; id=1;"}, nil, func(w http.ResponseWriter) { w.WriteHeader(500) }
				trouble()
			})
			if got := mode(s); got != "enforce" {
				t.Errorf("%s: %s", name, got)
			}
			h.set(func() { h.now = time.Unix(1795220010, 0) })
		}
	}
	// More domains than are remembered without a policy do not displace it.
	h.set(func() { h.fails = errors.New("no name server") })
	for i := range maxKnown + 10 {
		h.store.domain(fmt.Sprint(i, ".test"))
	}
	assert.Equal(t, mode(h.store), "enforce")
	if n := len(h.store.known); n > maxKnown+1 {
		t.Errorf("%d domains in memory", n)
	}
	h.set(func() { h.now = h.now.Add(25 * time.Hour) })
	if got := mode(h.store); got == "enforce" {
		t.Error("it counts behind its end")
	}
}
