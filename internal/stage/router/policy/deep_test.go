package policy

import (
	"context"
	"testing"
)

// Lists in lists as deep as the steps allow are frozen and thrown away without harm: the
// interpreter goes through them by recursion.
func TestDeepValuesOfTheTopLevelAreHarmless(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector makes it slow")
	}
	d := newDesk(t, map[string]string{File: `
def lists():
    x = []
    for i in range(120000): x = [x]
    return x
def closures():
    x = lambda: 0
    for i in range(60000): x = (lambda y: lambda: y)(x)
    return x
L = lists()
C = closures()
def message(m):
    return defer(type(L) + str(len(L)) + type(C))
`})
	d.open(t)
	got, err := d.session(t, message()).Message(context.Background())
	if err != nil || got.Fate.Text != "list1function" {
		t.Errorf("got %q, %v", got.Fate.Text, err)
	}
}
