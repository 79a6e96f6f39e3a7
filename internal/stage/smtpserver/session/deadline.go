package session

import "time"

// A deadline costs more than a look at the clock, so it is set anew only when a
// sixteenth of it has gone by: a client has between fifteen sixteenths of the time
// and all of it.
const deadlineSlack = 16

// armRead sets the time limit of the next read. A command has to be there as a whole
// in the time that the client had for its first byte. Content has the same time, and
// wins some with each byte; see waited. Only the time counts in which the client is
// waited for, not that which filters or the disk take. false: the server is stopping
// and this connection has no transaction to finish.
func (w *Conn) armRead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping && !w.busy {
		return false
	}
	w.armed = time.Now()
	if until := w.armed.Add(w.left); until.Sub(w.readUntil) > w.server.ReadTimeout/deadlineSlack {
		w.readUntil = until
		// It fails on a closed connection; so does the read that follows.
		_ = w.Conn.SetReadDeadline(until)
	}
	return true
}

// waited subtracts the time that n bytes were waited for from the time left. Content adds
// the time in which a client as slow as MinRate sends it, up to the whole limit. So a client
// that drips bytes has no more than the limit, and one that is slow now and then goes on.
func (w *Conn) waited(n int) {
	w.left = max(0, w.left-time.Since(w.armed))
	switch rate := w.server.MinRate; {
	case w.inLine:
	case rate <= 0:
		w.left = w.server.ReadTimeout
	default:
		w.left = min(w.left+time.Duration(n)*time.Second/time.Duration(rate), w.server.ReadTimeout)
	}
}

// armWrite sets the time limit of the next write.
func (w *Conn) armWrite() {
	limit := w.server.WriteTimeout
	if until := time.Now().Add(limit); until.Sub(w.writeUntil) > limit/deadlineSlack {
		w.writeUntil = until
		// As in armRead.
		_ = w.Conn.SetWriteDeadline(until)
	}
}

// limit gives all reads and writes up to the next armRead and armWrite one time limit.
// false: the server is stopping.
func (w *Conn) limit(d time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping {
		return false
	}
	// As in armRead.
	_ = w.Conn.SetDeadline(time.Now().Add(d))
	w.readUntil, w.writeUntil = time.Time{}, time.Time{}
	return true
}

// begin opens a transaction: until it is finished a stop leaves the connection
// alone. false: the stop came first.
func (w *Conn) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = !w.stopping
	return w.busy
}

// finish closes the transaction.
func (w *Conn) finish() {
	w.mu.Lock()
	w.busy = false
	w.mu.Unlock()
}

// Stop ends the connection when it has no transaction: at once if it is waiting for
// a command, else before it would wait for the next.
func (w *Conn) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	w.readUntil = time.Time{}
	if !w.busy {
		// It wakes the reader, which sees why. It fails only where no goroutine reads.
		_ = w.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

func (w *Conn) isStopping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopping && !w.busy
}

// Cut closes the connection at once. Its own goroutine does the rest.
func (w *Conn) Cut() { _ = w.Conn.Close() }
