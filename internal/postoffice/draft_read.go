package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Content is what was written so far, without the first line. It can be read until the
// draft is committed or aborted.
func (d *Draft) Content() (*io.SectionReader, error) {
	if d.closed {
		return nil, fs.ErrClosed
	}
	d.flush()
	if d.err != nil {
		return nil, d.err
	}
	return io.NewSectionReader(d.f, int64(octetsLine), d.size-int64(octetsLine)), nil
}

// Drop removes a draft whose message is taken and not to be delivered. It gives the
// spool ID that the message would have had, so that its account has a name for it.
func (d *Draft) Drop() (SpoolID, error) {
	d.flush()
	if d.err != nil {
		return SpoolID{}, errors.Join(d.err, d.Abort())
	}
	info, err := d.f.Stat()
	if err != nil {
		return SpoolID{}, errors.Join(fmt.Errorf("drop message: %w", err), d.Abort())
	}
	return IDOf(info), d.Abort()
}
