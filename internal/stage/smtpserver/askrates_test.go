package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/socket"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/session"
)

// What a running server has counted is what zmctl rates and the trial of mail show, and what the server
// then accepts; whoever asks nonsense, or does not ask, gets nothing and keeps no one waiting for long.
func TestRunningServerShowsWhatIsLeftOfItsRates(t *testing.T) {
	t.Parallel()
	var c Config
	r := start(t, func(conf *Config) {
		conf.Clients.XClientNets = loopback
		conf.Limits.Exempt = nil
		conf.Limits.Messages, conf.Limits.SenderRecipients = limits.Rate{Count: 5, Per: time.Hour}, limits.Rate{Count: 3, Per: time.Hour}
		c = *conf
	})
	ask := func(q RatesQuestion) []limits.Usage {
		t.Helper()
		return assert.Get(AskRates(t.Context(), r.dir, q))(t)
	}
	assert.Equal(t, len(ask(RatesQuestion{Top: 10})), 0, "nothing is counted yet")
	for _, text := range []string{"", "\n", "{", "[1]\n", `{"top":"x"}` + "\n", strings.Repeat("x", 1<<20)} {
		k := assert.Get(socket.Dial(t.Context(), filepath.Join(r.dir, postoffice.RatesSocket)))(t)
		_, _ = io.WriteString(k, text)
		if text != "" {
			_ = k.(*net.UnixConn).CloseWrite()
			_ = k.SetReadDeadline(time.Now().Add(logtest.Patience))
			if b, _ := io.ReadAll(k); len(b) > 0 {
				t.Errorf("%.20q is answered: %s", text, b)
			}
		}
		_ = k.Close()
	}
	info := assert.Get(os.Stat(filepath.Join(r.dir, postoffice.RatesSocket)))(t)
	assert.Equal(t, info.Mode().Perm(), 0o600, "mode of the socket")

	from := address.Mailbox{Local: "a", Domain: "b.example"}
	who := RatesQuestion{Client: netip.MustParseAddr(outsider), From: from.String()}
	trial := func() TrialReport {
		t.Helper()
		return assert.Get(Try(t.Context(), c, Trial{Client: who.Client, Role: session.RoleMX, From: from, To: address.Mailbox{Local: "c", Domain: "mx.example.org"},
			Rates: func(ctx context.Context, q RatesQuestion) ([]limits.Usage, error) { return AskRates(ctx, r.dir, q) }}))(t)
	}
	p := r.as(outsider, "")
	for n := range 6 {
		messages := slices.IndexFunc(trial().Steps, func(s TrialStep) bool {
			return s.Stage == "mail" && s.Test == "rate client-messages" && strings.Contains(s.Result, fmt.Sprintf(" %d of 5 ", 5-n))
		})
		if messages < 0 {
			t.Errorf("after %d messages: %+v", n, trial())
		}
		p.send("MAIL FROM:<" + from.String() + ">\r\n")
		got := p.reply()
		if above := n >= 5; above != strings.HasPrefix(got, "450 ") {
			t.Errorf("message %d: %q", n, got)
		}
		if n < 2 {
			p.to("c@mx.example.org")
		}
		p.say("RSET", "250")
	}
	report := trial()
	if !report.Refused || report.By != "rate client-messages" || !strings.HasPrefix(report.Verdict, "defer: 450 4.7.1") {
		t.Errorf("got %+v", report)
	}
	want := []limits.Usage{
		{Limit: "client-messages", Who: outsider, Used: 5, Count: 5, Per: time.Hour},
		{Limit: "sender-recipients", Who: "a@b.example", Used: 2, Count: 3, Per: time.Hour},
	}
	assert.Same(t, ask(RatesQuestion{Top: 10}), want, "all")
	assert.Same(t, ask(RatesQuestion{Top: 1}), want[:1], "the first")
	assert.Same(t, ask(who), want, "of the client and the sender")

	r.ended()
	if _, err := AskRates(t.Context(), r.dir, who); !errors.Is(err, ErrNoRates) {
		t.Errorf("a server that has ended: %v", err)
	}
	if got := trial(); got.Refused || !slices.ContainsFunc(got.Steps, func(s TrialStep) bool { return s.Test == "rate client-messages" }) {
		t.Errorf("without a server: %+v", got)
	}
}

// Without rates there is no socket.
func TestServerWithoutRatesMakesNoSocket(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	if _, err := os.Stat(filepath.Join(r.dir, postoffice.RatesSocket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
