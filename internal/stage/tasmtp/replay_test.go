package tasmtp_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/wire/taproto/taprototest"
)

// M32: the conversations that a ZMailer scheduler had with ZMailer's SMTP agent are
// held with ours, line by line: the same jobs, and for each recipient the same
// offset and word. What the server hears is the same, byte for byte, and so is the
// dialogue in the diagnostic of a failure.
//
// Three things differ, and are meant to:
//   - ZMailer's agent works from the last recipient of a job to the first and answers
//     in that order; ours keeps the order of the file.
//   - The text of its answer is the dialogue, with the last RCPT of the transaction
//     whosever it was. The text of ours is the last reply alone; the dialogue, with
//     the recipient's own RCPT, is in the file where a diagnostic is owed.
//   - Where a recipient has no N line its agent makes up NOTIFY=FAILURE and ORCPT.
//     RFC 3461 §5.2.1 has a relay pass on only what it was given.
func TestRecordedConversations(t *testing.T) {
	for _, name := range []string{"smtp-1198.txt", "smtp-1199.txt"} {
		t.Run(name, func(t *testing.T) { replay(t, name) })
	}
}

func replay(t *testing.T, name string) {
	steps := taprototest.Transcript(t, filepath.Join("../../wire/taproto/testdata", name))
	recorded := readAnswers(t, steps)
	sink := recordedServer(recorded).Start(t, "", "")
	dns := mxtest.Start(t, `
a.example.com. 300 IN MX 10 mx.example.com.
b.example.com. 300 IN MX 10 mx.example.com.
mx.example.com. 300 IN A 127.0.0.1
`)
	spool := NewSpool(t)
	queueRecorded(t, spool)
	p := start(t, spool, conf(spool, sink, "RESOLVER="+dns.Addr), "smtp")

	n := 0
	for _, s := range steps {
		switch {
		case !s.Agent:
			p.Say(s.Said)
		case s.Said == "#hungry\n":
			got := p.Answers()
			if n == 0 || len(got) == 0 {
				// At start, and after #idle.
				if len(got) > 0 {
					t.Errorf("got %+v before a job", got)
				}
				n = max(n, 1)
				continue
			}
			compareAnswers(t, recorded[n-1], got)
			n++
		}
	}
	assert.Equal(t, n-1, len(recorded), "jobs were answered")
	compareServer(t, recorded, sink)
	if name == "smtp-1199.txt" {
		compareDiagnostic(t, spool, recorded)
	}
	p.In.Close()
	assert.Equal(t, p.End(), 0, "exit code: %s", p.Log.String())
}

// recordedAnswers is those to one job, by offset.
type recordedAnswers struct{ answers []taproto.Answer }

// readAnswers takes the answers out of a transcript, those of a job ended by a
// #hungry.
func readAnswers(t *testing.T, steps []taprototest.Step) []recordedAnswers {
	t.Helper()
	var jobs []recordedAnswers
	var open recordedAnswers
	for _, s := range steps {
		if !s.Agent {
			continue
		}
		for _, line := range s.Lines() {
			l := taproto.ParseLine([]byte(line))
			switch {
			case l.Kind == taproto.LineAnswer:
				open.answers = append(open.answers, l.Answer)
			case len(open.answers) > 0:
				sortAnswers(open.answers)
				jobs = append(jobs, open)
				open = recordedAnswers{}
			}
		}
	}
	if len(jobs) < 4 {
		t.Fatalf("%d jobs in the transcript", len(jobs))
	}
	return jobs
}

func sortAnswers(a []taproto.Answer) {
	slices.SortFunc(a, func(a, b taproto.Answer) int { return cmp.Compare(a.Offset, b.Offset) })
}

// commands returns the client's lines of a recorded dialogue that begin with a verb,
// replies the server's.
func commands(text, verb string) (lines []string) {
	for l := range strings.SplitSeq(text, "\n") {
		if l, ok := strings.CutPrefix(l, "<<- "); ok && strings.HasPrefix(l, verb) {
			lines = append(lines, l)
		}
	}
	return lines
}

func replies(text string) (lines []string) {
	for l := range strings.SplitSeq(text, "\n") {
		if l, ok := strings.CutPrefix(l, "->> "); ok {
			lines = append(lines, l)
		}
	}
	return lines
}

// recordedServer answers as the server of the recording did.
func recordedServer(jobs []recordedAnswers) *Sink {
	refused := map[string]string{}
	var dots []string
	for _, j := range jobs {
		dot := ""
		for _, a := range j.answers {
			said := replies(a.Text)
			last := said[len(said)-1]
			if a.Word == taproto.Error2 {
				refused[commands(a.Text, "RCPT")[0]] = last
			} else {
				dot = last
			}
		}
		dots = append(dots, dot)
	}
	var mu sync.Mutex
	return &Sink{Answer: func(command string) string {
		mu.Lock()
		defer mu.Unlock()
		if command == "." && len(dots) > 0 {
			dot := dots[0]
			dots = dots[1:]
			return dot
		}
		return refused[command]
	}}
}

func compareAnswers(t *testing.T, want recordedAnswers, got []taproto.Answer) {
	t.Helper()
	sortAnswers(got)
	if len(got) != len(want.answers) {
		t.Errorf("got %+v, want %+v", got, want.answers)
		return
	}
	for i, w := range want.answers {
		g := got[i]
		said := replies(w.Text)
		if w.Notary == "" && strings.HasPrefix(g.Notary, "\x01\x01\x01\x01") {
			g.Notary = "" // the server's name, which is for the log alone
		}
		if g.Number != w.Number || g.Offset != w.Offset || g.Notary != w.Notary || g.Word != w.Word || g.Text != said[len(said)-1] {
			t.Errorf("got %+v, want %+v", g, w)
		}
	}
}

// compareServer compares what the server heard with what it heard in the recording.
func compareServer(t *testing.T, jobs []recordedAnswers, sink *Sink) {
	t.Helper()
	assert.Equal(t, sink.Connects(), 1, "connections")
	heard := sink.Messages()
	if len(heard) != len(jobs) {
		t.Fatalf("%d messages, want %d", len(heard), len(jobs))
	}
	for i, j := range jobs {
		delivered := 0
		for _, a := range j.answers {
			assert.Equal(t, heard[i].Mail, commands(a.Text, "MAIL")[0], "%d/%d", a.Number, a.Offset)
			if a.Word == taproto.Error2 {
				continue
			}
			delivered++
			// Of a job with several recipients the recording shows one RCPT line,
			// which need not be of this recipient.
			if want := recordedRcpt(a); len(j.answers) == 1 && !slices.Contains(heard[i].Rcpts, want) {
				t.Errorf("%d/%d: got %q, want %s", a.Number, a.Offset, heard[i].Rcpts, want)
			}
		}
		assert.Equal(t, len(heard[i].Rcpts), delivered, "job %d: recipients", i)
	}
}

// recordedRcpt returns the RCPT line of an answer, without what ZMailer's agent made up
// for the one message whose recipients have no N line.
func recordedRcpt(a taproto.Answer) string {
	line := commands(a.Text, "RCPT")[0]
	if a.Number == 10117792 {
		line, _, _ = strings.Cut(line, " NOTIFY=")
	}
	return line
}

// compareDiagnostic compares the d line of the one failure with the line that
// ZMailer's agent wrote for it.
func compareDiagnostic(t *testing.T, s *Spool, jobs []recordedAnswers) {
	t.Helper()
	got := s.Spec("D/M/10117782").Diagnostics
	if len(got) != 1 {
		t.Fatalf("%d diagnostics, want 1", len(got))
	}
	d := got[0]
	assert.Equal(t, d.Text, jobs[0].answers[0].Text)
	if d.Recipient != 181 || d.HeaderOffset != 548 || d.NotaryOffset != 238 {
		t.Errorf("got offsets %d:%d:%d, want 181:548:238", d.Recipient, d.HeaderOffset, d.NotaryOffset)
	}
	if n := d.Notary; n.Address != "fail1@b.example.com" || n.Action != "failed" || n.Status != "5.1.1" || !strings.HasPrefix(n.Agent, "smtp[") {
		t.Errorf("got %+v", n)
	}
}

// queueRecorded queues the messages of the recordings: those whose files were kept
// with them as they are, the others made so that every recipient stands at the
// recorded offset and the message has the recorded size.
func queueRecorded(t *testing.T, s *Spool) {
	t.Helper()
	for path, sample := range map[string]string{
		"D/G/10117776": "01-single", "D/J/10117779": "02-multi", "D/L/10117781": "04-dsn", "D/M/10117782": "05-fail",
	} {
		spec, err := os.ReadFile("../../workspec/testdata/samples/" + sample + "/transport-before")
		assert.Must(t, err)
		message, err := os.ReadFile("../../mail/envelope/testdata/zmailer/" + sample)
		assert.Must(t, err)
		s.Write("transport/"+path, spec)
		s.Write("queue/"+path, message)
	}
	const dsn = "NOTIFY=FAILURE,DELAY ORCPT=rfc822;user@a.example.com"
	const success = "NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;"
	user := func(offset int, notary string) madeRcpt {
		return madeRcpt{offset: offset, host: "a.example.com", address: "user@a.example.com", notary: notary}
	}
	made(t, s, "D/R/10117787", "error - <> 1", 412, "", user(83, dsn))
	made(t, s, "D/O/10117784", "local x sender@client.example.net 1", 1068, "", user(252, dsn))
	made(t, s, "D/K/10117780", "local x sender@client.example.net 1", 516, "", user(181, dsn))
	made(t, s, "D/V/10117791", "local x envsender@zm.example.org 1", 314, "R hdrs\nn EID1\n", user(208, success+"user@a.example.com"),
		madeRcpt{offset: 407, host: "b.example.com", address: "two@b.example.com", notary: success + "two@b.example.com"})
	made(t, s, "D/W/10117792", "local x root@zm.example.org 1", 340, "",
		madeRcpt{offset: 238, host: "b.example.com", address: "b@b.example.com"}, user(291, ""))
}

type madeRcpt struct {
	offset        int
	host, address string
	notary        string // "" for no N line
}

// made queues a message whose recipients stand at given offsets and whose size is
// announced as given.
func made(t *testing.T, s *Spool, path, sender string, size int, lines string, rcpts ...madeRcpt) {
	t.Helper()
	const header = "Received: from here\n\tby there; Sat, 21 Nov 2026 00:12:50 +0000\nSubject: made\n"
	body := 0
	for announced(len(header)+1+body) < size {
		body++
	}
	if got := announced(len(header) + 1 + body); got != size {
		t.Fatalf("%s: no body gives SIZE=%d", path, size)
	}
	const envelope = "from <x@zm.example.org>\nto <user@a.example.com>\nenv-end\nSubject: made\n\n"
	number := filepath.Base(path)
	top := fmt.Sprintf("@ 0x00000007\ni %s\no %d\n", number, len(envelope))
	end := "s " + sender + "\n"
	pad := rcpts[0].offset - len(top) - len(end) - len("l \n")
	spec := top + "l " + strings.Repeat("x", pad) + "\n" + end
	for i, r := range rcpts {
		if len(spec) != r.offset {
			t.Fatalf("%s: recipient at %d, want %d", path, len(spec), r.offset)
		}
		spec += fmt.Sprintf("r           smtp %s %s 65534\n", r.host, r.address)
		if r.notary == "" {
			continue
		}
		notary := "N " + r.notary + " INFROM=rfc822;"
		if i+1 < len(rcpts) {
			notary += strings.Repeat("x", rcpts[i+1].offset-len(spec)-len(notary)-len("\n")-len(lines))
		}
		spec += notary + "\n" + lines
	}
	s.Write("transport/"+path, []byte(spec+"m\n"+header+"\n"))
	s.Write("queue/"+path, []byte(envelope+strings.Repeat("x", body-1)+"\n"))
}

// announced is ZMailer's estimate for SIZE.
func announced(stored int) int { return (stored + 1) * 103 / 100 }
