package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
)

// Check reads the program as New does, and then runs it on some made-up mail, in which
// nothing is counted and no server is asked: what fails there fails on all mail. Its
// error is a *config.Error. present reports whether there is a program.
func Check(c Config) (present bool, err error) {
	c.Log = slog.New(slog.DiscardHandler)
	p, err := New(c)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	prog := p.Current()
	if prog == nil {
		return false, nil
	}
	defer func() { err = errors.Join(err, prog.Release()) }()
	for _, m := range samples(p.c.Hostname) {
		if err := try(prog, p.c.Hostname, m); err != nil {
			failed := (*Error)(nil)
			if errors.As(err, &failed) && failed.Where != "" {
				err = &Error{Where: failed.Where, Text: failed.Text + ", as a sample of mail from <" + m.Sender.String() + "> shows", Trace: failed.Trace}
			}
			return true, configError(filepath.Join(c.Dir, File), err)
		}
	}
	return true, nil
}

func try(prog *Program, hostname string, m *Message) error {
	env := &Env{
		Play:    true,
		IsLocal: func(_ context.Context, d string) (bool, error) { return strings.EqualFold(d, hostname), nil },
		Resolve: func(_ context.Context, a string, give func(channel, host, user string) error) error {
			to, err := address.Parse(a)
			if err != nil {
				return err
			}
			return give("smtp", domainOf(to, hostname), a)
		},
	}
	s := &Session{p: prog, env: env, m: m, object: m.object(hostname)}
	ctx := context.Background()
	d, err := s.Message(ctx)
	if err != nil || d.Fate.Fate != None {
		return err
	}
	for _, r := range m.Recipients {
		to, err := address.Parse(r)
		if err != nil {
			return fmt.Errorf("sample %s: %w", r, err)
		}
		domain := domainOf(to, hostname)
		if _, err := s.Recipient(ctx, &Recipient{Address: to, Domain: domain, Local: domain == hostname}); err != nil {
			return err
		}
	}
	return nil
}

// samples are made-up messages: from here, from outside, and a report.
func samples(hostname string) []*Message {
	fields := envelope.Fields([]byte("From: a@example.org\nTo: b@example.net\nSubject: a sample\nDate: Sun, 22 Nov 2026 12:00:00 +0000\nMessage-ID: <sample@example.org>\n"))
	to := []string{"somebody@" + hostname, "else@example.net", "postmaster"}
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	return []*Message{
		{ID: "sample", Sender: address.Mailbox{Local: "bond", Domain: hostname}, Size: 1000, Accepted: at, UID: uint32(os.Geteuid()),
			Login: "bond", Header: fields, Recipients: to},
		{ID: "sample", Sender: address.Mailbox{Local: "a", Domain: "example.org"}, External: true, Size: 30 << 20, Accepted: at,
			RcvdFrom: "client.example.org ([192.0.2.1]:2525)", Protocol: "ESMTP", Header: fields, Recipients: to},
		{ID: "sample", Report: true, External: true, Size: 500, Accepted: at, Recipients: to[:1]},
	}
}
