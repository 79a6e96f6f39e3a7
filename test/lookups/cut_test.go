package lookups

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	ber "github.com/go-asn1-ber/asn1-ber"

	"zmailer/internal/lookup/ldap"
	"zmailer/internal/lookup/settings"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

// remote is a server of any kind with a proxy before it, through which source asks.
type remote struct {
	proxy  *peer.Proxy
	source string
}

// between starts a proxy before a server.
func between(t *testing.T, s *server) *server {
	t.Helper()
	p := rig.Proxy(t, s.network, s.address)
	return &server{t: t, network: s.network, address: p.Addr(), proxy: p}
}

// remotes returns each kind of server, by its scheme.
func remotes() map[string]func(t *testing.T) remote {
	all := map[string]func(t *testing.T) remote{
		"ldap": func(t *testing.T) remote {
			p := between(t, slapd(t, map[string]string{"known": "ok@x.example"}))
			return remote{p.proxy, write(t, "ldap", "url = ldap://%s\nbase = dc=x\nfilter = (userPassword=%%s)\nattributes = description\n", p.address)}
		},
	}
	for _, b := range backends() {
		all[b.scheme] = func(t *testing.T) remote {
			s := b.start(t)
			b.fill(s, map[string]string{"known": "ok@x.example"})
			p := between(t, s)
			return remote{p.proxy, b.source(t, p)}
		}
	}
	for format, send := range map[string]string{"json": `{"to":"ok@x.example"}`, "text": "ok@x.example\n"} {
		for _, length := range []bool{true, false} {
			all[fmt.Sprintf("http %s, length=%v", format, length)] = func(t *testing.T) remote {
				l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
				service := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					text := send
					if r.URL.Path != "/known" {
						text = `{"to":null}`
						if format == "text" {
							text = ""
						}
					}
					if !length {
						_ = http.NewResponseController(w).Flush() // it has chunks then
					}
					_, _ = io.WriteString(w, text)
				})}
				go service.Serve(l)
				t.Cleanup(func() { service.Close() })
				p := between(t, &server{network: "tcp", address: l.Addr().String()})
				settings := "format = text\n"
				if format == "json" {
					settings = "value = to\n"
				}
				return remote{p.proxy, write(t, "http", "url = http://%s/%%s\n%s", p.address, settings)}
			}
		}
	}
	return all
}

// A connection that is cut at any byte of an answer, as a server does that is restarted between a
// query and its end, makes no value shorter and no recipient unknown. An answer that comes too late
// does not, either; when the server answers in time, so do lookups.
func TestAnswerThatIsCutOrLateIsNeverANo(t *testing.T) {
	for name, start := range remotes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			opened := open(t, r.source, limit)
			for key, want := range map[string]string{"known": "ok@x.example", "unknown": "none"} {
				eventually(t, opened, key, want)
				before := r.proxy.Passed()
				eventually(t, opened, key, want)
				length := r.proxy.Passed() - before
				if length < 1 {
					t.Fatalf("an answer of %d bytes", length)
				}
				failed := 0
				for n := range length {
					eventually(t, opened, key, want) // connected again
					r.proxy.Cut(n)
					got, err := ask(opened, key)
					r.proxy.Pass()
					if got != want && got != "error" {
						t.Fatalf("%s, cut behind %d of %d bytes: got %q, %v", key, n, length, got, err)
					}
					if got == "error" {
						failed++
					}
				}
				t.Logf("%s: cut at %d bytes, %d failures, the others were asked again", key, length, failed)
			}
			impatient := open(t, r.source, time.Second)
			eventually(t, impatient, "known", "ok@x.example")
			r.proxy.Hold()
			for _, key := range []string{"known", "unknown"} {
				if got, err := ask(impatient, key); got != "error" {
					t.Errorf("held: %s: got %s, %v", key, got, err)
				}
			}
			r.proxy.Pass()
			eventually(t, impatient, "known", "ok@x.example")
			eventually(t, impatient, "unknown", "none")
		})
	}
}

// A web service that was restarted is asked again by itself.
func TestWebServiceDownAndUpAgain(t *testing.T) {
	addr := rig.FreeAddr(t)
	start := func() *http.Server {
		l := assert.Get(net.Listen("tcp", addr))(t)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text := "null"
			if r.URL.Path == "/known" {
				text = `"ok@x.example"`
			}
			_, _ = io.WriteString(w, text)
		})}
		go s.Serve(l)
		return s
	}
	s := start()
	opened := open(t, write(t, "http", "url = http://%s/%%s\n", addr), limit)
	eventually(t, opened, "known", "ok@x.example")
	assert.NoError(t, s.Close())
	for _, key := range []string{"known", "unknown"} {
		if got, err := ask(opened, key); got != "error" {
			t.Errorf("down: %s: got %s, %v", key, got, err)
		}
	}
	s = start()
	defer s.Close()
	eventually(t, opened, "known", "ok@x.example")
	eventually(t, opened, "unknown", "none")
}

// A text whose end is the connection's end may have been cut, so it is no answer.
func TestWebTextWithoutALengthIsAFailure(t *testing.T) {
	for body, want := range map[string]string{"\r\nok@x.exam": "error", "\r\n": "error", "Content-Length: 3\r\n\r\nx@y": "x@y"} {
		addr := rig.Serve(t, "tcp", func(c net.Conn) {
			defer c.Close()
			_, _ = c.Read(make([]byte, 4096))
			fmt.Fprintf(c, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n%s", body)
		})
		opened := open(t, write(t, "http", "url = http://%s/%%s\nformat = text\n", addr), limit)
		if got, err := ask(opened, "known"); got != want {
			t.Errorf("%q: got %s, %v, want %s", body, got, err, want)
		}
	}
}

// sendEntries is a directory that answers the search "cn=unlimited" by a million entries, and then by
// success, whatever limit it is asked to keep.
func sendEntries(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(limit))
	asked, err := ber.ReadPacket(c)
	if err != nil || len(asked.Children) < 2 {
		return
	}
	id := asked.Children[0].Value
	text := func(s string) *ber.Packet {
		return ber.NewString(ber.ClassUniversal, ber.TypePrimitive, ber.TagOctetString, s, "")
	}
	list := func(class ber.Class, tag ber.Tag, children ...*ber.Packet) *ber.Packet {
		p := ber.Encode(class, ber.TypeConstructed, tag, nil, "")
		for _, child := range children {
			p.AppendChild(child)
		}
		return p
	}
	message := func(operation *ber.Packet) []byte { // RFC 4511 section 4.1.1
		return list(ber.ClassUniversal, ber.TagSequence, ber.NewInteger(ber.ClassUniversal, ber.TypePrimitive, ber.TagInteger, id, ""), operation).Bytes()
	}
	values := list(ber.ClassUniversal, ber.TagSequence, text("description"), list(ber.ClassUniversal, ber.TagSet, text("a@x.example")))
	entry := message(list(ber.ClassApplication, 4, text("cn=a,dc=x"), list(ber.ClassUniversal, ber.TagSequence, values)))
	many := bytes.Repeat(entry, 1000)
	for range 1000 {
		if _, err := c.Write(many); err != nil {
			return
		}
	}
	success := ber.NewInteger(ber.ClassUniversal, ber.TypePrimitive, ber.TagEnumerated, 0, "")
	_, _ = c.Write(message(list(ber.ClassApplication, 5, success, text(""), text(""))))
}

// A directory that has a million entries for a key, or a million values in one entry, makes a
// failure, also if it does not keep to the limit of the search. slapd itself passes on what a program of ours answers (slapd-sock(5)); it gives each
// search to that program.
func TestDirectoryWithAMillionAnswersIsAFailure(t *testing.T) {
	find(t, "/usr/lib/ldap/back_sock.so", "slapd")
	dir := rig.ShortDir(t)
	l := assert.Get(net.Listen("unix", dir+"/s"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				asked := make([]byte, 4096)
				n, _ := c.Read(asked)
				_ = c.SetDeadline(time.Now().Add(limit))
				many := func(text string, times int) {
					b := []byte(strings.Repeat(text, 1000))
					for range times / 1000 {
						if _, err := c.Write(b); err != nil {
							return
						}
					}
				}
				switch request := string(asked[:n]); {
				case strings.Contains(request, "cn=entries"):
					many("dn: cn=a,dc=x\nobjectClass: person\ndescription: a@x.example\n\n", 1_000_000)
					fmt.Fprint(c, "RESULT\ncode: 4\n") // slapd sends what it is asked for
					return
				case strings.Contains(request, "cn=values"):
					fmt.Fprint(c, "dn: cn=a,dc=x\nobjectClass: person\n")
					many("description: a@x.example\n", 1_000_000)
					fmt.Fprint(c, "\n")
				case strings.Contains(request, "cn=known"):
					fmt.Fprint(c, "dn: cn=a,dc=x\nobjectClass: person\ndescription: ok@x.example\n\n")
				}
				fmt.Fprint(c, "RESULT\ncode: 0\n")
			}()
		}
	}()
	conf := "include /etc/ldap/schema/core.schema\nmodulepath /usr/lib/ldap\nmoduleload back_sock\ndatabase sock\nsuffix dc=x\nsocketpath " + dir + "/s\nsizelimit unlimited\naccess to * by * read\n"
	assert.Must(t, os.WriteFile(dir+"/slapd.conf", []byte(conf), 0o600))
	addr := rig.FreeAddr(t)
	s := &server{t: t, end: 15, network: "tcp", address: addr, argv: []string{find(t, "/usr/sbin/slapd", "slapd"), "-d", "0", "-f", dir + "/slapd.conf", "-h", "ldap://" + addr + "/"}}
	s.start()
	t.Cleanup(s.stop)
	opened := open(t, write(t, "ldap", "url = ldap://%s\nbase = dc=x\nfilter = (cn=%%s)\nattributes = description\n", addr), limit)
	eventually(t, opened, "known", "ok@x.example")
	for _, key := range []string{"entries", "values"} {
		if got, err := ask(opened, key); got != "error" {
			t.Errorf("%s: got %.40s, %v", key, got, err)
		} else {
			t.Logf("%s: %v", key, err)
		}
		eventually(t, opened, "known", "ok@x.example")
	}
	eventually(t, opened, "unknown", "none")
	binds := func(addr string) {
		t.Helper()
		c := settings.LDAP{URLs: []string{"ldap://" + addr}, Base: "dc=x", Scope: "sub", Filter: "(cn=%u)", Limit: 2}
		if err := ldap.Bind(t.Context(), c, limit, "entries", "secret"); err == nil || errors.Is(err, ldap.ErrRefused) {
			t.Errorf("a login of one of a million users: %v", err)
		}
	}
	binds(addr)
	unlimited := rig.Serve(t, "tcp", sendEntries)
	binds(unlimited)
	opened = open(t, write(t, "ldap", "url = ldap://%s\nbase = dc=x\nfilter = (cn=%%s)\nattributes = description\n", unlimited), limit)
	for range 3 {
		if got, err := ask(opened, "unlimited"); got != "error" || !strings.Contains(err.Error(), "size limit") {
			t.Errorf("unlimited: got %.40s, %v", got, err)
		}
	}
}
