package backoff_test

import (
	"fmt"
	"time"

	"zmailer/internal/run/backoff"
)

func ExampleNext() {
	var wait time.Duration
	for range 5 {
		wait = backoff.Next(wait, time.Second, 10*time.Second)
		fmt.Print(wait, " ")
	}
	// Output: 1s 2s 4s 8s 10s
}
