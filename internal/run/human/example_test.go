package human_test

import (
	"fmt"
	"time"

	"zmailer/internal/run/human"
)

// A line for an operator's terminal, with text that another host has sent.
func Example() {
	reply := "550 5.1.1 no\x1b[2J such user"
	fmt.Printf("%s, %s, waiting for %s\n", human.Count(1, "message"), human.Size(4200), human.Span(80*time.Minute))
	fmt.Println(human.Clean(reply))
	fmt.Println(human.Cut(human.Mask(reply), 13))
	// Output:
	// 1 message, 4.1k, waiting for 1h20m
	// 550 5.1.1 no\x1b[2J such user
	// 550 5.1.1 ...
}
