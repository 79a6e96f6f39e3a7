package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// planted is a system that does not run, with one routed message in it.
type planted struct {
	*testing.T
	s    *suite.Suite
	sink *peer.Sink
	name string // in queue/ and transport/
	spec []byte
}

func newPlanted(t *testing.T) *planted {
	t.Helper()
	p := &planted{T: t, sink: newSink(t, &peer.Sink{})}
	p.s = prepare(t, p.sink, func(s *suite.Suite) { s.Settings = map[string]string{"ROUTERPOLL": "1s"} })
	submit(t, p.s, "Subject: planted\n\nbody\n", "-f", "bob@mta.example", "far@sink.example")
	exits(t, p.s, 0, "router", "--once")
	p.name = only(t, p.s, "queue")
	p.spec = []byte(read(t, path(p.s, "transport/"+p.name)))
	return p
}

// move renames a file of the postoffice.
func (p *planted) move(from, to string) {
	p.Helper()
	assert.Must(p.T, os.Rename(path(p.s, from), path(p.s, to)))
}

func (p *planted) remove(name string) {
	p.Helper()
	assert.Must(p.T, os.Remove(path(p.s, name)))
}

func (p *planted) queue() string     { return "queue/" + p.name }
func (p *planted) transport() string { return "transport/" + p.name }

// work returns the name of the router's work file.
func (p *planted) work() string { return "router/.." + p.name }

// cut shortens a file.
func (p *planted) cut(name string, by int64) {
	p.Helper()
	info, err := os.Stat(path(p.s, name))
	assert.Must(p.T, err)
	assert.Must(p.T, os.Truncate(path(p.s, name), info.Size()-by))
}

// rcpt returns the recipient in the specification.
func (p *planted) rcpt() workspec.Recipient {
	p.Helper()
	parsed, err := workspec.Parse(p.spec)
	assert.Must(p.T, err)
	return parsed.Groups[0].Recipients[0]
}

// tag sets the recipient's tag.
func (p *planted) tag(tag []byte) {
	p.Helper()
	f, err := os.OpenFile(path(p.s, p.transport()), os.O_WRONLY, 0)
	assert.Must(p.T, err)
	_, err = f.WriteAt(tag, workspec.TagOffset(p.rcpt().Offset))
	assert.Must(p.T, err)
	assert.Must(p.T, f.Close())
}

func (p *planted) final(t workspec.Tag) { p.tag(workspec.TagBytes(workspec.FormatOurs, t)) }

// append adds a line to the specification.
func (p *planted) append(line []byte) {
	p.Helper()
	write(p.T, path(p.s, p.transport()), read(p.T, path(p.s, p.transport()))+string(line))
}

func (p *planted) event(word string, pairs ...string) {
	p.Helper()
	e := workspec.Event{Time: time.Now(), Recipient: p.rcpt().Offset, Event: word}
	for i := 0; i < len(pairs); i += 2 {
		e.Attrs = append(e.Attrs, workspec.Attr{Key: pairs[i], Value: pairs[i+1]})
	}
	p.append(workspec.AppendEvent(nil, &e))
}

// lock locks the recipient for an owner that is dead.
func (p *planted) lock() {
	p.Helper()
	write(p.T, path(p.s, "owners/"+strconv.Itoa(deadOwner)), "ta-smtp pid 999999\n")
	p.tag(workspec.LockBytes(deadOwner))
}

const deadOwner = 999999

// report fails the recipient, and records a report that is prepared as public/NAME.
func (p *planted) report(name string) {
	p.Helper()
	r := p.rcpt()
	p.append(workspec.AppendDiagnostic(nil, &workspec.Diagnostic{Recipient: r.Offset, Time: time.Now(), Text: "550 no",
		Notary: workspec.Notary{Address: r.Address, Action: "failed", Status: "5.1.1", Diagnostic: "smtp; 550 no"}}))
	p.final(workspec.TagFailed)
	p.append(workspec.AppendEvent(nil, &workspec.Event{Time: time.Now(), Event: workspec.EventReport, Attrs: []workspec.Attr{
		{Key: "file", Value: name}, {Key: "kind", Value: "failed"}, {Key: "rcpts", Value: fmt.Sprint(r.Offset)}}}))
}

// Every state of docs/spool.md "Recovery", made by hand while nothing runs: the next start
// recovers from each, brings the message to its end once, logs what it did, and leaves nothing.
func TestEveryStateIsRecovered(t *testing.T) {
	t.Parallel()
	const prepared = "report.1.dn0kpsb1upkv.1"
	tests := map[string]struct {
		plant   func(p *planted)
		arrives int      // at the sink
		reports int      // in bob's mailbox
		event   []string // of the recovery; nil: none
		left    []string // files that stay
	}{
		"submitter died before the rename": {
			plant:   func(p *planted) { p.remove(p.transport()); p.move(p.queue(), "public/smtp.1.x.1") },
			arrives: 1, event: []string{"recovered", "action", postoffice.TakenIn},
		},
		"submission that lost bytes": {
			plant: func(p *planted) {
				p.remove(p.transport())
				p.move(p.queue(), "public/smtp.1.x.1")
				p.cut("public/smtp.1.x.1", 3)
			},
			event: []string{"recovered", "action", postoffice.Incomplete, "name", "public/smtp.1.x.1"}, left: []string{"public/smtp.1.x.1"},
		},
		"router died with a claim": {
			plant:   func(p *planted) { p.remove(p.transport()); p.move(p.queue(), "router/"+p.name) },
			arrives: 1, event: []string{"recovered", "action", postoffice.Unclaimed},
		},
		"router died in its work file": {
			plant: func(p *planted) {
				p.move(p.transport(), p.work())
				p.cut(p.work(), 100)
				p.move(p.queue(), "router/"+p.name)
			},
			arrives: 1, event: []string{"recovered", "action", postoffice.Unclaimed},
		},
		"router died between the two renames": {
			plant:   func(p *planted) { p.move(p.transport(), p.work()) },
			arrives: 1, event: []string{"recovered", "action", postoffice.HandedOver},
		},
		"power went between the two renames": {
			plant:   func(p *planted) { p.move(p.transport(), p.work()); p.cut(p.work(), 5) },
			arrives: 1, event: []string{"recovered", "action", postoffice.Rerouted},
		},
		"work file without a message": {
			plant: func(p *planted) { p.move(p.transport(), p.work()); p.remove(p.queue()) },
			event: []string{"recovered", "action", postoffice.Swept},
		},
		"message without a specification": {
			plant:   func(p *planted) { p.remove(p.transport()) },
			arrives: 1, event: []string{"recovered", "action", postoffice.Rerouted},
		},
		"specification that lost bytes": {
			plant:   func(p *planted) { p.cut(p.transport(), 5) },
			arrives: 1, event: []string{"recovered", "action", postoffice.Rerouted},
		},
		"scheduler died between the two unlinks": {
			plant: func(p *planted) { p.final(workspec.TagOK); p.remove(p.queue()) },
			event: []string{"recovered", "action", postoffice.Completed},
		},
		"all delivered, not finished": {
			plant: func(p *planted) { p.final(workspec.TagOK) },
		},
		"change of hash depth interrupted": {
			plant: func(p *planted) {
				n, _ := postoffice.ParseName(p.name)
				dir := "queue/" + postoffice.HashDir(n.Ino, 1)
				assert.Must(p.T, os.Mkdir(path(p.s, dir), 0o755))
				p.move(p.queue(), dir+"/"+p.name)
			},
			arrives: 1, event: []string{"recovered", "action", postoffice.MoveEnded},
		},
		"agent died before it had sent": {
			plant:   func(p *planted) { p.lock() },
			arrives: 1, event: []string{"recovered", "action", "unlocked", "rcpt", "far@sink.example"},
		},
		"agent died after it had sent": {
			plant:   func(p *planted) { p.event(workspec.EventSent, "owner", fmt.Sprint(deadOwner)); p.lock() },
			arrives: 1, event: []string{"in-doubt", "level", "WARN", "owner", fmt.Sprint(deadOwner)},
		},
		"agent died between tag and diagnostic": {
			plant:   func(p *planted) { p.final(workspec.TagFailed) },
			reports: 1, event: []string{"report", "kind", "failed"},
		},
		"report recorded, not submitted": {
			plant: func(p *planted) {
				p.report(prepared)
				text := "errormsg\nchannel error\nto <bob@mta.example>\nenv-end\nSubject: prepared\n\n"
				write(p.T, path(p.s, "public/"+prepared), fmt.Sprintf("comment octets %016d\n%s", len(text)+32, text))
				assert.Must(p.T, os.Chmod(path(p.s, "public/"+prepared), 0o600))
			},
			reports: 1, event: []string{"recovered", "action", "report", "file", prepared},
		},
		"report submitted, not marked": {
			plant: func(p *planted) { p.report(prepared) },
		},
		"report prepared, not recorded": {
			plant: func(p *planted) {
				write(p.T, path(p.s, "public/"+prepared), "comment oct")
				assert.Must(p.T, os.Chmod(path(p.s, "public/"+prepared), 0o600))
			},
			arrives: 1, event: []string{"recovered", "action", postoffice.Swept, "name", "public/" + prepared},
		},
		"torn last line": {
			plant:   func(p *planted) { p.append([]byte("h 17952315490")) },
			arrives: 1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPlanted(t)
			tt.plant(p)
			begin(t, p.s)
			if tt.event != nil {
				event(t, p.s, tt.event[0], tt.event[1:]...)
			}
			if tt.arrives > 0 {
				assert.Must(t, p.sink.Wait(tt.arrives, patience))
			}
			if tt.reports > 0 {
				awaitMail(t, p.s, "bob", tt.reports)
			}
			await(t, p.s, "end of the message", func() (bool, error) {
				left, err := p.s.Left()
				return strings.Join(left, " ") == strings.Join(tt.left, " "), err
			})
			assert.Equal(t, len(p.sink.Messages()), tt.arrives)
			mail, err := suite.Mail(p.s.Maildir("bob"))
			if err != nil || len(mail) != tt.reports {
				t.Errorf("%d reports, %v, want %d", len(mail), err, tt.reports)
			}
		})
	}
}
