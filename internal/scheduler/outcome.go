package scheduler

import (
	"time"

	"zmailer/internal/scheduler/thread"
	"zmailer/internal/status"
	"zmailer/internal/taproto"
	"zmailer/internal/workspec"
)

// logFinal writes the line of a recipient that is done with.
func (e *engine) logFinal(v *thread.Vertex, r *thread.Recipient, ans *taproto.Answer) {
	m := v.Message
	id := idOf(m)
	word := "delivered"
	if r.Result == thread.Failed {
		word = "failed"
	}
	code := workspec.ParseNotary(ans.Notary).Status
	if code == "" {
		code = replyCode(lastLine(ans.Text), r.Result)
	}
	e.log.Info(word, "id", id, "name", m.Name, "rcpt", r.Address, "channel", v.Thread.Channel(), "host", v.Thread.Host,
		"status", code, "reply", cut(lastLine(ans.Text)), "took", e.now.Sub(id.Time()))
}

// replyCode is the enhanced code of an SMTP reply, or that of a bare success or
// failure.
func replyCode(reply string, res thread.Result) string {
	if len(reply) > 4 && reply[0] >= '2' && reply[0] <= '5' && (reply[3] == ' ' || reply[3] == '-') {
		return status.OfReply(int(reply[0]-'0')*100, reply[4:]).String()
	}
	o := Outcome{Result: res}
	return o.code().String()
}

// logTagged writes the line of a recipient whose outcome only its tag tells.
func (e *engine) logTagged(v *thread.Vertex, r *thread.Recipient, delivered bool) {
	m := v.Message
	id := idOf(m)
	word, o := "failed", Outcome{Result: thread.Failed}
	if delivered {
		word, o.Result = "delivered", thread.Delivered
	}
	e.log.Info(word, "id", id, "name", m.Name, "rcpt", r.Address, "channel", v.Thread.Channel(), "host", v.Thread.Host,
		"status", o.code().String(), "reply", "told by its tag; the agent did not answer", "took", e.now.Sub(id.Time()))
}

// logDeferred writes a line for each recipient that is tried again.
func (e *engine) logDeferred(v *thread.Vertex, list []Outcome, round thread.Round) {
	m := v.Message
	id := idOf(m)
	for i := range list {
		o := &list[i]
		r := v.Find(o.Offset)
		if r == nil || o.Result.Final() {
			continue
		}
		e.log.Info("deferred", "id", id, "name", m.Name, "rcpt", r.Address, "channel", v.Thread.Channel(), "host", v.Thread.Host,
			"status", o.code().String(), "reply", cut(lastLine(o.Text)), "attempt", round.Attempt, "next", round.Next.Format(time.RFC3339))
	}
}
