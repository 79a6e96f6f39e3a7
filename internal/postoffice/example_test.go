package postoffice_test

import (
	"fmt"
	"io"
	"path"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A message goes through a postoffice: accepted, claimed by a router, handed over to the
// scheduler, finished.
func Example() {
	disk := cutfs.New() // durable.NewOS opens a real directory
	if err := postoffice.Init(disk); err != nil {
		panic(err)
	}
	p := must(postoffice.Open(postoffice.Config{FS: disk}))
	draft := must(p.Submissions.NewDraft("example"))
	must(io.WriteString(draft, "from <a@example.org>\nto <b@example.net>\nenv-end\nSubject: x\n\nhi\n"))
	accepted := must(draft.Commit())
	fmt.Println("accepted in", path.Dir(accepted.Name))

	claim := must(p.Router.Claim(must(p.Owners.Take("router")), accepted.Name))
	work := must(claim.CreateWork())
	must(io.WriteString(work, "the specification, see package workspec\n"))
	fmt.Println("work file closed:", work.Close() == nil)
	name := must(claim.HandOver())
	fmt.Println("finished:", p.Queue.Finish(name) == nil, must(p.Queue.IsGone(name)))
	// Output:
	// accepted in router
	// work file closed: true
	// finished: true true
}
