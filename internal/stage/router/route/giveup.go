package route

import (
	"errors"
	"fmt"
	"time"

	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// Defers reports whether a message that an error keeps from being routed goes to
// deferred/, and the word for that.
func Defers(err error) (why string, ok bool) {
	if t, ok := rules.IsTrouble(err); ok {
		return t.Why, true
	}
	// Our own rules gave something that cannot be written: it would be so again, until
	// somebody has changed them.
	return "specification", errors.Is(err, workspec.ErrValue)
}

// giveUp writes a work specification in which every recipient has failed: the scheduler
// reports that to the sender, as far as the sender wants it. n is 0 if there are none.
func (w *worker) giveUp(msg *message, why string, cause error) (n int, err error) {
	age := w.en.c.Now().Sub(msg.claim.Info.ModTime).Round(time.Second)
	msg.expiredText = fmt.Sprintf("the mail system has not been able to look up where to deliver it for %s, and has given up", age)
	// What was decided on the way to the error does not count.
	msg.masked, msg.variants, msg.history = nil, variants{}, decisions{}
	msg.policy = policyState{program: msg.policy.program}
	if msg.to == nil {
		if msg.to = msg.head.Recipients; len(msg.to) == 0 {
			msg.to, msg.fromLines = fromHeader(msg.header.fields), true
		}
	}
	if n, err = w.specify(msg); err != nil || n == 0 {
		return n, err
	}
	w.en.c.Log.Warn("given-up", "id", msg.id, "from", msg.senderText(), "rcpts", n, "why", why, "age", age, "reason", cause)
	return n, nil
}
