package docs

import (
	"strings"
	"testing"
)

// A page as one may be: what its comments prepare is there when its commands run.
const example = `# A page
<!-- file: /etc/zmailer/aliases -->

    team: alice, bob

<!-- system:
METRICS=unix
-->
<!-- run: host 127.0.0.1:2626 -->
<!-- dialogue: 127.0.0.1:2525 -->
~~~
S: 220 mta.example ESMTP Service Ready
C: HELO client.example
S: 250 mta.example greets client.example
C: MAIL FROM:<ann@client.example>
S: 250 2.1.0 ...
C: RCPT TO:<team@mta.example>
S: 250 2.1.5 ...
C: RCPT TO:<ann@far.example>
S: ...
C: DATA
S: 354 ...
C: Subject: lunch
C:
C: At noon.
C: .
S: 250 2.0.0 Ok: queued as S9977890A28CaS0WVYQu
C: QUIT
S: 221 ...
~~~
<!-- wait: grep -q "msg=delivered.*id=S9977890A28CaS0WVYQu.*bob" /var/log/zmailer.log -->
~~~console
$ ls -A | grep metrics
.metrics.router
.metrics.scheduler
.metrics.smtpserver
$ grep -h '^At' /srv/mail/*/new/*
At noon.
At noon.
$ zmctl queue
0 messages
~~~
`

func TestPageGetsTheSystemThatItNames(t *testing.T) {
	t.Parallel()
	runPage(t, "example", strings.ReplaceAll(example, "~~~", "```"))
}
