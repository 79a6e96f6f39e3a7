package docs

import (
	"strings"
	"sync"

	"zmailer/test/peer"
)

// host is another host's SMTP server, which may be told to think for a while before it
// answers a message.
type host struct {
	sink peer.Sink

	mu     sync.Mutex
	thinks chan struct{} // closed when it answers
}

// otherHost starts one, at an address, or with a word before it does something else: stop
// ends it, hold has it answer no message until go. It takes all mail but for recipients
// later@, busy@ (the first time) and gone@; with "later" behind its address it puts all off
// but ok@, with "7bit" it takes no 8-bit mail, with "twice" it puts ann@ off so often.
func (r *run) otherHost(text string) error {
	word, addr, _ := strings.Cut(text, " ")
	switch word {
	case "stop":
		r.hosts[addr].end()
		delete(r.hosts, addr)
		return nil
	case "hold":
		r.hosts[addr].hold()
		return nil
	case "go":
		r.hosts[addr].answer()
		return nil
	}
	addr, how, _ := strings.Cut(text, " ")
	h := &host{}
	h.answer()
	h.sink = peer.Sink{Listen: r.match.real(addr), Stall: h.stall, No8Bit: how == "7bit", Rcpt: func(address string, attempt int) string {
		name, _, _ := strings.Cut(address, "@")
		switch {
		case how == "later" && name != "ok":
			return "451 4.2.1 later"
		case how == "twice" && name == "ann" && attempt <= 2, name == "later", name == "busy" && attempt == 1:
			return "451 4.7.1 come back a little later"
		case name == "gone":
			return "550 5.1.1 no such user here"
		}
		return ""
	}}
	if err := h.sink.Start(); err != nil {
		return err
	}
	r.hosts[addr] = h
	return nil
}

func (h *host) stall(at string, _ *peer.Message) {
	if at != peer.AtDot {
		return
	}
	h.mu.Lock()
	thinks := h.thinks
	h.mu.Unlock()
	<-thinks
}

func (h *host) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.thinks = make(chan struct{})
}

func (h *host) answer() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.thinks == nil {
		h.thinks = make(chan struct{})
	}
	select {
	case <-h.thinks:
	default:
		close(h.thinks)
	}
}

func (h *host) end() {
	h.answer()
	h.sink.Close()
}
