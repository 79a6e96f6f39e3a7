package tasmtp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/answer"
	"zmailer/internal/wire/smtpclient"
)

// Probe is what a next hop says of a recipient.
type Probe struct {
	Outcome status.Outcome // Delivered: it takes the recipient; Failed: it does not; else it is unknown now
	Code    status.Code
	Text    string // the reply or the reason, one line
	// Away: it is unknown because the host does not serve us now, whoever the recipient is.
	Away bool
}

// Probe asks the servers of a destination whether they take mail for a recipient, as a delivery
// would: by the same routes, sources, TLS requirements and login. That no server can be asked,
// that the name has none, and that a server refuses the null sender say nothing about the
// recipient; nor does a refusal that is not about the mailbox, see deniesMailbox.
func (r *Relay) Probe(ctx context.Context, channel, host, to string) Probe {
	key := poolKey{channel: channel, host: host}
	if !strings.HasPrefix(host, "unix:") {
		key.host = strings.ToLower(host)
		if len(r.zone.v4) > 0 {
			key.from.v4 = r.zone.v4[0]
		}
		if len(r.zone.v6) > 0 {
			key.from.v6 = r.zone.v6[0]
		}
	}
	unknown := func(code status.Code, text string) Probe {
		code.Class = 4
		return Probe{Code: code, Text: strings.ReplaceAll(text, "\n", " "), Away: true}
	}
	dest, err := parseDestination(channel, key.host, r.port)
	if err != nil {
		return unknown(badSetup, err.Error())
	}
	if key.terms, err = r.security.terms(&dest, "", false, nil); err != nil {
		return unknown(badSetup, err.Error())
	}
	l, why := r.connect(ctx, key, &dest)
	if why != nil {
		return unknown(why.code, why.reply)
	}
	// Nothing waits behind it: its time is over when the client's is.
	stop := context.AfterFunc(ctx, func() { _ = l.conn.Close() })
	res := l.conn.Verify(to)
	if stop() {
		_ = l.conn.Quit() // the answer is there
	}
	text := res.Reply.String()
	if res.Err != nil {
		text = brief(res.Err)
	}
	if res.Outcome == status.Failed && res.Err == nil && !deniesMailbox(res.Reply) {
		res.Outcome = status.Deferred
	}
	if res.Outcome == status.Deferred {
		if res.Code.IsZero() {
			res.Code = status.BadConnection
		}
		if res.Phase == smtpclient.PhaseMail && res.Err == nil {
			text = "the null sender was answered: " + text
		}
		p := unknown(res.Code, text)
		p.Away = res.Phase != smtpclient.PhaseRcpt || res.Err != nil || res.Reply.Code == 421
		return p
	}
	return Probe{Outcome: res.Outcome, Code: res.Code, Text: strings.ReplaceAll(text, "\n", " ")}
}

// deniesMailbox reports whether a reply of 5xx to RCPT says that there is no such mailbox. A
// refusal for another reason (our address is listed, relaying is not set up yet, the mailbox is
// full) may be gone when a delivery is tried, and would make good addresses unknown for days.
func deniesMailbox(r smtpclient.Reply) bool {
	c := r.Status()
	switch {
	case c.Subject == 1: // RFC 3463 section 3.2: addressing, but for the sender's address
		return c.Detail != 7 && c.Detail != 8
	case c.Subject == 2: // disabled, not accepting messages
		return c.Detail == 1
	case c.Subject == 4: // Exchange Online refuses unknown recipients with 550 5.4.1
		return r.Code == 550 && c.Detail == 1
	case c.Subject == 0: // no enhanced code: RFC 5321 section 4.2.3, RFC 7504
		return slices.Contains([]int{550, 551, 553, 556}, r.Code)
	}
	return false
}

// probers is how many recipients are asked for at the same time.
const probers = 20

// ProbeGreeting is the first line that ServeProbes writes.
const ProbeGreeting = "zmailer probe 1"

// ServeProbes answers requests, a line each, until in ends: "ID CHANNEL HOST ADDRESS", the last
// two in xtext. The answers are lines "ID OUTCOME CODE TEXT", in the order in which they are
// known; OUTCOME is deliverable, undeliverable or unknown.
func ServeProbes(ctx context.Context, c Config, in io.Reader, out io.Writer) error {
	if p, err := postoffice.OpenDir(c.PostOffice, 0, c.Strict); err == nil {
		// MTA-STS policies are read. Nothing is written: a probe is no delivery.
		if f, ok := p.FS().(io.Closer); ok {
			defer f.Close()
		}
		c.Security.Disk, c.Security.Look = p.FS(), true
	}
	c.Slots, c.Connections, c.Idle = probers, probers, 0
	relay, err := NewRelay(c)
	if err != nil {
		return fmt.Errorf("start ta-smtp --probe: %w", err)
	}
	defer relay.Close()
	return relay.serveProbes(ctx, in, out)
}

func (r *Relay) serveProbes(ctx context.Context, in io.Reader, out io.Writer) error {
	s, ctx := answer.New(ctx, out, probers, ProbeGreeting)
	lines := bufio.NewReaderSize(in, 16<<10)
	var err error
	for ctx.Err() == nil {
		var line string
		if line, err = lines.ReadString('\n'); err != nil {
			break
		}
		f := strings.Fields(line)
		if len(f) != 4 {
			err = fmt.Errorf("a request is ID CHANNEL HOST ADDRESS, not %.80q", line)
			break
		}
		host, herr := address.DecodeXText(f[2])
		to, terr := address.DecodeXText(f[3])
		if err = errors.Join(herr, terr); err != nil {
			break
		}
		s.Go(func() string { return f[0] + " " + r.Probe(ctx, f[1], host, to).String() })
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, s.Wait())
}

// String returns the answer as ServeProbes writes it: one line.
func (p Probe) String() string {
	word := map[status.Outcome]string{status.Delivered: "deliverable", status.Failed: "undeliverable"}[p.Outcome]
	if word == "" {
		word = "unknown"
	}
	if p.Away {
		word = "away"
	}
	return word + " " + p.Code.String() + " " + answer.Text(p.Text)
}
