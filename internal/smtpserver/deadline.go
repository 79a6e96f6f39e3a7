package smtpserver

import "time"

// A deadline costs more than a look at the clock, so it is set anew only when a
// sixteenth of it has gone by: a client has between fifteen sixteenths of the time
// and all of it.
const deadlineSlack = 16

// armRead sets the time limit of the next read. false: the server is stopping and
// this connection has no transaction to finish.
func (w *wire) armRead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping && !w.busy {
		return false
	}
	limit := w.srv.ReadTimeout
	if until := time.Now().Add(limit); until.Sub(w.readUntil) > limit/deadlineSlack {
		w.readUntil = until
		// It fails on a closed connection; so does the read that follows.
		_ = w.Conn.SetReadDeadline(until)
	}
	return true
}

// armWrite sets the time limit of the next write.
func (w *wire) armWrite() {
	limit := w.srv.WriteTimeout
	if until := time.Now().Add(limit); until.Sub(w.writeUntil) > limit/deadlineSlack {
		w.writeUntil = until
		// As in armRead.
		_ = w.Conn.SetWriteDeadline(until)
	}
}

// begin opens a transaction: until it is finished a stop leaves the connection
// alone. false: the stop came first.
func (w *wire) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = !w.stopping
	return w.busy
}

// finish closes the transaction.
func (w *wire) finish() {
	w.mu.Lock()
	w.busy = false
	w.mu.Unlock()
}

// stop ends the connection when it has no transaction: at once if it is waiting for
// a command, else before it would wait for the next.
func (w *wire) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	w.readUntil = time.Time{}
	if !w.busy {
		// Wakes the reader, which sees why. It fails only where nobody reads.
		_ = w.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

func (w *wire) toldToStop() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopping && !w.busy
}

// cut closes the connection under whoever uses it. Its own goroutine does the rest.
func (w *wire) cut() { _ = w.Conn.Close() }
