package top

import "strings"

// History is the last values of something that is shown as a line.
type History struct{ values []float64 }

// kept is how many values a History has at most.
const kept = 240

// Add takes the newest value.
func (h *History) Add(v float64) {
	if h.values = append(h.values, v); len(h.values) > kept {
		h.values = append(h.values[:0], h.values[len(h.values)-kept:]...)
	}
}

// Most returns the largest of the last n values.
func (h *History) Most(n int) (most float64) {
	for _, v := range h.last(n) {
		most = max(most, v)
	}
	return most
}

func (h *History) last(n int) []float64 { return h.values[max(len(h.values)-n, 0):] }

// Spark returns a line of n characters with the newest value at its right: the largest is a
// full block, nothing is a blank, and every value above zero can be seen.
func (h *History) Spark(n int) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	list, most := h.last(n), h.Most(n)
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", n-len(list)))
	for _, v := range list {
		if v <= 0 || most <= 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(blocks[min(int(v/most*float64(len(blocks))), len(blocks)-1)])
	}
	return b.String()
}
