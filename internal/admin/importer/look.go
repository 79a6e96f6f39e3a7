package importer

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/envelope"
)

// Look says what Run would do; nothing is changed.
func Look(ctx context.Context, c Config) (Sum, error) {
	name, tag := recordName(c.System, c.Path)
	text, err := c.PostOffice.Imports.ReadRecord(name)
	if err != nil {
		return Sum{}, err
	}
	c.Move = false
	r := &run{Config: c, tag: tag, known: parseRecord(text)}
	refs, err := c.Source.List(ctx)
	if err != nil {
		return Sum{}, err
	}
	if c.Listed != nil {
		c.Listed(len(refs))
	}
	for _, ref := range refs {
		if err := ctx.Err(); err != nil {
			return r.sum, err
		}
		o := &one{ref: ref, result: Result{Message: ref.Name}}
		if r.open(o) {
			o.result.Did = Would
			r.tryEnvelope(o)
		}
		if err := r.end(o); err != nil {
			return r.sum, err
		}
	}
	return r.sum, nil
}

// tryEnvelope finds what envelope lines refuse, before it is written.
func (r *run) tryEnvelope(o *one) {
	for i := range o.message.Parts {
		p := &o.message.Parts[i]
		if r.Hold && p.Held == "" {
			o.result.Held = "import --hold"
		}
		if _, err := envelope.Append(nil, r.envelope(o.message, p)); err != nil {
			o.result.Did, o.result.Why = Failed, err.Error()
		}
	}
}

// Retry reports whether the same import may be tried again by itself after an error.
func Retry(err error) bool {
	for _, e := range []error{context.Canceled, context.DeadlineExceeded, unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.EIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
