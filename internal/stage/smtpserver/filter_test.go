package smtpserver

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	gomilter "github.com/emersion/go-milter"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/wire/milter"
	"zmailer/internal/wire/milter/miltertest"
)

// filter starts a filter on loopback.
func filter(t testing.TB, f *miltertest.Filter) *miltertest.Filter {
	f.Macros = map[string]string{"connect": "{daemon_name}"}
	return f.Serve(t)
}

// heard returns what the filter got since the last call.
func heard(f *miltertest.Filter) string { return strings.Join(f.Heard(), "|") }

// with has the server ask filters.
func with(filters ...*miltertest.Filter) func(*Config) {
	return func(c *Config) {
		for _, f := range filters {
			c.Filters.Milters = append(c.Filters.Milters, patient(f.Address))
		}
	}
}

// patient is the setting of a filter with time limits that no machine reaches.
func patient(addr string) content.Milter {
	return content.Milter{Config: milter.Config{Network: "tcp", Address: addr, Timeout: logtest.Patience, ContentTimeout: logtest.Patience}}
}

func TestFilterSeesWhatTheClientSends(t *testing.T) {
	f := filter(t, &miltertest.Filter{})
	r := start(t, with(f))
	saw := func(want string) {
		t.Helper()
		assert.Equal(t, heard(f), want)
	}
	p := r.greeted()
	p.mail("a@example.net", "b@example.org", plain, "250")
	saw("connect [127.0.0.1] tcp4 127.0.0.1 mx.example.org|helo client.example.net|mail a@example.net|rcpt b@example.org|header Subject:x|header To:one|header To:two|headers|body hi")
	assert.Equal(t, r.content(), plain)
	// A second message of the same client, and one that is given up.
	p.from("c@example.net").say("RSET", "250")
	p.mail("d@example.net", "b@example.org", "junk\nX: y\n\nhi\n", "250")
	saw("mail c@example.net|abort|mail d@example.net|rcpt b@example.org|headers|body junk\r\nX: y\r\n\r\nhi")
	// In chunks.
	p.begin().chunk("Subject: x\r\n", "")
	p.chunk("\r\nhi\r\n", " LAST")
	p.expect("250", "250 2.0.0")
	saw("mail a@example.net|rcpt b@mx.example.org|header Subject:x|headers|body hi")
	// A client that greets anew is another one for the filter.
	p.say("EHLO other.example", "250")
	p.from("c@example.net")
	if got := heard(f); !strings.HasPrefix(strings.TrimPrefix(got, "abort|"), "connect") {
		t.Errorf("got %s", got)
	}
}

func TestFilterDecidesAtEachStep(t *testing.T) {
	own := gomilter.NewResponseStr('y', "554 5.7.9 go away")
	for name, tt := range map[string]struct {
		at               map[string]gomilter.Response
		mail, rcpt, data string
	}{
		"connect": {map[string]gomilter.Response{"connect": gomilter.RespReject}, "550 5.7.1", "", ""},
		"helo":    {map[string]gomilter.Response{"helo": gomilter.RespTempFail}, "451 4.7.1", "", ""},
		"mail":    {map[string]gomilter.Response{"mail": own}, "554 5.7.9", "", ""},
		"rcpt":    {map[string]gomilter.Response{"rcpt b@mx.example.org": own}, "250", "554 5.7.9", ""},
		"header":  {map[string]gomilter.Response{"header": gomilter.RespTempFail}, "250", "250", "451 4.7.1"},
		"headers": {map[string]gomilter.Response{"headers": gomilter.RespReject}, "250", "250", "550 5.7.1"},
		"body":    {map[string]gomilter.Response{"body": own}, "250", "250", "554 5.7.9"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, with(filter(t, &miltertest.Filter{At: tt.at})))
			p := r.greeted()
			for range 2 { // the second time as the first
				p.say("MAIL FROM:<a@b.example>", tt.mail)
				if tt.rcpt != "" {
					p.say("RCPT TO:<b@mx.example.org>", tt.rcpt)
				}
				if tt.data != "" {
					p.content(plain, tt.data)
				}
				p.say("RSET", "250")
			}
			r.nothing()
			if r.log.Count(`by="milter inet:`) == 0 {
				t.Error("the log does not name the filter")
			}
			if name == "rcpt" { // the message goes to the others
				p.mail("a@b.example", "good@example.org", plain, "250")
				r.only("to <good@example.org>")
			}
		})
	}
}

func TestFilterChangesTheMessage(t *testing.T) {
	const begin = "Subject: x\nTo: one\nTo: two\n"
	for name, tt := range map[string]struct {
		change  func(*gomilter.Modifier) error
		message string
		want    string
	}{
		"add":           {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a\r\n\tb") }, plain, begin + "X-S: a\n\tb\n\nhi\n"},
		"insert on top": {func(m *gomilter.Modifier) error { return m.InsertHeader(0, "X-S", "a") }, plain, "X-S: a\n" + begin + "\nhi\n"},
		// Peer5: our Received field, which the router adds, is number 0.
		"insert as the first": {func(m *gomilter.Modifier) error { return m.InsertHeader(1, "X-S", "a") }, plain, "X-S: a\n" + begin + "\nhi\n"},
		"insert as the third": {func(m *gomilter.Modifier) error { return m.InsertHeader(3, "X-S", "a") }, plain, "Subject: x\nTo: one\nX-S: a\nTo: two\n\nhi\n"},
		"long value": {func(m *gomilter.Modifier) error {
			return m.AddHeader("X-S", strings.Repeat("x", 995)+" "+strings.Repeat("y", 20))
		}, plain, begin + "X-S:\n " + strings.Repeat("x", 995) + "\n " + strings.Repeat("y", 20) + "\n\nhi\n"},
		"long word":         {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", strings.Repeat("x", 1200)) }, plain, begin + "X-S:\n " + strings.Repeat("x", 997) + "\n " + strings.Repeat("x", 203) + "\n\nhi\n"},
		"long continuation": {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a\n\t"+strings.Repeat("é", 600)) }, plain, begin + "X-S: a\n\t" + strings.Repeat("é", 498) + "\n " + strings.Repeat("é", 102) + "\n\nhi\n"},

		"insert too far":       {func(m *gomilter.Modifier) error { return m.InsertHeader(99, "X-S", "a") }, plain, begin + "X-S: a\n\nhi\n"},
		"change the second":    {func(m *gomilter.Modifier) error { return m.ChangeHeader(2, "to", "new") }, plain, "Subject: x\nTo: one\nto: new\n\nhi\n"},
		"delete the first":     {func(m *gomilter.Modifier) error { return m.ChangeHeader(1, "To", "") }, plain, "Subject: x\nTo: two\n\nhi\n"},
		"change what is not":   {func(m *gomilter.Modifier) error { return m.ChangeHeader(3, "To", "three") }, plain, begin + "To: three\n\nhi\n"},
		"delete what is not":   {func(m *gomilter.Modifier) error { return m.ChangeHeader(3, "To", "") }, plain, plain},
		"a line smuggled in":   {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a\nBcc: evil\n\nbody") }, plain, begin + "X-S: a\n\tBcc: evil\n\tbody\n\nhi\n"},
		"a name that is none":  {func(m *gomilter.Modifier) error { return m.AddHeader("X S:\n", "a") }, plain, plain},
		"body":                 {func(m *gomilter.Modifier) error { return m.ReplaceBody([]byte("new\r\nbody\n")) }, plain, begin + "\nnew\nbody\n"},
		"body made empty":      {func(m *gomilter.Modifier) error { return m.ReplaceBody(nil) }, plain, begin + "\n"},
		"large body":           {func(m *gomilter.Modifier) error { return m.ReplaceBody(bytes.Repeat([]byte("0123456789\n"), 60000)) }, plain, begin + "\n" + strings.Repeat("0123456789\n", 60000)},
		"body where was none":  {func(m *gomilter.Modifier) error { return m.ReplaceBody([]byte("new")) }, "Subject: x\n", "Subject: x\n\nnew"},
		"add where is no body": {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a") }, "Subject: x\n", "Subject: x\nX-S: a\n"},
		"add to no header":     {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a") }, "\nhi\n", "X-S: a\n\nhi\n"},
		"add before junk":      {func(m *gomilter.Modifier) error { return m.AddHeader("X-S", "a") }, "Subject: x\njunk\n\nhi\n", "Subject: x\nX-S: a\njunk\n\nhi\n"},
		"body with junk":       {func(m *gomilter.Modifier) error { return m.ReplaceBody([]byte("new\n")) }, "Subject: x\njunk\n\nhi\n", "Subject: x\n\nnew\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := filter(t, &miltertest.Filter{})
			f.End = func(m *gomilter.Modifier) (gomilter.Response, error) {
				assert.NoError(t, tt.change(m))
				return gomilter.RespAccept, nil
			}
			r := start(t, with(f))
			r.greeted().mail("a@example.net", "b@example.org", tt.message, "250")
			assert.Equal(t, r.content(), tt.want)
		})
	}
}

func TestFilterChangesTheEnvelope(t *testing.T) {
	f := filter(t, &miltertest.Filter{})
	f.End = func(m *gomilter.Modifier) (gomilter.Response, error) {
		for _, err := range []error{m.ChangeFrom("<new@example.net>"), m.AddRecipient("added@example.org"), m.AddRecipient("B@EXAMPLE.org"),
			m.AddRecipient("kept@EXAMPLE.ORG"), m.DeleteRecipient("gone@Example.Org"), m.DeleteRecipient("never@example.org"), m.AddRecipient(" not an address "), m.AddRecipient("")} {
			assert.NoError(t, err)
		}
		return gomilter.RespContinue, nil
	}
	r := start(t, with(f))
	p := r.greeted().from("a@b.example")
	for _, to := range []string{"kept@example.org", "gone@example.org"} {
		p.say("RCPT TO:<"+to+"> NOTIFY=NEVER", "250")
	}
	id := p.id(p.content(plain, "250"))
	r.only("from <new@example.net>\ntodsn NOTIFY=NEVER\nto <kept@example.org>\nto <added@example.org>\nto <B@EXAMPLE.org>\nenv-end")
	r.log.Expect(t, 2, "msg=filter-nonsense")
	if got := r.book().Records[id]; got == nil || got.In != 3 {
		t.Errorf("the ledger has %+v", got)
	}
}

// A discarded message is accepted, goes nowhere, and has an end in the ledger.
func TestDiscardedMessageIsAccountedFor(t *testing.T) {
	discard := func(step string) *miltertest.Filter {
		return &miltertest.Filter{At: map[string]gomilter.Response{step: gomilter.RespDiscard}}
	}
	for name, f := range map[string]*miltertest.Filter{
		"connect": discard("connect"), "mail": discard("mail"), "rcpt": discard("rcpt"), "header": discard("header"), "body": discard("body"),
		"no recipient left": {End: func(m *gomilter.Modifier) (gomilter.Response, error) {
			_ = m.DeleteRecipient(toUs)
			_ = m.DeleteRecipient("c@example.org")
			return gomilter.RespContinue, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, with(filter(t, f)))
			p := r.greeted().begin().to("c@example.org")
			id := p.id(p.content(plain, "250 2.0.0"))
			r.nothing()
			got := r.book().Records[id]
			if got == nil || got.In != 2 || got.Open() || got.End.Gone != 2 || got.Why != "discarded" {
				t.Errorf("the ledger has %+v", got)
			}
			r.log.Expect(t, 1, "msg=discarded")
		})
	}
}

// M13: a message that a filter quarantines waits for an operator.
func TestQuarantinedMessageIsFrozen(t *testing.T) {
	f := filter(t, &miltertest.Filter{End: func(m *gomilter.Modifier) (gomilter.Response, error) {
		_ = m.AddHeader("X-Spam", "yes")
		_ = m.Quarantine("looks\nbad")
		return gomilter.RespAccept, nil
	}})
	r := start(t, with(f))
	r.greeted().mail("a@example.net", "b@example.org", plain, "250 2.0.0")
	r.frozen("filter")
}

// A filter that dies in the middle of a message: the client has to try again, and the next
// message finds the filter that has been started anew.
func TestFilterThatDiesIsFoundAgain(t *testing.T) {
	for _, step := range []string{"rcpt", "header", "body"} {
		t.Run(step, func(t *testing.T) {
			f := filter(t, &miltertest.Filter{At: map[string]gomilter.Response{step: gomilter.NewResponse('?', nil)}})
			r := start(t, with(f))
			p := r.greeted().from("a@b.example")
			if step == "rcpt" {
				p.say("RCPT TO:<b@example.org>", "451 4.7.1")
				p.say("RCPT TO:<c@example.org>", "451 4.7.1")
				p.say("RSET", "250")
			} else {
				p.to(toUs).content(plain, "451 4.7.1")
			}
			r.nothing()
			f.Accept()
			p.begin().content(plain, "250")
			r.only()
			r.log.Expect(t, 1, "msg=filter-recovered")
		})
	}
}

// A filter that was restarted sees the next message of a connection that is open.
func TestRestartedFilterSeesTheNextMessage(t *testing.T) {
	f := filter(t, &miltertest.Filter{})
	p := start(t, with(f)).greeted()
	p.begin().content(plain, "250")
	f.Disconnect()
	heard(f)
	p.begin().content(plain, "250")
	if got := heard(f); !strings.Contains(got, "connect") || !strings.Contains(got, "body hi") {
		t.Errorf("it has seen %q", got)
	}
}

// Each filter sees what those before it have left; checks come first.
func TestFiltersFollowOneAnother(t *testing.T) {
	first := filter(t, &miltertest.Filter{End: func(m *gomilter.Modifier) (gomilter.Response, error) {
		_ = m.AddHeader("X-First", "1")
		_ = m.ReplaceBody([]byte("new\r\n"))
		return gomilter.RespAccept, nil
	}})
	second := filter(t, &miltertest.Filter{End: func(m *gomilter.Modifier) (gomilter.Response, error) {
		_ = m.ReplaceBody([]byte("newer\r\n"))
		return gomilter.RespAccept, nil
	}})
	r := start(t, with(first, second))
	r.greeted().mail("a@example.net", "b@example.org", plain, "250")
	assert.Equal(t, r.content(), "Subject: x\nTo: one\nTo: two\nX-First: 1\n\nnewer\n")
	if got := heard(second); !strings.HasSuffix(got, "header X-First:1|headers|body new") {
		t.Errorf("the second got %s", got)
	}
}

// The end of the server does not wait for a filter.
func TestStopDoesNotWaitForAFilter(t *testing.T) {
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	r := start(t, func(c *Config) {
		c.Filters.Milters = []content.Milter{{Config: milter.Config{Network: "tcp", Address: l.Addr().String(), Timeout: time.Hour}}}
		c.StopTimeout = 50 * time.Millisecond
	})
	r.greeted().send("MAIL FROM:<a@b.example>\r\n")
	silent := assert.Get(l.Accept())(t)
	defer silent.Close()
	begin := time.Now()
	r.ended()
	if took := time.Since(begin); took > killGrace/2 {
		t.Errorf("it took %v", took)
	}
}

// By LMTP: filters see the message too, and each recipient is refused.
func TestFilterRefusesAContentThatCameByLMTP(t *testing.T) {
	f := filter(t, &miltertest.Filter{At: map[string]gomilter.Response{"body": gomilter.RespReject}})
	r := start(t, func(c *Config) { with(f)(c); withLMTP(t)(c) })
	p := r.lmtp()
	p.say("LHLO client.example.net", "250")
	p.begin().to("c@mx.example.org").content(plain, "550 5.7.1")
	p.expect("550 5.7.1")
	r.nothing()
	if got := heard(f); !strings.HasPrefix(got, "connect localhost unknown <nil> mx.example.org|") {
		t.Errorf("it got %s", got)
	}
}

// filterOf has the server ask a filter of a script.
func filterOf(t testing.TB, f *miltertest.Script) func(*Config) {
	f.Version = 6
	f.Serve(t)
	return func(c *Config) {
		c.Filters.Milters = append(c.Filters.Milters, patient(f.Address))
	}
}

// macrosOf returns the macros that a filter got for a command.
func macrosOf(got []string, command string) map[string]string {
	m := map[string]string{}
	for _, p := range got {
		if words, ok := strings.CutPrefix(p, "D"+command); ok {
			list := strings.Split(strings.TrimSuffix(words, "|"), "|")
			for i := 0; i+1 < len(list); i += 2 {
				m[list[i]] = list[i+1]
			}
		}
	}
	return m
}

// Peer1, Peer3: a filter gets the macros of Postfix's MILTER_README at their stages;
// {daemon_name} is HOSTNAME.
func TestFiltersGetTheMacrosThatTheyKnow(t *testing.T) {
	f := &miltertest.Script{}
	users := accounts(t)
	r := startSecured(t, func(c *Config) {
		c.Users.Source = "file:" + users
		filterOf(t, f)(c)
	})
	p := r.implicit()
	p.say("EHLO client.example.net", "250")
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
	p.say("MAIL FROM:<a@example.net> AUTH=ann+2Bx@example.org", "250")
	p.to("b@example.org").content(plain, "250")
	got := f.Got()
	connect := macrosOf(got, "C")
	host, port, err := net.SplitHostPort(r.addrs[2].String())
	assert.Must(t, err)
	for name, want := range map[string]string{"j": "mx.example.org", "v": "zmailer", "{daemon_name}": "mx.example.org", "{daemon_addr}": host, "{daemon_port}": port,
		"{client_addr}": "127.0.0.1", "{client_name}": "unknown", "{client_ptr}": "unknown", "_": "unknown [127.0.0.1]"} {
		assert.Equal(t, connect[name], want, name)
	}
	if connect["{client_port}"] == "" || connect["{client_connections}"] == "" {
		t.Errorf("got %v", connect)
	}
	helo := macrosOf(got, "H")
	assert.Equal(t, helo["{tls_version}"]+" "+helo["{cipher}"]+" "+helo["{cipher_bits}"], "TLSv1.3 TLS_AES_128_GCM_SHA256 128")
	mail := macrosOf(got, "M")
	for name, want := range map[string]string{"{auth_type}": "PLAIN", "{auth_authen}": "jane", "{auth_author}": "ann+x@example.org", "{auth_ssf}": "0",
		"{mail_addr}": "a@example.net", "{mail_host}": "example.net", "{mail_mailer}": "smtp"} {
		assert.Equal(t, mail[name], want, name)
	}
	rcpt := macrosOf(got, "R")
	assert.Equal(t, rcpt["{rcpt_addr}"]+" "+rcpt["{rcpt_host}"]+" "+rcpt["{rcpt_mailer}"], "b@example.org example.org smtp")
	// Peer7: the filters' name of the message is in our log, beside the spool ID.
	for _, command := range []string{"M", "R", "T", "N", "E"} {
		assert.Equal(t, macrosOf(got, command)["i"], mail["i"], command)
	}
	r.log.Expect(t, 1, " filterid="+mail["i"])
}

// Peer1: MILTERDAEMONNAME names the ports for filters, as milter_macro_daemon_name does.
func TestPortsHaveNamesForFilters(t *testing.T) {
	f := &miltertest.Script{}
	r := start(t, func(c *Config) {
		filterOf(t, f)(c)
		c.Filters.DaemonName = map[session.Role]string{session.RoleMX: "INCOMING"}
	})
	r.greeted().from("a@b.example")
	assert.Equal(t, macrosOf(f.Got(), "C")["{daemon_name}"], "INCOMING")
}

// Peer4: DATA, the first BDAT and unknown commands are events.
func TestFilterDecidesAboutDATAAndUnknownCommands(t *testing.T) {
	f := &miltertest.Script{Answers: map[byte]string{'T': miltertest.Packet('y', "554 5.7.9 no data\x00"), 'U': miltertest.Packet('y', "502 5.5.9 what\x00")}}
	r := start(t, filterOf(t, f))
	p := r.greeted()
	p.say("WHAT is this", "502 5.5.9")
	p.begin().say("DATA", "554 5.7.9")
	p.chunk("12345", "")
	p.expect("554 5.7.9")
	p.say("RSET", "250")
	r.nothing()
	got := f.Got()
	if !slices.Contains(got, "UWHAT is this|") || !slices.Contains(got, "T") {
		t.Errorf("got %q", got)
	}
	f.Answers = nil
	p.begin().chunk("Subject: x\r\n", "")
	p.chunk("\r\nhi\r\n", " LAST")
	p.expect("250", "250 2.0.0")
	assert.Equal(t, strings.Count(strings.Join(f.Got(), " "), " T "), 1, "DATA for two chunks")
	p.say("WHAT is this", "500 5.5.2")
}

// Peer4: recipients that are refused are shown to filters that want them, with the reason.
func TestFilterSeesRefusedRecipients(t *testing.T) {
	f := &miltertest.Script{Steps: 0x800}
	r := start(t, func(c *Config) { filterOf(t, f)(c); c.Access.RelayNets = nil })
	r.greeted().from("a@b.example").say("RCPT TO:<x@elsewhere.example>", "550 5.7.1")
	m := macrosOf(f.Got(), "R")
	assert.Equal(t, m["{rcpt_mailer}"]+" "+m["{rcpt_host}"], "error 5.7.1")
	if m["{rcpt_addr}"] == "" {
		t.Errorf("got %v", m)
	}
}

// Peer4: recipients and senders of filters come with their parameters.
func TestFilterAddsParameters(t *testing.T) {
	f := &miltertest.Script{Answers: map[byte]string{'E': miltertest.Packet('2', "<n@example.org>\x00NOTIFY=never ORCPT=rfc822;x@y\x00") +
		miltertest.Packet('2', "<bad@example.org>\x00NOTIFY=sometimes\x00") + miltertest.Packet('e', "<s@example.org>\x00RET=hdrs ENVID=q1\x00") + miltertest.Packet('a', "")}}
	r := start(t, filterOf(t, f))
	r.greeted().mail("a@b.example", "b@example.org", plain, "250")
	r.only("from <s@example.org>", "envid q1", "notaryret HDRS", "todsn NOTIFY=NEVER ORCPT=rfc822;x@y\nto <n@example.org>")
	r.log.Expect(t, 1, "msg=filter-nonsense")
}

// Peer7: a filter's 421 and its shutdown close the client's connection (RFC 5321 section 3.8).
func TestFilterClosesTheConnection(t *testing.T) {
	for name, packet := range map[string]string{"421": miltertest.Packet('y', "421 4.7.9 go\x00"), "521": miltertest.Packet('y', "521 5.7.9 go\x00"), "shutdown": miltertest.Packet('4', "")} {
		for _, at := range []byte{'M', 'R', 'T', 'L', 'E'} {
			f := &miltertest.Script{Answers: map[byte]string{at: packet}}
			r := start(t, filterOf(t, f))
			p := r.greeted()
			switch at {
			case 'M':
				p.send("MAIL FROM:<a@b.example>\r\n")
			case 'R':
				p.from("a@b.example").send("RCPT TO:<b@mx.example.org>\r\n")
			case 'T':
				p.begin().send("DATA\r\n")
			default:
				p.begin().data().send("Subject: x\r\n\r\nhi\r\n.\r\n")
			}
			p.end(map[string]string{"421": "421 4.7.9", "521": "521 5.7.9", "shutdown": "421 4.7.0"}[name])
			r.nothing()
		}
	}
}
