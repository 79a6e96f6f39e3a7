package events_test

import (
	"fmt"
	"log/slog"

	"zmailer/internal/stage/scheduler/events"
)

// A listener gets what was emitted since it listens; the log gets it in any case.
func Example() {
	stream := &events.Stream{}
	emitter := events.Emitter{Log: slog.New(slog.DiscardHandler), Stream: stream}
	emitter.Emit(events.Routed, "id", "S1A1") // no one listens

	listener := stream.Listen()
	defer listener.Leave()
	emitter.Emit(events.Delivered, "id", "S1A1", "rcpt", "joe@example.org")
	emitter.Emit(events.Finished, "id", "S1A1")
	for _, e := range listener.Take() {
		fmt.Println(e.Name, e.Attrs)
	}
	// Output:
	// delivered [id=S1A1 rcpt=joe@example.org]
	// finished [id=S1A1]
}
