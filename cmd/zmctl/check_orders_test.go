package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/workspec"
)

// What persons have wait is no problem, however old it is: check tells of none, and says
// in words what the recipients wait for.
func TestCheckExplainsOrders(t *testing.T) {
	tests := map[string]struct {
		give  func(operations.Request, string) (operations.Result, error)
		words []string
		old   bool // too old, all the same
	}{
		"none": {nil, []string{"first attempt"}, true},
		"frozen": {func(q operations.Request, n string) (operations.Result, error) {
			return operations.Freeze(q, n, workspec.CausePerson)
		}, []string{"frozen by", "thaw"}, false},
		"frozen by expiry": {func(q operations.Request, n string) (operations.Result, error) {
			return operations.Freeze(q, n, workspec.CauseExpired)
		},
			[]string{"frozen (expired)", "zmctl thaw"}, false},
		"held": {func(q operations.Request, n string) (operations.Result, error) {
			return operations.Hold(q, n, time.Time{})
		}, []string{"held by", "released"}, false},
		"held, and then released": {func(q operations.Request, n string) (operations.Result, error) {
			if _, err := operations.Hold(q, n, time.Time{}); err != nil {
				return operations.Result{}, err
			}
			q.Now = time.Now()
			return operations.Release(q, n)
		}, []string{"first attempt"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t)
			_, file, _ := o.queue(t, "a@a.example.com")
			o.age(t, "queue/"+file, 100*time.Hour)
			info, err := o.Queue.StatMessage(file)
			if err != nil {
				t.Fatal(err)
			}
			if tt.give != nil {
				q := operations.Request{PostOffice: o.PostOffice, ID: postoffice.IDOf(info), Now: time.Now().Add(-99 * time.Hour), Who: "bob", Silent: true}
				if _, err := tt.give(q, file); err != nil {
					t.Fatal(err)
				}
			}
			found, _ := problems(t)
			if got := slices.Contains(found["transport/"+file], string(check.TooOld)); got != tt.old {
				t.Errorf("problems %q, want it too old: %v", found, tt.old)
			}
			f, _ := checked(t, "transport/"+file)
			for _, w := range tt.words {
				if !strings.Contains(f.Text, w) {
					t.Errorf("says %q, want %q in it", f.Text, w)
				}
			}
		})
	}
}

// A copy for rerouted recipients is explained while it is in public/, and called an orphan
// only when nothing names it for an hour, however old its message is.
func TestCheckExplainsCopies(t *testing.T) {
	o := newOffice(t)
	_, file, _ := o.queue(t, "a@a.example.com")
	o.age(t, "queue/"+file, 100*time.Hour)
	info, err := o.Queue.StatMessage(file)
	if err != nil {
		t.Fatal(err)
	}
	copied := ""
	q := operations.Request{PostOffice: o.PostOffice, ID: postoffice.IDOf(info), Now: time.Now(), Silent: true,
		Submit: func(name string, _ int) (postoffice.Accepted, error) {
			copied = "public/" + name
			return postoffice.Accepted{}, view.ErrMoved // as if it were killed now
		}}
	if _, err := operations.Reroute(q, file); err == nil {
		t.Fatal("rerouted")
	}
	if f, _ := checked(t, copied); f.Severity != "ok" || !strings.Contains(f.Text, "belongs to transport/"+file) {
		t.Errorf("got %+v", f)
	}
	if f, _ := checked(t, "transport/"+file); f.Severity == "error" {
		t.Errorf("got %+v", f)
	}
	must(t, os.Remove(o.path("transport/"+file)))
	if f, _ := checked(t, copied); f.Severity != "ok" || !strings.Contains(f.Text, "being written") && !strings.Contains(f.Text, "not complete") {
		t.Errorf("not named, and young: %+v", f)
	}
}
