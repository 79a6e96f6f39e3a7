package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// farFrom stands before a server so that it is some way away.
func farFrom(t *testing.T, addr string) *peer.Far {
	t.Helper()
	far := &peer.Far{To: addr, Way: 20 * time.Millisecond}
	if err := far.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(far.Close)
	return far
}

// mixed gives a system n small messages at once, each fifth to somebody who is refused.
func mixed(t *testing.T, s *suite.Suite, n int, domain string) (refused int) {
	t.Helper()
	src := peer.Source{Addr: s.SMTPAddr, Connections: 10, Messages: n, From: "bob@mta.example",
		To: func(i int) string {
			if i%5 == 0 {
				return "nobody@" + domain
			}
			return "alice@" + domain
		},
		Body: func(i int) []byte { return fmt.Appendf(nil, "Subject: number %d\r\n\r\n..\r\n", i) }}
	if err := src.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return (n + 4) / 5
}

// fourFifths wants each of n messages but each fifth, once.
func fourFifths(t *testing.T, n int, texts [][]byte) {
	t.Helper()
	times := map[string]int{}
	for _, text := range texts {
		_, rest, _ := strings.Cut(string(text), "Subject: number ")
		number, _, _ := strings.Cut(rest, "\n")
		times[strings.TrimSpace(number)]++
	}
	for i := range n {
		want := 1
		if i%5 == 0 {
			want = 0
		}
		if got := times[fmt.Sprint(i)]; got != want {
			t.Errorf("message %d arrived %d times, want %d", i, got, want)
		}
	}
}

// RFC 3030 §4.2 with a server that is not ours: several messages on the way at once to
// Postfix, among them some that it refuses; each of the others arrives once.
func TestPostfixFarAwayGetsAll(t *testing.T) {
	t.Parallel()
	sink := &peer.Sink{}
	if err := sink.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	p := startPostfix(t, sink.RouteHost(),
		"smtpd_recipient_restrictions = check_recipient_access inline:{ { nobody@sink.example = 550 5.1.1 no such user } }, permit_mynetworks, reject")
	far := farFrom(t, p.Listen)
	s := start(t, nil, routeTo(t, far.Addr()))
	const messages = 150
	refused := mixed(t, s, messages, "sink.example")
	if err := sink.Wait(messages-refused, patience); err != nil {
		t.Fatal(err)
	}
	awaitMail(t, s, "bob", refused)
	awaitEmpty(t, s)
	var texts [][]byte
	for _, m := range sink.Messages() {
		texts = append(texts, m.Data)
	}
	fourFifths(t, messages, texts)
	t.Logf("%d messages on %d connections", messages, far.Connections())
}

// The same with a server of ours.
func TestOurServerFarAwayGetsAll(t *testing.T) {
	t.Parallel()
	far := start(t, nil, nil)
	s := start(t, nil, func(s *suite.Suite) {
		routeTo(t, farFrom(t, far.SMTPAddr).Addr())(s)
		s.Hostname = "here.example"
	})
	const messages = 100
	src := peer.Source{Addr: s.SMTPAddr, Connections: 10, Messages: messages, From: "bob@here.example",
		To:   func(int) string { return "alice@mta.example" },
		Body: func(i int) []byte { return fmt.Appendf(nil, "Subject: number %d\r\n\r\n..\r\n", i) }}
	if err := src.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	numbers(t, messages, awaitMail(t, far, "alice", messages))
	awaitEmpty(t, s)
	awaitEmpty(t, far)
}
