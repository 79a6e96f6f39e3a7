// Package backoff computes waits between attempts that fail: each is twice as long as the one
// before, up to a limit. It owns nothing.
//
// Diagnostics: none.
package backoff

import "time"

// Next returns the wait after one of length last: first if last is 0, else twice as long, and
// at most longest.
func Next(last, first, longest time.Duration) time.Duration {
	return min(max(2*last, first), longest)
}
