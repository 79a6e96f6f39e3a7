package smtpserver

import (
	"errors"
	"io"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/policy/limits"
)

// spaceEvery is how much content is written between two looks at the free space. Bytes.
const spaceEvery = 1 << 20

// contentWriter writes a content to a draft or to a spool while it comes. MAIL has found
// enough space, but its SIZE need not be true, and others write at the same time. It
// implements session.Discarder: at the first error the file is removed.
type contentWriter struct {
	t         *transaction
	draft     *postoffice.Draft
	spool     *content.Spool
	unchecked int // bytes since the space was measured
}

// Write implements io.Writer.
func (w *contentWriter) Write(b []byte) (int, error) {
	if w.unchecked += len(b); w.unchecked >= spaceEvery && w.t.PostOffice != "" {
		w.unchecked = 0
		// What cannot be measured is found by the write.
		if err := w.t.limits.Space(w.t.PostOffice, 0); errors.Is(err, limits.ErrSpace) {
			return 0, err
		}
	}
	if w.t.scan != nil {
		if err := w.t.scanned(b); err != nil {
			return 0, err
		}
	}
	if w.spool != nil {
		return w.spool.Write(b)
	}
	return w.draft.Write(b)
}

// Discard implements session.Discarder.
func (w *contentWriter) Discard() {
	if w.spool != nil {
		w.t.release(w.spool)
	} else {
		w.t.abort(w.draft)
	}
}

// to has the writer write to one of both.
func (t *transaction) to(d *postoffice.Draft, s *content.Spool) io.Writer {
	t.out = contentWriter{t: t, draft: d, spool: s}
	return &t.out
}
