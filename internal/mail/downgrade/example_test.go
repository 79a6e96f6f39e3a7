package downgrade_test

import (
	"fmt"
	"io"
	"strings"

	"zmailer/internal/mail/downgrade"
)

// A server without 8BITMIME gets the same text as quoted-printable.
func Example() {
	header := "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n"
	body := "\nGrüße aus Köln\n" // begins with the empty line
	plan, err := downgrade.Inspect([]byte(header), strings.NewReader(body), false)
	if err != nil {
		fmt.Println(err) // a *downgrade.Error: the message fails, another attempt does not help
		return
	}
	if plan.Changed() {
		converted, err := io.ReadAll(plan.Body(strings.NewReader(body)))
		fmt.Printf("%s%s%v\n", plan.Header, converted, err)
	}
	// Output:
	// MIME-Version: 1.0
	// Content-Type: text/plain; charset=utf-8
	// Content-Transfer-Encoding: quoted-printable
	//
	// Gr=C3=BC=C3=9Fe aus K=C3=B6ln
	// <nil>
}
