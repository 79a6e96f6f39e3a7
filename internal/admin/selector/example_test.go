package selector_test

import (
	"fmt"
	"time"

	"zmailer/internal/admin/selector"
)

func ExampleParse() {
	s, err := selector.Parse("from *@shop.example and (host a or host b) and not older 3d")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s)
	fmt.Println(s.Match(&selector.Facts{From: "news@shop.example", To: "bob@b.example", Channel: "smtp", Host: "b", Age: time.Hour}))
	fmt.Println(s.Match(&selector.Facts{From: "news@shop.example", To: "bob@b.example", Channel: "smtp", Host: "c", Age: time.Hour}))
	// Output:
	// from *@shop.example and (host a or host b) and not older 3d
	// true
	// false
}
