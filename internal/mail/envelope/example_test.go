package envelope_test

import (
	"fmt"
	"strings"

	"zmailer/internal/mail/envelope"
)

// A message file is read, a recipient is added, and the new envelope is written.
func Example() {
	m, err := envelope.Read(strings.NewReader("from <ann@example.org>\nto <bob@example.net>\nenv-end\n" +
		"Subject: lunch\n\nAt noon?\n"))
	if err != nil {
		fmt.Println(err) // an *envelope.SyntaxError names the line
		return
	}
	for _, f := range envelope.Fields(m.Header) {
		fmt.Printf("%s is %q\n", f.Name, f.Value())
	}
	m.Recipients = append(m.Recipients, envelope.Recipient{Address: "eve@example.net", DSN: "NOTIFY=NEVER"})
	lines, err := envelope.Append(nil, &m.Envelope)
	fmt.Printf("%s%v\n", lines, err)
	// Output:
	// Subject is "lunch"
	// from <ann@example.org>
	// to <bob@example.net>
	// todsn NOTIFY=NEVER
	// to <eve@example.net>
	// env-end
	// <nil>
}
