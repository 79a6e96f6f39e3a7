package smtpclient

import "zmailer/internal/mail/status"

// Verify asks the server whether it takes mail for a recipient, from the null sender, and sends
// no message: MAIL and RCPT. It is for a connection that carries nothing else. The result
// is as of a transaction that ended there: Delivered means that the recipient was accepted.
func (c *Conn) Verify(to string) Result {
	res := Result{Phase: PhaseMail}
	box, code, err := wireAddress(to, c.ext.SMTPUTF8)
	if err != nil {
		res.Outcome, res.Code, res.Err = status.Failed, code, err
		return res
	}
	mail := "MAIL FROM:<>"
	if box.utf8 {
		mail += " SMTPUTF8"
	}
	// RFC 5321 section 4.5.5: what is sent to such a sender draws no report.
	for _, step := range []struct {
		phase Phase
		line  string
	}{{PhaseMail, mail}, {PhaseRcpt, "RCPT TO:<" + box.path + ">"}} {
		res.Phase, res.Code = step.phase, status.Code{} // not that of the step before
		if res.Err = c.write(step.phase, []byte(step.line+"\r\n")); res.Err == nil {
			res.Reply, res.Err = c.reply(step.phase)
		}
		if res.Err != nil {
			return res
		}
		res.Code = res.Reply.Status()
		if res.Reply.Class() != 2 {
			break
		}
	}
	switch {
	case res.Phase == PhaseRcpt && res.Reply.Class() == 2:
		res.Outcome = status.Delivered
	case res.Phase == PhaseRcpt && res.Reply.Class() == 5:
		res.Outcome = status.Failed
	}
	return res
}
