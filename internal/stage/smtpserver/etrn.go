package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/disk/socket"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/wire/mailq"
)

// etrnPatience is how long the scheduler may take for one request.
const etrnPatience = 10 * time.Second

// ETRN implements session.Handler (RFC 1985): the queue of a host is started, with @ also
// those of the hosts below it, with # that of a name that is not a host's.
func (h *handler) ETRN(arg string) *session.Reply {
	if h.tx.envelope != nil {
		return session.NewReply(503, "5.5.1", "Error: MAIL transaction in progress")
	}
	node, err := parseNode(arg)
	if err != nil {
		return session.NewReply(501, "5.5.4", "Syntax: ETRN domain: "+err.Error())
	}
	f := h.rules.Facts(h.client, address.Mailbox{})
	f.To = address.Mailbox{Local: "postmaster", Domain: strings.TrimLeft(node, "@#")}
	may, err := h.rules.MayETRN(h.ctx, &f, h.client)
	switch {
	case err != nil:
		return session.NewReply(458, "4.3.0", "Unable to queue messages for node "+node)
	case !may:
		h.Log.Info("etrn-refused", "client", h.client.String(), "host", node)
		return session.NewReply(459, "4.7.1", "Node "+node+" not allowed")
	}
	return h.startQueue(node)
}

// parseNode reads the argument of ETRN (RFC 1985 section 5.3).
func parseNode(arg string) (string, error) {
	switch {
	case arg == "" || strings.ContainsAny(arg, " \t"):
		return "", errors.New("want one argument")
	case len(arg) > session.MaxName:
		return "", errors.New("too long")
	}
	if queue, is := strings.CutPrefix(arg, "#"); is {
		if queue == "" || strings.ContainsFunc(queue, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return "", errors.New("not a queue name")
		}
		return arg, nil
	}
	domain, below := strings.CutPrefix(arg, "@")
	d, err := (address.Mailbox{Local: "x", Domain: strings.TrimSuffix(domain, ".")}).ASCIIDomain()
	if err != nil || d == "" {
		return "", errors.New("not a host name")
	}
	if below {
		d = "@" + d
	}
	return d, nil
}

// startQueue has the scheduler start a queue: by its query socket or, if that does not
// answer, by a file that the scheduler finds.
func (h *handler) startQueue(node string) *session.Reply {
	host := strings.TrimPrefix(node, "#")
	some, err := h.askScheduler(host)
	if err == nil {
		h.Log.Info("etrn", "client", h.client.String(), "host", node, "started", some)
		if some {
			return session.NewReply(250, "2.0.0", "OK, queuing for node "+node+" started")
		}
		return session.NewReply(251, "2.0.0", "OK, no messages waiting for node "+node)
	}
	if ferr := h.po.Queue.AskStart(host); ferr != nil {
		h.Log.Error("etrn-failed", "client", h.client.String(), "host", node, "reason", errors.Join(err, ferr))
		return session.NewReply(458, "4.3.0", "Unable to queue messages for node "+node)
	}
	h.Log.Info("etrn", "client", h.client.String(), "host", node, "reason", err)
	return session.NewReply(250, "2.0.0", "OK, queuing for node "+node+" started")
}

// askScheduler sends ETRN to the scheduler's query socket and reports whether that has
// started anything.
func (s *server) askScheduler(host string) (some bool, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, etrnPatience)
	defer cancel()
	conn, err := socket.Dial(ctx, filepath.Join(s.PostOffice, postoffice.QuerySocket))
	if err != nil {
		return false, fmt.Errorf("ask the scheduler: %w", err)
	}
	defer conn.Close()
	until, _ := ctx.Deadline()
	if err := conn.SetDeadline(until); err != nil {
		return false, fmt.Errorf("ask the scheduler: %w", err)
	}
	c, err := mailq.NewClient(conn)
	if err != nil {
		return false, fmt.Errorf("ask the scheduler: %w", err)
	}
	r := mailq.Request{Kind: mailq.ETRN, Host: host}
	text, err := c.Ask(r, nil)
	if errors.Is(err, mailq.ErrRefused) {
		// We run as another user than the scheduler, and it may allow everyone.
		if err = c.Login("nobody", "nobody"); err == nil {
			text, err = c.Ask(r, nil)
		}
	}
	if err != nil {
		return false, fmt.Errorf("ask the scheduler: %w", err)
	}
	return !strings.Contains(text, "didn't"), nil
}
