package router

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// lists makes an office with lists.
func lists(t testing.TB, files map[string]string) *office {
	t.Helper()
	return newOffice(t, nil, func(c *Config) { writeLists(t, c.Rules.Dir, files) })
}

func writeLists(t testing.TB, conf string, files map[string]string) {
	t.Helper()
	dir := filepath.Join(conf, "lists")
	assert.Must(t, os.MkdirAll(dir, 0o755))
	for name, text := range files {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// people returns a list's file of n members in their order, none of which stands where
// sorting would put it.
func people(n int, name string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d@h%d.example.net\n", name, n-i, (i*7)%10)
	}
	return b.String()
}

// senders returns the groups of a specification: sender, VERP, number of recipients.
func senders(m *routed) string {
	var list []string
	for _, g := range m.spec.Groups {
		list = append(list, fmt.Sprintf("%s%s %d", g.Sender.Address, g.Sender.VERP, len(g.Recipients)))
	}
	return strings.Join(list, ", ")
}

func sortedByHost(list []workspec.Recipient) bool {
	return slices.IsSortedFunc(list, func(a, b workspec.Recipient) int {
		return cmp.Or(cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Host, b.Host))
	})
}

// What stands in memory is sorted, what does not is in the order of the list; each
// recipient is there once, also one of two lists.
func TestLargeListsAreWrittenAsTheyAreRead(t *testing.T) {
	o := lists(t, map[string]string{
		"small": people(1000, "s"), "other": people(1000, "s") + "only@other.example.net\n",
		"large": people(2500, "l") + "l7@H1.EXAMPLE.net\nL7@h1.example.net\n" + people(10, "s"), "news": "#!verp\n" + people(700, "l") + people(700, "n"),
	})
	small := o.one("from <q@example.net>\nto <small@example.org>\nto <other@example.org>\nto <q@example.com>\nenv-end\nSubject: x\n\nbody\n")
	if got, want := senders(&small), "owner-small@example.org 1000, owner-other@example.org 1, q@example.net 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, g := range small.spec.Groups {
		if !sortedByHost(g.Recipients) {
			t.Errorf("%s: not sorted", g.Sender.Address)
		}
	}
	m := o.one("from <q@example.net>\nto <bond>\nto <large@example.org>\nto <news@example.org>\nenv-end\nSubject: x\n\nbody\n")
	// A domain's case makes no difference, a local part's does: 2500, one and ten.
	if got, want := senders(&m), "q@example.net 1, owner-large@example.org 2511, owner-news@example.org+ 700"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	large, late := m.spec.Groups[1].Recipients, m.spec.Groups[2].Recipients
	if known := maxSorted; !sortedByHost(large[:known]) || sortedByHost(large[:known+3]) {
		t.Errorf("the first %d are not what is sorted", known)
	}
	var order strings.Builder
	for _, r := range late {
		fmt.Fprintln(&order, r.Address)
	}
	if order.String() != people(700, "n") {
		t.Error("the members of the last list are not in the order of the file")
	}
	assert.Equal(t, strings.Join(m.spec.ErrorTo, " "), "q@example.net owner-large@example.org owner-news@example.org", "e lines")
	if !workspec.Complete(m.file) || bytes.Count(m.file, []byte("\nSubject: x\n")) != 1 {
		t.Error("not complete, or with several header blocks")
	}
}

// What is known only after thousands were written is not worse than at once: the message
// waits, whole, and no member gets it.
func TestTroubleInTheMiddleOfALargeListDefersTheMessage(t *testing.T) {
	o := lists(t, map[string]string{"large": people(3000, "l") + ":include:/no/such/file\n" + people(10, "x")})
	a := o.submit(plain("large@example.org"))
	assert.Get(o.r.RouteAll())(t)
	if got := handedOver(t, o.po); len(got) != 0 {
		t.Errorf("%d messages were handed over", len(got))
	}
	var deferred []string
	for _, name := range o.names("deferred") {
		if strings.HasPrefix(name, fmt.Sprint(a.ID.Ino)) {
			deferred = append(deferred, name)
		}
	}
	if len(deferred) != 1 {
		t.Errorf("deferred/: %q\n%s", o.names("deferred"), &o.log)
	}
	for _, name := range o.names("router") {
		if strings.HasPrefix(name, "..") {
			t.Errorf("work file %s is left", name)
		}
	}
	// Mended, it goes to everybody once.
	writeLists(t, o.conf, map[string]string{"large": people(3000, "l")})
	assert.Must(t, os.Rename(filepath.Join(o.dir, "deferred", deferred[0]), filepath.Join(o.dir, "router", fmt.Sprint(a.ID.Ino))))
	if m := o.route(); len(m) != 1 || len(m[0].recipients()) != 3000 {
		t.Errorf("after the list was mended: %d messages", len(m))
	}
}

// A disk that is full after the first 64 kB leaves the message in router/ and nothing
// else, as one that was full before.
func TestFullDiskInTheMiddleOfALargeList(t *testing.T) {
	o := lists(t, map[string]string{"large": people(5000, "l")})
	o.submit(plain("large@example.org"))
	writes := 0
	full := o.disk.On(faultfs.Write, "router/..*", faultfs.Always, func(string) error {
		if writes++; writes > 1 {
			return unix.ENOSPC
		}
		return nil
	})
	if _, err := o.r.RouteAll(); !errors.Is(err, unix.ENOSPC) || writes != 2 {
		t.Fatalf("got %v after %d writes, want one that fails and none behind it", err, writes)
	}
	o.expect("full", map[string]int{"router": 1})
	full.End()
	if m := o.route(); len(m) != 1 || len(m[0].recipients()) != 5000 {
		t.Errorf("with room again: %d messages", len(m))
	}
}
