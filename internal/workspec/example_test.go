package workspec_test

import (
	"bytes"
	"fmt"

	"zmailer/internal/workspec"
)

// A router writes a specification; an agent marks a recipient as delivered, in place.
func Example() {
	var file bytes.Buffer
	w := workspec.NewWriter(&file)
	w.Preamble(&workspec.Spec{Message: "4711-12", BodyOffset: 98})
	w.Group(workspec.Sender{Channel: "local", Host: "-", Address: "a@example.org", Privilege: "1"},
		[]workspec.Recipient{{Channel: "smtp", Host: "b.example", Address: "b@b.example", Privilege: "65534"}},
		[]byte("Subject: x\n"))
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	for range 2 {
		spec, err := workspec.Parse(file.Bytes())
		if err != nil {
			fmt.Println(err)
			return
		}
		r := spec.Groups[0].Recipients[0]
		fmt.Printf("%s: tag %q, complete %v\n", r.Address, r.Tag, spec.Complete)
		copy(file.Bytes()[workspec.TagOffset(r.Offset):], workspec.TagBytes(spec.Format, workspec.TagOK))
	}
	// Output:
	// b@b.example: tag ' ', complete true
	// b@b.example: tag '+', complete true
}
