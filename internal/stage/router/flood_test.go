package router

import (
	"context"
	"testing"

	"zmailer/internal/disk/watch"
)

// M9, and the trap "new mail that starves old": the router is never without a message
// that it was just told of; one that it was not told of is routed by the periodic look.
func TestFloodOfHintsStarvesNoOldMessage(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	hints := newScripted()
	ended, flooded, begun := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		newDispatcher(o.r, hints).run(ctx)
	}()
	go func() {
		defer close(flooded)
		for n := 0; ; n++ {
			h := watch.Hint{Dir: "router", Name: "123456789"} // another router has it
			if n%100 == 99 {
				h = watch.Hint{} // the period
			}
			select {
			case hints.c <- h:
			case <-ctx.Done():
				return
			}
			if n == 1000 {
				close(begun)
			}
		}
	}()
	<-begun
	o.submit(plain("old@example.net"))
	o.log.Await(t, "msg=routed")
	cancel()
	<-ended
	<-flooded
	o.logged(0, "level=ERROR")
}
