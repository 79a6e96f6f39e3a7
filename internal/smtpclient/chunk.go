package smtpclient

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"
)

// Small is how large a message may be that others may be beside on the way.
const Small = maxChunk

// maxChunk is how large a stored message may be to go with its commands, in one BDAT:
// before it is known who will be accepted. Larger ones wait for that.
const maxChunk = 64 << 10

// chunkBuffer holds the body of a message that goes by BDAT.
type chunkBuffer struct {
	b []byte
	n int
}

var chunkBuffers = sync.Pool{New: func() any { return &chunkBuffer{b: make([]byte, maxChunk+1)} }}

// load takes a small body into memory if the message can go in one piece with its
// commands (RFC 3030 §2): nothing in it has to wait for an answer then.
func (t *transaction) load() error {
	c := t.c
	if !c.ext.Chunking || !c.ext.Pipelining || c.cfg.LMTP || c.cfg.Window == 1 ||
		t.m.Size <= 0 || t.m.Size > maxChunk || len(t.m.Header) > maxChunk || len(t.to)*100 > chunk {
		return nil
	}
	b := chunkBuffers.Get().(*chunkBuffer)
	b.n = 0
	if t.m.Body == nil {
		t.chunk = b
		return nil
	}
	var err error
	b.n, err = io.ReadFull(t.m.Body, b.b)
	switch err {
	case io.EOF, io.ErrUnexpectedEOF:
		t.chunk = b
		t.size = int64(len(t.m.Header) + b.n)
		return nil
	case nil: // it is larger than was said
		t.m.Body = io.MultiReader(bytes.NewReader(bytes.Clone(b.b)), t.m.Body)
	default:
		err = fmt.Errorf("read the message: %w", err)
	}
	chunkBuffers.Put(b)
	return err
}

func (t *transaction) unload() {
	if t.chunk != nil {
		chunkBuffers.Put(t.chunk)
	}
}

// sendChunk writes everything at once, MAIL, RCPTs, BDAT and the message, lets the next
// one write, and reads the answers.
func (t *transaction) sendChunk(from wire, utf8 bool) {
	c := t.c
	header, body := t.m.Header, t.chunk.b[:t.chunk.n]
	// Gathered, not yet in the buffer: an error there would leave half of it.
	t.addReset()
	t.addMail(from, utf8)
	for i := range t.to {
		t.addRcpt(i, utf8)
	}
	start := len(t.cmd)
	t.cmd = append(t.cmd, "BDAT "...)
	t.cmd = strconv.AppendInt(t.cmd, lineLength(header, body), 10)
	t.cmd = append(t.cmd, " LAST"...)
	t.chunkLine = span{start, len(t.cmd)}
	t.cmd = append(t.cmd, "\r\n"...)
	c.mu.Lock()
	c.unsure++
	c.mu.Unlock()
	t.err = t.writeChunk(header, body)
	c.awaitReading(t)
	if t.err == nil && c.isBroken() && !t.sent() {
		t.err = c.why(PhaseBody) // there is nothing to wait for
	}
	if t.err == nil {
		t.err = t.readChunked()
	}
	c.mu.Lock()
	c.unsure--
	c.mu.Unlock()
}

// lineLength is how many bytes stored parts of a message come to on the line.
func lineLength(parts ...[]byte) int64 {
	n, mid := 0, false
	for _, p := range parts {
		if len(p) > 0 {
			n += len(p) + bytes.Count(p, []byte{'\n'})
			mid = p[len(p)-1] != '\n'
		}
	}
	if mid {
		n += len("\r\n")
	}
	return int64(n)
}

// writeChunk passes the turn to write in any case.
func (t *transaction) writeChunk(header, body []byte) error {
	c, w := t.c, &t.c.out
	w.start(c.nc, c.cfg.Timeouts.Block, true)
	err := w.put(t.cmd)
	for _, p := range [][]byte{header, body} {
		if err == nil {
			_, err = w.Write(p)
		}
	}
	if err == nil && w.mid {
		err = w.put([]byte("\r\n"))
	}
	if err != nil {
		err = c.stop(PhaseBody, err)
	}
	t.since = time.Now()
	t.ends = w.total // written or not: sent looks at what has left
	if perr := c.passWriting(t); err == nil {
		err = perr
	}
	return err
}

// readChunked reads all answers, whatever the first ones are: everything was asked.
func (t *transaction) readChunked() error {
	if err := t.readAnswers(0, len(t.to)); err != nil || t.mail.Code == 421 || !t.last.IsZero() {
		return err
	}
	c := t.c
	r, err := t.reply(PhaseChunk)
	if err == nil && r.Class() == 3 {
		err = c.fail(PhaseChunk, fmt.Errorf("%w: BDAT answered with %s", ErrNoReply, r))
	}
	if err != nil {
		return err
	}
	t.finals = []Reply{r}
	if r.Code == 421 || t.unknownChunk() {
		return nil
	}
	// What a refused BDAT leaves standing is not the same everywhere.
	c.standing(r.Class() != 2)
	c.finished(t.since)
	return nil
}

// unknownChunk tells a server that does not know what it offers, and takes the message
// for commands now.
func (t *transaction) unknownChunk() bool {
	if t.chunk == nil || len(t.finals) == 0 {
		return false
	}
	code := t.finals[0].Code
	return code == 500 || code == 502
}
