package smtpserver

import (
	"io"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/content"
)

// contentWriter writes a content to a draft or to a spool while it comes. MAIL has found
// enough space, but its SIZE need not be true, and others write at the same time. It
// implements session.Discarder: at the first error the file is removed.
type contentWriter struct {
	t     *transaction
	draft *postoffice.Draft
	spool *content.Spool
}

// Write implements io.Writer.
func (w *contentWriter) Write(b []byte) (int, error) {
	if err := w.t.wrote(len(b)); err != nil {
		return 0, err
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
	w.t.removed()
}

// to has the writer write to one of both.
func (t *transaction) to(d *postoffice.Draft, s *content.Spool) io.Writer {
	t.out = contentWriter{t: t, draft: d, spool: s}
	return &t.out
}
