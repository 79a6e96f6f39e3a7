package address_test

import (
	"fmt"

	"zmailer/internal/mail/address"
)

func Example() {
	m, err := address.Parse("<Ann+lists@Example.ORG>")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m)
	fmt.Println(m.Key()) // to compare: the case of a domain does not count
	base, tag, _ := m.SplitTag("+")
	fmt.Println(base, tag)
	_, err = address.Parse("ann@example..org")
	fmt.Println("refused:", err != nil)
	// Output:
	// Ann+lists@Example.ORG
	// Ann+lists@example.org
	// Ann@Example.ORG lists
	// refused: true
}

// A header field is read element by element: one bad address does not hide the others.
func ExampleParseList() {
	for _, a := range address.ParseList("Ann Lee <ann@example.org>, broken@@x, (team) bob@example.net") {
		if a.Err == nil {
			fmt.Println(a.Mailbox)
		} else {
			fmt.Println("not an address:", a.Text)
		}
	}
	// Output:
	// ann@example.org
	// not an address: broken@@x
	// bob@example.net
}
