// Package assert has the comparisons that tests repeat:
//
//	assert.Must(t, os.Mkdir(dir, 0o700))
//	owner := assert.Get(office.Owners.Take("router"))(t)
//	assert.Equal(t, len(list), 2, "messages")
//
// Only tests import it. Nothing of it survives a test.
//
// Diagnostics: a failed comparison is reported at the line of its caller and the test goes
// on; Must and Get end it.
package assert

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Must ends the test at the first of the errors that is not nil. Not for other goroutines than
// the test's.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Get returns a function that returns the value, or ends the test with the error.
func Get[T any](value T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(t, err)
		return value
	}
}

// NoError reports an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Equal reports two values that differ; what and its arguments say of what.
func Equal[T comparable](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", fmt.Sprintf(what, args...), show(got), show(want))
	}
}

// Same is Equal for values of any type; it reports how they differ.
func Same[T any](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("%s, got - want +:\n%.4000s", fmt.Sprintf(what, args...), diff)
	}
}

func show(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%+v", v)
}
