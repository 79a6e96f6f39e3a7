package postoffice_test

import (
	"fmt"
	"io"
	"path"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
)

// A user's program leaves a message in public/, where a router picks it up. What was not
// committed is no message.
func ExampleSubmissions() {
	disk := cutfs.New() // durable.NewOS opens a real directory
	if err := postoffice.Init(disk); err != nil {
		panic(err)
	}
	user := must(postoffice.Open(postoffice.Config{FS: disk, Submits: true}))
	draft := must(user.Submissions.NewDraft("example"))
	must(io.WriteString(draft, "to <b@example.net>\nenv-end\n\nhi\n"))
	fmt.Println("written:", len(must(user.Submissions.List())))
	left := must(draft.Commit())
	fmt.Println("committed:", len(must(user.Submissions.List())), "in", path.Dir(left.Name))

	router := must(postoffice.Open(postoffice.Config{FS: disk}))
	for _, s := range must(router.Submissions.List()) {
		taken := must(router.Submissions.PickUp(s.Name))
		fmt.Println("picked up:", taken.From == left.Name, "to", path.Dir(taken.Name))
	}
	// Output:
	// written: 0
	// committed: 1 in public
	// picked up: true to router
}
