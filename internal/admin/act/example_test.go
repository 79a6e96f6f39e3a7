package act_test

import (
	"context"
	"fmt"
	"io"
	"os"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/setup"
	"zmailer/internal/postoffice"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// An operator freezes the mail of one sender, and undoes that.
func Example() {
	dir := must(os.MkdirTemp("", "act"))
	defer os.RemoveAll(dir)
	if err := setup.Make(dir); err != nil {
		panic(err)
	}
	po := must(postoffice.OpenDir(dir, 0, false))
	draft := must(po.Submissions.NewDraft("example"))
	must(io.WriteString(draft, "from <a@example.org>\nto <b@example.net>\nenv-end\nSubject: x\n\nhi\n"))
	must(draft.Commit())

	ctx := context.Background()
	sum := must(act.Do(ctx, po, act.Request{Verb: act.Freeze, Select: must(selector.Parse("from *@example.org")),
		Who: "ann", Reason: "flood"}))
	fmt.Println("frozen:", sum.Messages, "message,", sum.Recipients, "recipient")
	undone := must((&act.Undoer{PostOffice: po, Who: "ann"}).Operation(ctx, sum.Operation))
	fmt.Println("thawed:", undone.Messages, "message")
	// Output:
	// frozen: 1 message, 1 recipient
	// thawed: 1 message
}
