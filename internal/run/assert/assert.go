// Package assert has the comparisons that tests repeat:
//
//	assert.Must(t, os.Mkdir(dir, 0o700))
//	owner := assert.Get(office.Owners.Take("router"))(t)
//	assert.Equal(t, len(list), 2)
//	assert.Equal(t, list[0].Size, 100, "size of %s", list[0].Name)
//
// Only tests import it. Nothing of it survives a test.
//
// Diagnostics: a failed comparison is reported at the line of its caller and the test goes
// on; Must and Get end it.
package assert

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

// Equal reports two values that differ. what, a format and its arguments or one value, says
// of what they are.
func Equal[T comparable](t testing.TB, got, want T, what ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%sgot %s, want %s", about(what), show(got), show(want))
	}
}

// Same is Equal for values of any type; it reports how they differ. No elements are the same
// as nil.
func Same[T any](t testing.TB, got, want T, what ...any) {
	t.Helper()
	all := cmp.Exporter(func(reflect.Type) bool { return true })
	if diff := cmp.Diff(got, want, all, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%sgot - want +:\n%.4000s", about(what), diff)
	}
}

// Contains reports that a text does not have another in it.
func Contains(t testing.TB, got, want string, what ...any) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%sgot %q, want %q in it", about(what), got, want)
	}
}

func about(what []any) string {
	if len(what) == 0 {
		return ""
	}
	if format, ok := what[0].(string); ok && len(what) > 1 {
		return fmt.Sprintf(format, what[1:]...) + ": "
	}
	return fmt.Sprint(what...) + ": "
}

func show(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%+v", v)
}
