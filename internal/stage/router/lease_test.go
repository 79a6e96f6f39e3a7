package router

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/lease/leasetest"
)

// C4: the deadline passes before each of the router's looks at it, and so before each of its
// renames and removals. The message is in one place then, and the router of the next machine hands it
// over once.
func TestC4DeadlineAroundTheHandOver(t *testing.T) {
	places := map[string]int{}
	for looks := int64(0); ; looks++ {
		o := newOffice(t, nil)
		assert.Must(t, o.r.Close())
		a := o.submit(plain("bond@example.org"))
		c := o.config()
		c.Once, c.Lease = true, leasetest.New(t).Expiring(looks)
		err := run(context.Background(), c)
		if err != nil && !errors.Is(err, lease.ErrNoLease) {
			t.Errorf("%d looks: got %v, want ErrNoLease", looks, err)
		}
		at := ""
		for _, dir := range []string{"router", "queue", "transport"} {
			for _, name := range o.names(dir) {
				if strings.HasPrefix(name, "..") {
					continue // the specification before it is handed over
				}
				at += dir + " "
			}
		}
		places[at]++
		switch at {
		case "router ", "queue ", "queue transport ":
		default:
			t.Errorf("%d looks: files in %s", looks, at)
		}
		c.Lease = nil
		assert.Must(t, run(context.Background(), c))
		// A specification that the first one has begun is left to a later look.
		left := slices.DeleteFunc(o.names("router"), func(name string) bool { return strings.HasPrefix(name, "..") })
		if got := o.names("transport"); len(got) != 1 || len(o.names("queue")) != 1 || len(left) != 0 {
			t.Errorf("%d looks: after the next router: queue %q, transport %q, router %q", looks, o.names("queue"), got, left)
		}
		if info, err := os.Stat(filepath.Join(o.dir, "queue", o.names("queue")[0])); err != nil || info.Size() < a.Size {
			t.Errorf("%d looks: message: %v, %v", looks, info, err)
		}
		if err == nil && at == "queue transport " {
			break
		}
		if looks > 500 {
			t.Fatal("the router needs more than 500 looks for a message")
		}
	}
	t.Logf("where the message was: %v", places)
	if len(places) != 3 {
		t.Errorf("the deadline did not pass at all points: %v", places)
	}
}
