package sim

import (
	"slices"
	"time"
)

// Waits are how long deliveries waited, ascending.
type Waits []time.Duration

// Waits returns the waits of a group; of all deliveries if it is "".
func (w *World) Waits(group string) Waits {
	var list Waits
	for _, l := range w.Deliveries {
		if group == "" || l.Group == group {
			list = append(list, l.Wait(w.now))
		}
	}
	slices.Sort(list)
	return list
}

// At returns the wait that a share of the deliveries does not exceed: 0.5 is the median.
func (s Waits) At(share float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return s[min(int(share*float64(len(s))), len(s)-1)]
}

// Max returns the longest wait.
func (s Waits) Max() time.Duration { return s.At(1) }

// Count counts the deliveries of a group with an outcome; of all groups if it is "".
func (w *World) Count(group string, o Outcome) int {
	n := 0
	for _, l := range w.Deliveries {
		if (group == "" || l.Group == group) && l.Outcome == o {
			n++
		}
	}
	return n
}

// Jain is Jain's index of fairness of what each got: 1 if all got the same, 1/n if one
// got everything (R. Jain, D. Chiu, W. Hawe, 1984).
func Jain(shares []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}
