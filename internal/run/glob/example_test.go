package glob_test

import (
	"fmt"

	"zmailer/internal/run/glob"
)

// A pattern of the configuration is checked and expanded once, then matched often.
func Example() {
	const pattern = "*.{example,test}"
	if err := glob.Check(pattern); err != nil {
		fmt.Println(err)
		return
	}
	patterns := glob.Expand(pattern)
	fmt.Println(patterns)
	fmt.Println(glob.Any(patterns, "mx1.test"), glob.Any(patterns, "mx1.org"))
	fmt.Println("bad pattern:", glob.Check("[a-") != nil)
	// Output:
	// [*.example *.test]
	// true false
	// bad pattern: true
}
