package mailbox

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"zmailer/internal/workspec"
)

// Keys of the history's "sent" that say where a message was about to be written: the
// offset in the mbox, and the seconds in its From line. With the message itself, which
// is still there, they give every byte that is to be found.
const (
	keyAt   = "at"
	keyDate = "date"
)

func placeAttrs(at int64, date time.Time) []workspec.Attr {
	return []workspec.Attr{
		{Key: keyAt, Value: strconv.FormatInt(at, 10)},
		{Key: keyDate, Value: strconv.FormatInt(date.Unix(), 10)},
	}
}

// placeOf reads what placeAttrs wrote; false: it says nothing of an mbox.
func placeOf(e *workspec.Event) (at int64, date time.Time, ok bool) {
	at, err1 := strconv.ParseInt(e.Get(keyAt), 10, 64)
	seconds, err2 := strconv.ParseInt(e.Get(keyDate), 10, 64)
	return at, time.Unix(seconds, 0), err1 == nil && err2 == nil && at >= 0
}

// settle finds out whether an agent that died has delivered the message: whole, a part
// of it, which is cut off, or nothing. It is called with the file locked.
func (b *mbox) settle(l *letter) (there bool, err error) {
	if l.recipient.Sent == nil {
		return false, nil
	}
	at, date, ok := placeOf(l.recipient.Sent)
	if !ok || at > b.st.Size {
		return false, l.inDoubt() // its reader has made the file shorter
	}
	c := &comparison{b: b, at: at}
	err = b.compose(c, l, at, date)
	switch {
	case errors.Is(err, errDiffers):
		return false, l.inDoubt() // its reader has written the file anew
	case errors.Is(err, errEnds):
		// Crash: what is left of the part is compared by the next attempt.
		if err := ftruncate(b.fd, at); err != nil {
			return false, fmt.Errorf("cut %s back to %d bytes: %w", b.t.path, at, err)
		}
		b.st.Size = at
		return false, nil
	case err != nil:
		return false, err
	}
	// The attempt before may have made the file.
	if err := errors.Join(b.sync(), b.m.syncName(b.t.path, b.t)); err != nil {
		return false, &standing{err}
	}
	return true, nil
}

// What a comparison ends with.
var (
	errDiffers = errors.New("something else stands there")
	errEnds    = errors.New("the file ends before the message")
)

// comparison is written to, and compares with what stands in the file from at on.
type comparison struct {
	b  *mbox
	at int64
}

// Write implements io.Writer.
func (c *comparison) Write(p []byte) (int, error) {
	have := make([]byte, len(p))
	done := 0
	for done < len(have) {
		n, err := pread(c.b.fd, have[done:], c.at+int64(done))
		if err != nil {
			return 0, c.b.pathError("read", err)
		}
		if n == 0 {
			break
		}
		done += n
	}
	switch {
	case !bytes.Equal(have[:done], p[:done]):
		return 0, errDiffers
	case done < len(p):
		return 0, errEnds
	}
	c.at += int64(done)
	return done, nil
}
