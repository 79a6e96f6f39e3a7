package agent_test

import (
	"context"
	"fmt"
	"io"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/agent"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// printer is a transport agent's own part: it delivers to standard output.
type printer struct{}

func (printer) Deliver(_ context.Context, d *agent.Delivery) {
	if err := d.Sent(); err != nil { // after a crash here, the next agent knows of the doubt
		return // what has no result is deferred
	}
	body, err := io.ReadAll(d.Body())
	for _, r := range d.Recipients {
		if err != nil {
			continue
		}
		fmt.Printf("%s: %q\n", r.Address, body)
		d.Done(r, agent.Result{Outcome: status.Delivered, Code: status.OK, Reply: "250 printed"})
	}
}

func Example() {
	po := queue("hello\n")
	a := &agent.Agent{PostOffice: po, Owner: must(po.Owners.Take("print")), Name: "print"}
	defer a.Release()
	must(0, po.Queue.List(func(name string) error {
		for _, line := range a.Do(context.Background(), taproto.Job{Name: name, Host: "paper"}, printer{}) {
			fmt.Println(line.Answer.Word, line.Answer.Text)
		}
		return nil
	}))
	// Output:
	// b@example.net: "\nhello\n"
	// ok3 250 printed
}

// queue makes a postoffice in which a router has handed over one message.
func queue(text string) *postoffice.PostOffice {
	disk := cutfs.New()
	must(0, postoffice.Init(disk))
	po := must(postoffice.Open(postoffice.Config{FS: disk}))
	draft := must(po.Submissions.NewDraft("example"))
	must(io.WriteString(draft, "from <a@example.org>\nto <b@example.net>\nenv-end\nSubject: x\n\n"+text))
	accepted := must(draft.Commit())
	claim := must(po.Router.Claim(must(po.Owners.Take("router")), accepted.Name))
	m := must(envelope.Read(claim.File))
	work := must(claim.CreateWork())
	w := workspec.NewWriter(work)
	w.Preamble(&workspec.Spec{Message: claim.Name(), BodyOffset: m.BodyOffset})
	w.Group(workspec.Sender{Channel: "smtp", Host: "-", Address: "a@example.org", Privilege: "65534"},
		[]workspec.Recipient{{Channel: "print", Host: "paper", Address: "b@example.net", Privilege: "65534"}},
		m.Header)
	must(0, w.Close())
	must(0, work.Close())
	must(claim.HandOver())
	return po
}
