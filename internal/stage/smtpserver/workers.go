package smtpserver

// workers are the goroutines that serve connections. One that has served a connection waits for
// the next: its stack has grown to what a transaction needs, which a new one does by being copied
// several times (docs/performance.md).
type workers struct {
	next  chan *connection
	spare chan struct{} // one for each that waits, or is about to
}

// mostSpare is how many wait at most. A stack is 32 kB or less.
const mostSpare = 32

func newWorkers() workers {
	return workers{next: make(chan *connection), spare: make(chan struct{}, mostSpare)}
}

// serve has a connection served. done ends those that wait.
func (w *workers) serve(c *connection, done <-chan struct{}) {
	select {
	case w.next <- c:
	default:
		go w.work(c, done)
	}
}

// work serves connections until enough others wait for the next one.
func (w *workers) work(c *connection, done <-chan struct{}) {
	for {
		c.Serve()
		select {
		case w.spare <- struct{}{}:
		default:
			return
		}
		select {
		case c = <-w.next:
			<-w.spare
		case <-done:
			return
		}
	}
}
