package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/wire/mailq"
)

// etrnPatience is how long the scheduler may take for one request.
const etrnPatience = 10 * time.Second

// etrn answers ETRN (RFC 1985): the host's queue, with @ also those of the hosts below
// it, with # that of a name that is no host's, is started.
func etrn(w *wire, s *session, arg string) bool {
	switch {
	case s == nil:
		w.say(503, "5.5.1", "EHLO first")
		return true
	case s.transaction != nil:
		w.say(503, "5.5.1", "a transaction is open; RSET ends it")
		return true
	}
	node, err := parseNode(arg)
	if err != nil {
		w.say(501, "5.5.4", "ETRN HOST, ETRN @DOMAIN or ETRN #QUEUE: "+err.Error())
		return true
	}
	f := s.describe(address.Mailbox{})
	f.To = address.Mailbox{Local: "postmaster", Domain: strings.TrimLeft(node, "@#")}
	may, err := s.mayETRN(&f)
	switch {
	case err != nil:
		s.srv.tables.begin(s.srv.Log, "access-trouble", "reason", err, "client", s.client.String())
		w.say(458, "4.3.0", "Unable to queue messages for node "+node+": this cannot be looked up now")
	case !may:
		s.srv.Log.Info("etrn-refused", "client", s.client.String(), "host", node)
		w.say(459, "4.7.1", "Node "+node+" not allowed: not for this client")
	default:
		s.start(node)
	}
	return true
}

// parseNode reads what ETRN is about (RFC 1985 §5.3).
func parseNode(arg string) (string, error) {
	switch {
	case arg == "" || strings.ContainsAny(arg, " \t"):
		return "", errors.New("want one word")
	case len(arg) > maxGreeting:
		return "", errors.New("it is too long")
	}
	if queue, is := strings.CutPrefix(arg, "#"); is {
		if queue == "" || strings.ContainsFunc(queue, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return "", errors.New("that is no name of a queue")
		}
		return arg, nil
	}
	domain, below := strings.CutPrefix(arg, "@")
	d, err := (address.Mailbox{Local: "x", Domain: strings.TrimSuffix(domain, ".")}).ASCIIDomain()
	if err != nil || d == "" {
		return "", errors.New("that is no host")
	}
	if below {
		d = "@" + d
	}
	return d, nil
}

// mayETRN tells whether the client may start a queue: it is in ETRNNETS, or a rule says
// so.
func (s *session) mayETRN(f *access.Facts) (bool, error) {
	for _, n := range s.srv.Access.ETRNNets {
		if n.Contains(f.Client) {
			return true, nil
		}
	}
	return s.srv.access.MayETRN(s.srv.ctx, f)
}

// start has the scheduler start a queue: by its query socket or, where that does not
// answer, by a file that it finds.
func (s *session) start(node string) {
	host := strings.TrimPrefix(node, "#")
	some, err := s.srv.ask(host)
	if err == nil {
		s.srv.Log.Info("etrn", "client", s.client.String(), "host", node, "started", some)
		if some {
			s.wire.say(250, "2.0.0", "OK, queuing for node "+node+" started")
		} else {
			s.wire.say(251, "2.0.0", "OK, no messages waiting for node "+node)
		}
		return
	}
	if ferr := s.srv.po.Queue.AskStart(host); ferr != nil {
		s.srv.Log.Error("etrn-failed", "client", s.client.String(), "host", node, "reason", errors.Join(err, ferr))
		s.wire.say(458, "4.3.0", "Unable to queue messages for node "+node)
		return
	}
	s.srv.Log.Info("etrn", "client", s.client.String(), "host", node, "reason", err)
	s.wire.say(250, "2.0.0", "OK, queuing for node "+node+" started")
}

// ask says ETRN on the scheduler's query socket, and tells whether that has started
// anything.
func (s *server) ask(host string) (some bool, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, etrnPatience)
	defer cancel()
	conn, err := postoffice.DialSocket(ctx, filepath.Join(s.PostOffice, postoffice.QuerySocket))
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
		// We run as another user than the scheduler: perhaps everybody may.
		if err = c.Login("nobody", "nobody"); err == nil {
			text, err = c.Ask(r, nil)
		}
	}
	if err != nil {
		return false, fmt.Errorf("ask the scheduler: %w", err)
	}
	return !strings.Contains(text, "didn't"), nil
}

// offersETRN tells whether EHLO says that there is ETRN: to clients that may start some
// queue. Rules are not asked for the name of one.
func (s *session) offersETRN() bool {
	f := s.describe(address.Mailbox{})
	for _, n := range s.srv.Access.ETRNNets {
		if n.Contains(f.Client) {
			return true
		}
	}
	return s.srv.access.SomeETRN(s.srv.ctx, &f)
}
