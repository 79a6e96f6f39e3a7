package smtpserver

import "testing"

// RFC 3463 §3.2: sender and recipient have codes of their own, and no jokes.
func TestAnswersSayWhatWasTaken(t *testing.T) {
	p := start(t, nil).dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250 2.1.0 sender taken")
	p.say("RCPT TO:<b@mta.example>", "250 2.1.5 recipient taken")
	p.say("RSET", "250")
	p.say("QUIT", "221 2.0.0 closing the connection")
}
