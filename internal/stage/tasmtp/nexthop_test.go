package tasmtp

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	. "zmailer/internal/stage/tasmtp/tasmtptest"
)

// nextHop is a server whose answers are random, and a record of the messages that it
// really took: for each recipient, how often. It stays one that a client can follow in
// principle: a command that is answered positively was executed, one that is answered by
// 4xx or 5xx was not, and on one connection it loses step once at most (an answer too many,
// one that is missing, two that change places). What no client can find out is left out:
// two faults of step that cancel each other, and answers to two RCPTs that change places.
// It always executes what it has read, also when the client is gone.
type nextHop struct {
	lmtp       bool
	extensions []string
	faults     float64 // how likely one is at each command
	noChunks   bool    // it offers CHUNKING and does not know BDAT
	nested     bool    // MAIL in an open transaction is refused, else it begins another
	sticky     bool    // a message that is refused leaves the transaction open

	mu       sync.Mutex
	rng      *rand.Rand
	contents map[string]string // what is to come from each sender, as DATA has it
	taken    map[string]int    // by recipient
	foreign  []string          // contents that came with another sender's envelope
	log      []string          // the conversations, for a failure
	conns    int
	all      sync.WaitGroup
}

func newNextHop(rng *rand.Rand) *nextHop {
	h := &nextHop{rng: rng, contents: map[string]string{}, taken: map[string]int{}}
	h.lmtp = rng.IntN(4) == 0
	h.faults = []float64{0.02, 0.08, 0.2, 0.4}[rng.IntN(4)]
	for _, x := range []string{"PIPELINING", "CHUNKING", "8BITMIME", "SIZE 0", "ENHANCEDSTATUSCODES", "DSN"} {
		if rng.IntN(3) > 0 {
			h.extensions = append(h.extensions, x)
		}
	}
	h.noChunks = rng.IntN(10) == 0
	h.nested = rng.IntN(2) == 0
	h.sticky = rng.IntN(2) == 0
	return h
}

// start serves one more connection, whose client's end it returns.
func (h *nextHop) start() *PipeEnd {
	client, server := Pipe()
	h.mu.Lock()
	h.conns++
	c := &hopConn{nextHop: h, nc: server, r: bufio.NewReaderSize(server, 4096), number: h.conns}
	if h.rng.IntN(8) == 0 {
		// The connection ends after so many bytes from the client, whatever they are.
		c.r = bufio.NewReaderSize(io.LimitReader(server, int64(h.rng.IntN(2000))), 4096)
	}
	h.mu.Unlock()
	h.all.Go(func() {
		defer server.Close()
		c.serve()
	})
	return client
}

func (h *nextHop) pick(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rng.IntN(n)
}

// fault is what goes wrong at one command.
type fault int

const (
	noFault       fault = iota
	refuseLater         // 4xx
	refuse              // 5xx
	leave               // 421, and the connection ends
	leaveSilent         // 421, and nothing more
	leaveGoesOn         // 421 is the answer, and the session goes on
	notice              // 421 before the answer, and the session goes on
	hangUp              // without an answer
	hangUpBefore        // and without having executed the command
	cutAnswer           // in the middle of the answer
	slow                // the answer takes long
	deaf                // nothing more is read or answered
	garbage             // no SMTP reply
	twice               // the answer comes twice
	twiceLate           // the second one later
	extra               // another answer comes with it
	stray               // another answer comes before it
	early               // the next command's answer comes with it
	missing             // no answer comes
	swapped             // the answer comes behind the next one
	wrongPositive       // 354 in place of 250, 250 in place of 354, without executing
	faults
)

func (f fault) losesStep() bool { return f >= twice && f <= swapped }

// hopConn is one connection.
type hopConn struct {
	*nextHop
	nc     *PipeEnd
	r      *bufio.Reader
	number int
	lost   bool   // it has lost step once
	held   string // an answer that comes behind the next one

	from  string // of the open transaction
	rcpts []string
}

func (c *hopConn) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf("%s %d ", time.Now().Format("15:04:05"), c.number)+fmt.Sprintf(format, args...))
}

// say writes an answer. Whether the client is still there is all the same.
func (c *hopConn) say(text string) {
	c.note("S: %s", text)
	text += "\r\n"
	if c.held != "" {
		text, c.held = text+c.held+"\r\n", ""
	}
	_, _ = io.WriteString(c.nc, text)
}

// chooseFault chooses what goes wrong at a command.
func (c *hopConn) chooseFault(verb string) fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.Float64() >= c.faults {
		return noFault
	}
	f := fault(1 + c.rng.IntN(int(faults)-1))
	switch {
	case f.losesStep() && c.lost,
		f == swapped && (verb == "RCPT" || verb == "."),
		f == twiceLate && verb != "EHLO" && verb != "MAIL" && verb != "RCPT",
		verb == "GREETING" && f == wrongPositive:
		return noFault
	}
	c.lost = c.lost || f.losesStep()
	return f
}

// act answers a command: legal reports whether the server's state allows it, execute is done
// if the answer is positive. false: the connection ends.
func (c *hopConn) act(verb, good string, legal bool, execute func(), f fault) bool {
	bad := "503 5.5.1 bad sequence of commands"
	run := func() {
		if legal {
			execute()
		}
	}
	usual := good
	if !legal {
		usual = bad
	}
	if f != noFault {
		c.note("fault %d at %s", f, verb)
	}
	switch f {
	case noFault:
		run()
		c.say(usual)
	case refuseLater:
		c.say([]string{"450 4.2.1 later", "451 4.3.0 trouble", "452 4.5.3 too many", "452 4.3.1 full"}[c.pick(4)])
	case refuse:
		c.say([]string{"550 5.1.1 no such user", "554 5.6.0 no", "552 5.2.2 full", "500 what"}[c.pick(4)])
	case leave:
		c.say("421 4.3.2 closing")
		return false
	case leaveSilent:
		c.say("421 4.3.2 closing")
		c.nc.AwaitClose()
		return false
	case leaveGoesOn:
		c.say("421 4.7.0 not now")
	case notice:
		run()
		c.say("421 4.3.2 closing soon\r\n" + usual)
	case hangUp:
		run()
		return false
	case hangUpBefore:
		return false
	case cutAnswer:
		run()
		text := usual + "\r\n"
		c.note("S: %s, cut", usual)
		_, _ = io.WriteString(c.nc, text[:c.pick(len(text))])
		return false
	case slow:
		<-time.After(time.Duration(c.pick(1200)) * time.Second)
		run()
		c.say(usual)
	case deaf:
		c.nc.AwaitClose()
		return false
	case garbage:
		run()
		c.say([]string{"what?", "", "25", "250+ok", "999 9.9.9 no", "250-never\r\n350 ending"}[c.pick(6)])
	case twice:
		run()
		c.say(usual + "\r\n" + usual)
	case twiceLate:
		run()
		c.say(usual)
		<-time.After(time.Duration(1+c.pick(100)) * time.Second)
		c.say(usual)
	case extra:
		run()
		c.say(usual + "\r\n" + []string{"250 2.0.0 ok", "354 go", "450 4.0.0 later", "550 5.0.0 no"}[c.pick(4)])
	case stray:
		other := []string{"250 2.0.0 ok", "354 go", "450 4.0.0 later", "550 5.0.0 no"}[c.pick(4)]
		if c.pick(2) == 0 {
			usual = "554 5.6.0 no"
		} else {
			run()
		}
		c.say(other + "\r\n" + usual)
	case early:
		run()
		next := "250 2.0.0 ok"
		if verb == "RCPT" {
			next = "354 go"
		}
		c.say(usual + "\r\n" + next)
	case missing:
		run()
	case swapped:
		run()
		c.held = usual
	case wrongPositive:
		if verb == "DATA" {
			c.say("250 2.0.0 done")
		} else {
			c.say("354 go")
		}
	}
	return true
}

func (c *hopConn) serve() {
	if !c.act("GREETING", "220 hop.test", true, func() {}, c.chooseFault("GREETING")) {
		return
	}
	for {
		line, err := c.r.ReadString('\n')
		if err != nil {
			c.note("end: %v", err)
			return
		}
		if line = strings.TrimRight(line, "\r\n"); len(line) > 200 {
			line = line[:200]
		}
		c.note("C: %s", line)
		if !c.command(line) {
			c.note("hangs up")
			return
		}
	}
}

func (c *hopConn) reset() { c.from, c.rcpts = "", nil }

func (c *hopConn) command(line string) bool {
	verb, rest, _ := strings.Cut(strings.ToUpper(line), " ")
	f := c.chooseFault(verb)
	switch verb {
	case "EHLO", "LHLO":
		lines := append([]string{"hop.test"}, c.extensions...)
		good := "250-" + strings.Join(lines[:len(lines)-1], "\r\n250-") + "\r\n250 " + lines[len(lines)-1]
		return c.act("EHLO", strings.TrimPrefix(good, "250-\r\n"), true, c.reset, f)
	case "HELO":
		return c.act("EHLO", "250 hop.test", true, c.reset, f)
	case "MAIL":
		return c.act(verb, "250 2.1.0 ok", c.from == "" || !c.nested, func() { c.from, c.rcpts = between(line), nil }, f)
	case "RCPT":
		return c.act(verb, "250 2.1.5 ok", c.from != "", func() { c.rcpts = append(c.rcpts, between(line)) }, f)
	case "DATA":
		return c.data(f)
	case "BDAT":
		if c.noChunks {
			return c.act(verb, "", false, func() {}, noFault)
		}
		return c.chunk(rest)
	case "RSET":
		return c.act(verb, "250 2.0.0 reset", true, c.reset, f)
	case "QUIT":
		c.say("221 2.0.0 bye")
		return false
	}
	return c.act(verb, "", false, func() {}, noFault)
}

// between returns the address of a MAIL or RCPT line.
func between(line string) string {
	_, rest, _ := strings.Cut(line, "<")
	address, _, _ := strings.Cut(rest, ">")
	return address
}

func (c *hopConn) data(f fault) bool {
	entered := false
	if !c.act("DATA", "354 go", len(c.rcpts) > 0, func() { entered = true }, f) {
		return false
	}
	if !entered {
		return true
	}
	var text strings.Builder
	for begin := true; ; {
		part, err := c.r.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			c.note("end of the content: %v", err)
			return false
		}
		if begin && string(part) == ".\r\n" {
			break
		}
		if begin && part[0] == '.' {
			part = part[1:]
		}
		text.Write(part)
		begin = err == nil
	}
	return c.end(text.String())
}

func (c *hopConn) chunk(rest string) bool {
	var n int
	if _, err := fmt.Sscan(rest, &n); err != nil || !strings.HasSuffix(rest, " LAST") {
		c.say("501 5.5.4 syntax")
		return true
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return false
	}
	return c.end(string(b))
}

// end is that of a message: it is taken for all accepted recipients, or, with LMTP, for
// each on its own.
func (c *hopConn) end(text string) bool {
	c.note("C: %d bytes of content", len(text))
	from, rcpts := c.from, c.rcpts
	took := false
	take := func(list ...string) func() {
		return func() {
			took = true
			c.take(from, text, list)
		}
	}
	if !c.sticky {
		c.reset()
	}
	good := "250 2.6.0 taken"
	if !c.lmtp || len(rcpts) == 0 {
		if !c.act(".", good, len(rcpts) > 0, take(rcpts...), c.chooseFault(".")) {
			return false
		}
	} else {
		for i, r := range rcpts {
			f := c.chooseFault(".")
			if f.losesStep() && i < len(rcpts)-1 || f == missing {
				f = noFault // no client can tell whose answer it is
			}
			if !c.act(".", good, true, take(r), f) {
				return false
			}
		}
	}
	if took {
		c.reset()
	}
	return true
}

func (c *hopConn) take(from, text string, rcpts []string) {
	c.note("takes %s for %v", from, rcpts)
	c.mu.Lock()
	defer c.mu.Unlock()
	if text != c.contents[from] {
		c.foreign = append(c.foreign, fmt.Sprintf("for %v, from %s: %.300q", rcpts, from, text))
		return
	}
	for _, r := range rcpts {
		if !strings.HasPrefix(r, strings.TrimSuffix(from, "@here.test")+".") {
			c.foreign = append(c.foreign, fmt.Sprintf("for %v, from %s: not its recipient", rcpts, from))
		}
		c.taken[r]++
	}
}
