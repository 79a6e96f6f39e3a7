package view_test

import (
	"context"
	"fmt"
	"io"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
)

// A program lists the mail for one domain.
func Example() {
	disk := cutfs.New() // view.OpenPostOffice opens the one of zmailer.conf
	if err := postoffice.Init(disk); err != nil {
		fmt.Println(err)
		return
	}
	po, err := postoffice.Open(postoffice.Config{FS: disk})
	if err != nil {
		fmt.Println(err)
		return
	}
	draft, err := po.Submissions.NewDraft("example")
	if err != nil {
		fmt.Println(err)
		return
	}
	io.WriteString(draft, "from <a@example.org>\nto <b@example.net>\nto <c@far.example>\nenv-end\nSubject: x\n\nhi\n")
	if _, err := draft.Commit(); err != nil {
		fmt.Println(err)
		return
	}
	sel, err := selector.Parse("to *@example.net")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = view.New(po, time.Now()).Each(context.Background(), sel, func(m *view.Message) error {
		fmt.Println(m.State, "from", m.Sender)
		for _, r := range m.Recipients {
			fmt.Println(r.Address, r.State)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// accepted from a@example.org
	// b@example.net to route
	// <nil>
}
