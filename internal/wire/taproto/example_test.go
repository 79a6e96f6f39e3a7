package taproto_test

import (
	"fmt"

	"zmailer/internal/wire/taproto"
)

func Example() {
	job := taproto.Command{Kind: taproto.CommandJob, Job: taproto.Job{Name: "A/1234", Host: "mx.example"}}
	fmt.Printf("%q\n", taproto.AppendCommand(nil, job))
	line := taproto.ParseLine([]byte("1234/120\t\tok 250 taken"))
	fmt.Println(line.Answer.Number, line.Answer.Offset, line.Answer.Word, line.Answer.Text)
	// Output:
	// "A/1234\tmx.example\n"
	// 1234 120 ok 250 taken
}
