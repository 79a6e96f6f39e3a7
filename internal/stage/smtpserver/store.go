package smtpserver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/emersion/go-smtp"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
)

// Data implements smtp.Session: the content after DATA or BDAT. Its result is the
// reply, success included, so that the client is told the spool ID.
//
// go-smtp's reader r is left alone: it would alter the content in places (a CR after
// a line's only dot is lost, CR CR LF is no line end) and goes byte by byte. The wire
// gives each command line away alone, so that all the content is still in it.
func (s *session) Data(io.Reader) error {
	began := s.srv.meters.now()
	err := s.content()
	s.srv.meters.message(s, began, err)
	return err
}

func (s *session) content() error {
	if s.wire.err != nil {
		return lostReply
	}
	c := &content{limit: s.srv.MaxSize, strict: s.strictLines()}
	if s.wire.bdat != nil {
		c.in = &chunks{wire: s.wire, content: c}
	} else {
		c.in, c.dots = s.wire, true
	}
	a, err := s.store(c)
	// Whatever has come of it, the content is over for go-smtp.
	s.wire.bdat, s.wire.ended = nil, endOfData
	switch {
	case err == nil:
		return &smtp.SMTPError{Code: 250, EnhancedCode: smtp.EnhancedCode{2, 0, 0}, Message: "queued as " + a.ID.String()}
	case errors.Is(err, errAbandoned):
		// Each chunk was answered; what ends the message will be.
		s.wire.mute = s.replies()
	case errors.Is(err, errLost):
		s.wire.err = io.EOF
		return lostReply
	}
	return s.refusal(err)
}

// errLost means that the client went away or fell silent in the middle of a message.
var errLost = errors.New("the client is lost")

// store writes a message to public/ and moves it to router/.
func (s *session) store(c *content) (postoffice.Accepted, error) {
	// Nothing is made on disk for a client that goes away now.
	if len(c.in.peek()) == 0 {
		if err := c.in.more(); err != nil && err != errEnd {
			return postoffice.Accepted{}, lost(err)
		}
	}
	if s.looks() {
		return s.hold(c)
	}
	draft, err := s.newDraft()
	if draft != nil {
		defer s.abort(draft)
	}
	var out io.Writer = io.Discard
	if err == nil {
		out = draft
	}
	// Whatever is wrong with the disk, the content has to be read to its end: the
	// client listens to nothing before it.
	c.err = err
	end, err := c.copyTo(out)
	if err != nil {
		if !end {
			err = lost(err)
		}
		return postoffice.Accepted{}, err
	}
	if err := s.judgeContent(c.size); err != nil {
		return postoffice.Accepted{}, err
	}
	return s.enter(draft)
}

// enter commits a message and enters it into the ledger.
func (s *session) enter(draft *postoffice.Draft) (postoffice.Accepted, error) {
	accepting := s.srv.ledger.Accepting()
	began := s.srv.meters.now()
	a, err := s.commit(draft)
	if err != nil {
		accepting.Abandon()
		return postoffice.Accepted{}, err
	}
	s.srv.meters.stored(s, began, a.Size)
	// Crash: the router's line stands for this one.
	accepting.In(a.ID, len(s.transaction.Recipients))
	s.srv.disk.end(s.srv.Log, "storage-recovered")
	s.wire.faults, s.wire.nobodies, s.wire.idle = 0, 0, 0
	s.srv.Log.LogAttrs(s.srv.ctx, slog.LevelInfo, "accepted", slog.String("id", a.ID.String()), slog.String("from", s.transaction.From),
		slog.Int64("size", a.Size), slog.Int("rcpts", len(s.transaction.Recipients)), slog.String("client", s.client.String()))
	return a, nil
}

// lost makes errLost of an error of the connection.
func lost(err error) error {
	if errors.Is(err, errAbandoned) {
		return err
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

// abort takes a draft away that was not committed.
func (s *session) abort(draft *postoffice.Draft) {
	// What cannot be removed now has no execute bit and is swept.
	if err := draft.Abort(); err != nil {
		s.srv.Log.Warn("leftover", "name", postoffice.Public+"/"+draft.Name(), "reason", err)
	}
}

// newDraft begins the message file with its envelope. With an error the draft may
// be there nevertheless.
func (s *session) newDraft() (*postoffice.Draft, error) {
	buf := envelopeBuffers.Get().(*[]byte)
	defer envelopeBuffers.Put(buf)
	lines, err := envelope.Append((*buf)[:0], s.transaction)
	if err != nil {
		return nil, err
	}
	*buf = lines
	draft, err := s.srv.po.Submissions.NewDraft("smtp")
	if err != nil {
		return nil, err
	}
	draft.Into(s.srv.RouterDir)
	_, err = draft.Write(lines)
	return draft, err
}
