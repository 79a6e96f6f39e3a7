package human

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// Span writes a duration in short form: "4s", "12m", "1h20m", "3d4h".
func Span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	case d < 24*time.Hour:
		return two(int(d/time.Hour), "h", int(d%time.Hour/time.Minute), "m")
	}
	days := int(d / (24 * time.Hour))
	return two(days, "d", int(d%(24*time.Hour)/time.Hour), "h")
}

func two(a int, unitA string, b int, unitB string) string {
	if b == 0 {
		return strconv.Itoa(a) + unitA
	}
	return strconv.Itoa(a) + unitA + strconv.Itoa(b) + unitB
}

// Size writes a number of bytes in short form: "812", "4.1k", "20M".
func Size(n int64) string {
	units := "kMGTP"
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	v := float64(n)
	i := -1
	for v >= 999.5 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if v < 9.95 {
		return fmt.Sprintf("%.1f%c", v, units[i])
	}
	return fmt.Sprintf("%.0f%c", v, units[i])
}

// Count writes a number with its noun: "1 message", "2 messages".
func Count(n int, word string) string {
	return strconv.Itoa(n) + " " + Plural(n, word, word+"s")
}

// Often writes how many times something happened: "once", "3 times".
func Often(n int) string {
	if n == 1 {
		return "once"
	}
	return strconv.Itoa(n) + " times"
}

// InRow is Often for repetitions without a success in between.
func InRow(n int) string {
	if n <= 1 {
		return Often(n)
	}
	return Often(n) + " in a row"
}

// Cut shortens a text to n characters, with three dots at its end.
func Cut(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n-3, 0)]) + "..."
}

// TimeFormat is the layout of times of the day.
const TimeFormat = "2006-01-02 15:04:05"

// Plural returns one for the number 1, else many.
func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
