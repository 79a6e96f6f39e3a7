package smtpserver

import (
	"bufio"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/disk/socket"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/mailq"
)

// scheduler plays the query socket of a postoffice: it answers ETRN as said, and gives
// what it was asked.
func scheduler(t *testing.T, r *running, answer map[string]string) <-chan string {
	t.Helper()
	l := assert.Get(socket.Listen(filepath.Join(r.dir, postoffice.QuerySocket), 0o600))(t)
	t.Cleanup(func() { l.Close() })
	asked := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Write(mailq.Greeting(mailq.Challenge("x")))
				in := bufio.NewScanner(c)
				for in.Scan() {
					asked <- in.Text()
					verb, _, _ := strings.Cut(in.Text(), " ")
					reply, ok := answer[in.Text()]
					if !ok {
						reply = answer[verb]
					}
					if reply == "" {
						return
					}
					_, _ = c.Write([]byte(reply + "\n"))
				}
			}()
		}
	}()
	return asked
}

const (
	started = "+OK; an ETRN started something."
	idle    = "+OK; an ETRN didn't start anything."
)

// specs returns the requests in transport/.
func (r *running) specs() (list []string) {
	r.t.Helper()
	for _, name := range r.names(postoffice.Transport) {
		list = append(list, string(read(r.t, filepath.Join(r.dir, postoffice.Transport, name))))
	}
	return list
}

// etrnNets is 192.0.2.0/24.
func etrnNets(c *Config) { c.Access.ETRNNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }

// M14, RFC 1985: the scheduler is asked, and its answer is the client's.
func TestETRNAsksTheScheduler(t *testing.T) {
	r := ruled(t, map[string]string{"access": "etrn client=203.0.113.5 to=.customer.example\n"}, etrnNets)
	asked := scheduler(t, r, map[string]string{"ETRN": started, "ETRN idle.example": idle})
	for name, tt := range map[string]struct{ client, line, want, ask string }{
		"a host":                 {"192.0.2.1", "ETRN site.example", "250 2.0.0", "ETRN site.example"},
		"in any case":            {"192.0.2.1", "etrn SITE.Example.", "250", "ETRN site.example"},
		"all below":              {"192.0.2.1", "ETRN @site.example", "250 2.0.0", "ETRN @site.example"},
		"a queue":                {"192.0.2.1", "ETRN #uucp-site", "250", "ETRN uucp-site"},
		"a domain in U-labels":   {"192.0.2.1", "ETRN bücher.example", "250", "ETRN xn--bcher-kva.example"},
		"nothing waits":          {"192.0.2.1", "ETRN idle.example", "251 2.0.0", "ETRN idle.example"},
		"a customer's own":       {"203.0.113.5", "ETRN mail.customer.example", "250", "ETRN mail.customer.example"},
		"another's":              {"203.0.113.5", "ETRN site.example", "459 4.7.1", ""},
		"not allowed":            {outsider, "ETRN site.example", "459 4.7.1", ""},
		"no parameter":           {"192.0.2.1", "ETRN", "501 5.5.4", ""},
		"two":                    {"192.0.2.1", "ETRN a.example b.example", "501 5.5.4", ""},
		"no host":                {"192.0.2.1", "ETRN a..b", "501 5.5.4", ""},
		"no domain":              {"192.0.2.1", "ETRN @", "501 5.5.4", ""},
		"no queue":               {"192.0.2.1", "ETRN #", "501 5.5.4", ""},
		"too long":               {"192.0.2.1", "ETRN " + strings.Repeat("a.", 200) + "example", "501 5.5.4", ""},
		"that of a bracket name": {"192.0.2.1", "ETRN [192.0.2.9]", "250", "ETRN [192.0.2.9]"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.as(tt.client, "")
			p.say(tt.line, tt.want)
			got := ""
			select {
			case got = <-asked:
			default:
			}
			assert.Equal(t, got, tt.ask)
		})
	}
	if list := r.specs(); len(list) > 0 {
		t.Errorf("transport/ holds %q", list)
	}
}

// M14: where the scheduler does not answer, a file in transport/ asks it.
func TestETRNLeavesAFileForASchedulerThatDoesNotAnswer(t *testing.T) {
	r := ruled(t, map[string]string{}, etrnNets)
	r.as("192.0.2.1", "").say("ETRN @site.example", "250 2.0.0")
	if got := r.specs(); len(got) != 1 || got[0] != "T @site.example\n" {
		t.Errorf("transport/ holds %q", got)
	}
	// One that says no is asked as nobody, whom everybody may be.
	asked := scheduler(t, r, map[string]string{"ETRN": "-MAILQ2 refused by access control: ETRN", "AUTH": "-no"})
	r.as("192.0.2.1", "").say("ETRN other.example", "250")
	if got := r.specs(); len(got) != 2 {
		t.Errorf("transport/ holds %q", got)
	}
	if first, second := <-asked, <-asked; first != "ETRN other.example" || !strings.HasPrefix(second, "AUTH nobody ") {
		t.Errorf("the scheduler was asked %q, %q", first, second)
	}
	assert.Must(t, os.Remove(filepath.Join(r.dir, postoffice.QuerySocket)))
	assert.Must(t, os.Rename(filepath.Join(r.dir, postoffice.Transport), filepath.Join(r.dir, "away")))
	r.as("192.0.2.1", "").say("ETRN site.example", "458 4.3.0")
	r.nothing()
}

// ETRN is offered to clients that may use it, outside of transactions.
func TestETRNIsOfferedToWhomItServes(t *testing.T) {
	r := ruled(t, map[string]string{"access": "etrn client=203.0.113.5 to=.customer.example\n"}, etrnNets)
	for client, want := range map[string]bool{"192.0.2.1": true, "203.0.113.5": true, outsider: false} {
		offers(t, r.as(client, "").say("EHLO client.example.net", "250"), "ETRN", want)
	}
	r.dial().say("ETRN site.example", "503 5.5.1")
	r.as("192.0.2.1", "").from("").say("ETRN site.example", "503 5.5.1")
}

// FuzzNode: what ETRN names is one word that breaks neither the query nor the file.
func FuzzNode(f *testing.F) {
	for _, s := range []string{"a.example", "@a.example", "#q", "", "@", "#", "a b", "[::1]", "bücher.example", "a\r\nb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		node, err := parseNode(s)
		if err != nil {
			return
		}
		line := mailq.AppendRequest(nil, mailq.Request{Kind: mailq.ETRN, Host: strings.TrimPrefix(node, "#")})
		r, err := mailq.ParseRequest(line[:len(line)-1])
		if err != nil || r.Host != strings.TrimPrefix(node, "#") {
			t.Errorf("%q: asked for %q, %v", s, r.Host, err)
		}
	})
}
