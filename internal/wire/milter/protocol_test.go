package milter

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/milter/miltertest"
)

// open connects to a filter of a script.
func open(t *testing.T, f *miltertest.Script) *Session {
	t.Helper()
	f.Serve(t)
	s := assert.Get(Open(context.Background(), Config{Network: "tcp", Address: f.Address, Timeout: 5 * time.Second, ContentTimeout: 5 * time.Second}))(t)
	t.Cleanup(func() { _ = s.Close() }) // the filter may have gone
	return s
}

// through takes a message through all steps.
func through(t *testing.T, s *Session, m Macros) (Answer, []Change) {
	t.Helper()
	for _, step := range []func() (Answer, error){
		func() (Answer, error) { return s.Connect("c.example", netip.MustParseAddrPort("192.0.2.1:4711"), m) },
		func() (Answer, error) { return s.Helo("h.example", m) },
		func() (Answer, error) { return s.Unknown("WHAT is this", m) },
		func() (Answer, error) { return s.Mail("a@a.example", []string{"SIZE=10"}, m) },
		func() (Answer, error) { return s.Rcpt("b@b.example", []string{"NOTIFY=NEVER"}, m) },
		func() (Answer, error) { return s.Data(m) },
	} {
		if a, err := step(); err != nil || a.Action != Continue {
			t.Fatalf("got %+v, %v", a, err)
		}
	}
	a, changes, err := s.Content(envelope.Fields([]byte("Subject:  x\n")), strings.NewReader("hi\n"), io.Discard, m)
	assert.Must(t, err)
	return a, changes
}

// Peer4: every action and step of version 6 is offered, as Postfix offers it.
func TestEverythingOfVersion6IsOffered(t *testing.T) {
	e := &miltertest.Script{Version: 6}
	s := open(t, e)
	through(t, s, nil)
	want := []string{"Cc.example|4\x12g192.0.2.1|", "Hh.example|", "UWHAT is this|", "M<a@a.example>|SIZE=10|", "R<b@b.example>|NOTIFY=NEVER|", "T",
		"LSubject| x|", "N", "Bhi\r\n", "E"}
	assert.Same(t, e.Got(), want)
	assert.Equal(t, e.Offer(), "\x00\x00\x00\x06\x00\x00\x01\xff\x00\x1f\xff\xff")
}

// Peer4: a filter of an older version gets no step that it does not know.
func TestOlderFiltersGetTheStepsOfTheirVersion(t *testing.T) {
	for version, left := range map[uint32]string{2: "TU", 3: "T", 4: "", 6: ""} {
		e := &miltertest.Script{Version: version, Steps: leadingSpace}
		s := open(t, e)
		through(t, s, nil)
		got := e.Got()
		for _, command := range []byte("CHMRTULNBE") {
			has := slices.ContainsFunc(got, func(p string) bool { return p[0] == command })
			assert.Equal(t, has, !strings.Contains(left, string(command)), "version "+string('0'+byte(version))+", command "+string(command))
		}
		// The blank that a value begins with is an option of version 6.
		assert.Equal(t, slices.Contains(got, "LSubject|  x|"), version == 6)
	}
	for _, e := range []*miltertest.Script{{Version: 1}, {Version: 7}, {Version: 6, Actions: 1 << 9}} {
		e.Serve(t)
		if s, err := Open(context.Background(), Config{Network: "tcp", Address: e.Address}); err == nil {
			_ = s.Close()
			t.Errorf("version %d, actions %x: it is accepted", e.Version, e.Actions)
		}
	}
}

// Peer4: steps that the filter does not answer are not waited for, and steps that it leaves
// out have their macros sent nevertheless, as Postfix does.
func TestSilentStepsAndThoseLeftOut(t *testing.T) {
	m := Macros{"j", "mx.example", "i", "7", "{mail_addr}", "a@a.example"}
	e := &miltertest.Script{Version: 6, Silent: "CHUMRTLNB", Steps: noReplyConnect | noReplyHelo | noReplyUnknown | noReplyMail | noReplyRcpt |
		noReplyData | noReplyField | noReplyEndOfHdr | noReplyBody}
	s := open(t, e)
	through(t, s, m)
	want := []string{"DCj|mx.example|", "Cc.example|4\x12g192.0.2.1|", "Hh.example|", "UWHAT is this|", "DMi|7|{mail_addr}|a@a.example|", "M<a@a.example>|SIZE=10|",
		"DRi|7|", "R<b@b.example>|NOTIFY=NEVER|", "DTi|7|", "T", "LSubject| x|", "DNi|7|", "N", "Bhi\r\n", "DEi|7|", "E"}
	assert.Same(t, e.Got(), want)

	e = &miltertest.Script{Version: 6, Steps: noConnect | noHelo | noUnknown | noMail | noRcpt | noData | noFields | noEndOfHeader | noBody}
	s = open(t, e)
	through(t, s, m)
	assert.Same(t, e.Got(), []string{"DCj|mx.example|", "DMi|7|{mail_addr}|a@a.example|", "DRi|7|", "DTi|7|", "DNi|7|", "DEi|7|", "E"})
}

// Peer4: a filter that names macros (SMFIF_SETSYMLIST) gets those, and no others, at the
// stages that it names.
func TestFilterChoosesItsMacros(t *testing.T) {
	list := func(stage byte, names string) string { return "\x00\x00\x00" + string(stage) + names + "\x00" }
	e := &miltertest.Script{Version: 6, Actions: mayListMacros, Symbols: (list(0, "j, {client_addr}") + list(2, "{auth_type}") + list(5, "i {rcpt_addr}") + list(3, ""))}
	s := open(t, e)
	m := Macros{"j", "mx.example", "v", "zmailer", "i", "7", "{client_addr}", "192.0.2.1", "{auth_type}", "PLAIN", "{auth_authen}", "ann", "{rcpt_addr}", "b@b.example"}
	through(t, s, m)
	got := slices.DeleteFunc(e.Got(), func(p string) bool { return p[0] != 'D' })
	assert.Same(t, got, []string{"DCj|mx.example|{client_addr}|192.0.2.1|", "DM{auth_type}|PLAIN|", "DTi|7|", "DNi|7|", "DEi|7|{rcpt_addr}|b@b.example|"})
	for _, bad := range []string{"\x00", "\x00\x00\x00\x07j\x00", "\x00\x00\x00\x00j"} {
		if (&Session{}).symbols([]byte(bad)) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// Peer4: after skip no more of the body is sent, and the message goes on.
func TestFilterSkipsTheRestOfTheBody(t *testing.T) {
	e := &miltertest.Script{Version: 6, Steps: maySkipBody, Answers: map[byte]string{cmdBody: miltertest.Packet('s', "")}}
	s := open(t, e)
	assert.Get(s.Mail("a@a.example", nil, nil))(t)
	a, _, err := s.Content(nil, strings.NewReader(strings.Repeat("0123456789\n", 20000)), io.Discard, nil)
	if err != nil || a.Action != Continue {
		t.Fatalf("got %+v, %v", a, err)
	}
	n := 0
	for _, p := range e.Got() {
		if p[0] == 'B' {
			n++
		}
	}
	assert.Equal(t, n, 1, "parts of the body")
	// Elsewhere it is no answer.
	e = &miltertest.Script{Version: 6, Answers: map[byte]string{cmdMail: miltertest.Packet('s', "")}}
	if _, err := open(t, e).Mail("a@a.example", nil, nil); err == nil {
		t.Error("skip answers MAIL")
	}
}

// Peer4: recipients that were refused are shown to filters that want them (SMFIP_RCPT_REJ).
func TestRefusedRecipientsAreShownToThoseThatWantThem(t *testing.T) {
	why := Macros{"{rcpt_addr}", "User unknown", "{rcpt_host}", "5.1.1", "{rcpt_mailer}", "error"}
	for _, steps := range []uint32{0, wantsRefused} {
		e := &miltertest.Script{Version: 6, Steps: steps, Answers: map[byte]string{cmdRcpt: miltertest.Packet('r', "")}}
		s := open(t, e)
		assert.Get(s.Mail("a@a.example", nil, nil))(t)
		assert.Must(t, s.RefusedRcpt("b@b.example", nil, why))
		want := []string{"M<a@a.example>|"}
		if steps != 0 {
			want = append(want, "DR{rcpt_addr}|User unknown|{rcpt_host}|5.1.1|{rcpt_mailer}|error|", "R<b@b.example>|")
		}
		assert.Same(t, slices.DeleteFunc(e.Got(), func(p string) bool { return p == "A" }), want)
	}
}

// Peer4: recipients and senders come with their ESMTP parameters.
func TestChangesHaveTheirParameters(t *testing.T) {
	e := &miltertest.Script{Version: 6, Answers: map[byte]string{cmdEnd: strings.Join([]string{
		miltertest.Packet('2', "<n@n.example>\x00NOTIFY=NEVER\x00"), miltertest.Packet('2', "<m@n.example>\x00"), miltertest.Packet('e', "<s@n.example>\x00SIZE=1\x00"), miltertest.Packet('e', "<>\x00"),
		miltertest.Packet('i', "\x00\x00\x00\x01X-A\x00\x00"), miltertest.Packet('c', "")}, "")}}
	s := open(t, e)
	_, changes := through(t, s, nil)
	assert.Same(t, changes, []Change{{Kind: AddRecipient, Address: "<n@n.example>", Params: "NOTIFY=NEVER"}, {Kind: AddRecipient, Address: "<m@n.example>"},
		{Kind: ChangeSender, Address: "<s@n.example>", Params: "SIZE=1"}, {Kind: ChangeSender, Address: "<>"}, {Kind: InsertField, Index: 1, Name: "X-A", Value: " "}})
}

// Peer7: a filter that is shut down has the client's connection closed.
func TestShutdownIsADecision(t *testing.T) {
	for _, code := range []byte{'4', 'f'} {
		e := &miltertest.Script{Version: 6, Answers: map[byte]string{cmdMail: miltertest.Packet(code, "")}}
		a, err := open(t, e).Mail("a@a.example", nil, nil)
		assert.Must(t, err)
		assert.Equal(t, a.Action, Shutdown)
	}
}

// Peer7: smfi_progress begins the time for a message anew, but not for ever.
func TestProgressLengthensTheTime(t *testing.T) {
	const limit = time.Minute
	start := time.Now()
	clock := start
	s := &Session{cfg: Config{Now: func() time.Time { return clock }, Timeout: limit, ContentTimeout: limit}, limit: start.Add(limit), last: start.Add(maxProgress * limit)}
	assert.Equal(t, s.deadline().Sub(start), limit)
	clock = clock.Add(limit * 3 / 4)
	s.progress()
	assert.Equal(t, s.deadline().Sub(start), limit*7/4)
	for range 100 {
		clock = clock.Add(limit * 3 / 4)
		s.progress()
	}
	assert.Equal(t, s.deadline().Sub(start), maxProgress*limit, "in all")
}
