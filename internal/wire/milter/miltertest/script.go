package miltertest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/run/assert"
)

// Script is a filter as bytes: it agrees to a version, actions and steps, and answers each
// command with fixed packets. What go-milter's server does not know can be tried with it.
type Script struct {
	Address                 string // set by Serve
	Version, Actions, Steps uint32
	Symbols                 string          // behind the options
	Answers                 map[byte]string // packets by command; without one it is continue
	Silent                  string          // commands that are not answered
	Closes                  string          // commands after whose answer the connection is closed
	Endless                 string          // packets that follow the answer to the end of a message until the other side closes

	mu    sync.Mutex
	offer string
	got   []string
}

// Packet makes a packet of the protocol.
func Packet(code byte, data string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(data)+1))) + string(code) + data
}

// Serve serves on loopback until the test ends.
func (f *Script) Serve(t testing.TB) *Script {
	t.Helper()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	f.Address = l.Addr().String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.serve(c) // until the other side closes
		}
	}()
	t.Cleanup(func() { _ = l.Close() }) // nothing can be lost
	return f
}

func (f *Script) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		var begin [5]byte
		if _, err := io.ReadFull(r, begin[:]); err != nil {
			return
		}
		data := make([]byte, binary.BigEndian.Uint32(begin[:])-1)
		if _, err := io.ReadFull(r, data); err != nil {
			return
		}
		if _, err := io.WriteString(c, f.answer(begin[4], string(data))); err != nil || begin[4] == 'Q' {
			return
		}
		f.mu.Lock()
		closes, endless := strings.IndexByte(f.Closes, begin[4]) >= 0, f.Endless
		f.mu.Unlock()
		for begin[4] == 'E' && endless != "" {
			if _, err := io.WriteString(c, endless); err != nil {
				return
			}
		}
		if closes {
			return
		}
	}
}

// Behave has the filter accept everything from now on.
func (f *Script) Behave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Answers, f.Silent, f.Closes, f.Endless = nil, "", "", ""
}

func (f *Script) answer(code byte, data string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if code == 'O' {
		f.offer = data
		var b []byte
		for _, n := range []uint32{f.Version, f.Actions, f.Steps} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		return Packet('O', string(b)+f.Symbols)
	}
	if code != 'Q' {
		f.got = append(f.got, string(code)+strings.ReplaceAll(data, "\x00", "|"))
	}
	if a, ok := f.Answers[code]; ok {
		return a
	}
	if code == 'D' || code == 'A' || code == 'Q' || strings.IndexByte(f.Silent, code) >= 0 {
		return ""
	}
	return Packet('c', "")
}

// Offer returns what was offered to the filter: version, actions and steps.
func (f *Script) Offer() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.offer
}

// Got returns the packets so far but for the farewell: the command, and its data with a bar
// for each NUL.
func (f *Script) Got() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	got := f.got
	f.got = nil
	return got
}
