package route

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/answer"
	"zmailer/internal/stage/router/policy"
	"zmailer/internal/stage/router/rules"
)

// Results of a Verifier (docs/access.md).
const (
	RcptKnown   = "known"   // its mail goes somewhere
	RcptVerify  = "verify"  // its mail goes to a next hop that is to be asked for it: Next
	RcptUnknown = "unknown" // its mail comes back, whoever sends it
	RcptRefused = "refused" // this sender's mail comes back, as router.star has it now
	RcptTrouble = "trouble" // the answer is unknown now
)

// Known is a Verifier's result for a recipient.
type Known struct {
	Word string      // one of those above
	Code status.Code // why, if it is unknown or refused
	Text string      // the same in words, or what the trouble is
	Next NextHop     // of RcptVerify and, by the tables, of RcptKnown
}

// NextHop is where the mail of a recipient goes.
type NextHop struct{ Channel, Host, User string }

// String returns it as the text of an answer.
func (n NextHop) String() string {
	return n.Channel + " " + address.EncodeXText(n.Host) + " " + address.EncodeXText(n.User)
}

// Verifier reports whether there is anybody behind a recipient, by the router's own tables
// and decisions, before its mail is taken. It does nothing. Many goroutines may use it.
type Verifier struct {
	en    *Engine
	limit time.Duration
}

// NewVerifier reads the tables. Its errors are *config.Error. limit is how long one recipient
// may take.
func NewVerifier(c Config, limit time.Duration) (*Verifier, error) {
	c.Log, c.Metrics = nil, nil // nothing is logged or counted
	en, err := New(nil, c)
	if err != nil {
		return nil, err
	}
	en.dryRun = true
	return &Verifier{en, limit}, nil
}

// Close ends the connections and children of the tables.
func (v *Verifier) Close() error { return v.en.Close() }

// Verify checks one recipient of a message from outside. from is its sender, with
// brackets or without.
func (v *Verifier) Verify(ctx context.Context, from, to string) (k Known) {
	ctx, cancel := context.WithTimeout(ctx, v.limit)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			k = Known{Word: RcptTrouble, Text: fmt.Sprintf("the router panics on it: %v", p)}
		}
	}()
	m, err := address.Parse(to)
	if err != nil || m.IsNull() {
		return Known{Word: RcptUnknown, Code: status.BadAddress, Text: "Bad address syntax"}
	}
	// As in routing, router.star comes first, and what it leaves to the tables they decide.
	fate, asked := v.fate(from, m)
	switch {
	case fate.Fate == policy.Reject:
		code, text := status.Code{Class: 5, Subject: 7, Detail: 1}, "Mail to this address is not accepted"
		if c, ok := status.Parse(fate.Code); ok && fate.Text != "" {
			code, text = c, fate.Text
		}
		return Known{Word: RcptRefused, Code: code, Text: text}
	case fate.Fate != policy.None:
		// It has something else to do with such mail, or needs more than the envelope to tell.
		return Known{Word: RcptKnown}
	}
	target, err := v.en.rules.Tables().Verify(ctx, m)
	if err != nil {
		return Known{Word: RcptTrouble, Text: err.Error()}
	}
	unknown := RcptUnknown
	if asked {
		unknown = RcptRefused // for this sender
	}
	if target.Channel == rules.Error {
		code, text := whyError(target.Host)
		return Known{Word: unknown, Code: code, Text: text}
	}
	next := NextHop{target.Channel, target.Host, target.User}
	if target.Verify {
		return Known{Word: RcptVerify, Next: next}
	}
	return Known{Word: RcptKnown, Next: next}
}

// Generation identifies the tables and router.star as they are now: answers of another one
// count no more. keep bounds how long answers count while it stays; 0: without bound. With a
// router.star they count for their sender and now.
func (v *Verifier) Generation() (name string, keep time.Duration) {
	name, asks := v.en.rules.Generation()
	if asks {
		keep = max(v.en.c.LookupKeep, time.Nanosecond)
	}
	if p := v.en.policy.Current(); p != nil {
		name, keep = name+"p", time.Nanosecond
		_ = p.Release() // its tables are opened again when it is used
	}
	return strconv.Itoa(os.Getpid()) + "-" + name, keep
}

// fate asks router.star what it would do with a message of which only the envelope is
// known. asked is false if there is no such program.
func (v *Verifier) fate(from string, to address.Mailbox) (fate policy.Action, asked bool) {
	msg := message{
		uid: v.en.self, claim: &postoffice.Claim{Info: durable.Info{UID: v.en.self, ModTime: v.en.c.Now()}},
		head: &envelope.Message{},
	}
	msg.id = msg.claim.ID.String()
	msg.head.External, msg.head.HasFrom, msg.head.Filtered = true, true, true
	msg.head.From = strings.TrimSuffix(strings.TrimPrefix(from, "<"), ">")
	msg.head.Recipients = []envelope.Recipient{{Address: to.String()}}
	if p := v.en.policy.Current(); p == nil {
		return policy.Action{}, false
	} else if err := p.Release(); err != nil {
		return policy.Action{Fate: policy.Defer}, true
	}
	w := v.en.idle.Get().(*worker)
	err := w.prepare(&msg)
	defer msg.release(slog.New(slog.DiscardHandler))
	if msg.policy.program == nil && err == nil {
		v.en.idle.Put(w)
		return policy.Action{}, false
	}
	if err == nil {
		fate, _, err = w.fateOf(&msg, &msg.to[0], to, v.en.rules.Tables(), newExpansion(&msg, &msg.to[0], to, nil))
	}
	v.en.idle.Put(w)
	if err != nil {
		// Frozen, put off, or an error of the program: the message is what that is about.
		return policy.Action{Fate: policy.Defer}, true
	}
	return fate, true
}

// Message asks router.star about a message of which all but the body is known: head is its
// envelope and header as its file begins with them, size that of its content. RcptRefused: the
// program rejects it for each recipient, so that its client need not be told 250.
func (v *Verifier) Message(ctx context.Context, head []byte, size int64) (k Known) {
	ctx, cancel := context.WithTimeout(ctx, v.limit)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			k = Known{Word: RcptTrouble, Text: fmt.Sprintf("the router panics on it: %v", p)}
		}
	}()
	msg := message{ctx: ctx, uid: v.en.self, claim: &postoffice.Claim{Info: durable.Info{UID: v.en.self, ModTime: v.en.c.Now()}}}
	var err error
	if msg.head, err = envelope.Read(bytes.NewReader(head)); err != nil {
		return Known{Word: RcptTrouble, Text: err.Error()}
	}
	msg.claim.Info.Size = msg.head.HeaderOffset + size
	// What rules decide is decided; the message's own file has no body here.
	msg.head.Rules, msg.head.Filtered = RulesFollowed, true
	msg.id = msg.claim.ID.String()
	msg.header.look(msg.head.Header)
	w := v.en.idle.Get().(*worker)
	defer v.en.idle.Put(w)
	err = w.prepare(&msg)
	defer msg.release(slog.New(slog.DiscardHandler))
	if err != nil || msg.policy.program == nil {
		// Frozen, put off, or an error of the program: the router does that to the message.
		return Known{Word: RcptKnown}
	}
	for i := range msg.to {
		m, err := address.Parse(msg.to[i].Address)
		if err != nil {
			return Known{Word: RcptKnown}
		}
		fate, _, err := w.fateOf(&msg, &msg.to[i], m, v.en.rules.Tables(), newExpansion(&msg, &msg.to[i], m, nil))
		if err != nil || fate.Fate != policy.Reject {
			return Known{Word: RcptKnown}
		}
		if i == 0 {
			k = Known{Word: RcptRefused, Code: status.Code{Class: 5, Subject: 7, Detail: 1}, Text: fate.Text}
			if c, ok := status.Parse(fate.Code); ok {
				k.Code = c
			}
		}
	}
	if len(msg.to) == 0 {
		return Known{Word: RcptKnown}
	}
	return k
}

// whyError returns what a client learns of a host of channel error
// (docs/notes/error-channel.md). Errors in our files are not for it.
func whyError(host string) (status.Code, string) {
	word, coded, _ := strings.Cut(host, ":")
	switch word {
	case rules.ErrBadAddress:
		return status.BadAddress, "Bad address syntax"
	case rules.ErrLoop:
		return status.RoutingLoop, "Mail loops back to the address"
	case rules.ErrUnsafe, "norelay":
		return status.Code{Class: 5, Subject: 7, Detail: 1}, "Mail to this address is not accepted"
	}
	c, ok := status.Parse(word)
	if !ok {
		return status.BadMailbox, "User unknown"
	}
	c.Class = 5
	text, err := address.DecodeXText(coded)
	if err != nil || text == "" {
		text = "Mail to this address is not accepted"
	}
	return c, text
}

// verifiers is how many recipients are verified at the same time.
const verifiers = 16

// VerifyGreeting is the first line that Serve writes: the tables are read.
const VerifyGreeting = "zmailer rcpt-check 1"

// Serve answers requests, a line each, until in ends: "ID FROM TO", the addresses in
// xtext (RFC 3461 §4) and FROM in brackets. The answers are lines "ID WORD CODE TEXT", in
// the order in which they are known; of verify the text is CHANNEL HOST USER in xtext, of known,
// too, if the tables decided.
// "ID generation" is answered "ID generation - NAME NANOSECONDS", see Generation. Its error is
// that of in or out.
func (v *Verifier) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	s, ctx := answer.New(ctx, out, verifiers, VerifyGreeting)
	lines := bufio.NewReaderSize(in, maxVerifyLine)
	var err error
	for ctx.Err() == nil {
		var line []byte
		if line, err = lines.ReadSlice('\n'); err != nil {
			break
		}
		if id, length, size, ok := parseMessage(line); ok {
			head := make([]byte, length+1)
			if _, err = io.ReadFull(lines, head); err != nil {
				break
			}
			s.Go(func() string { return id + " " + v.Message(ctx, head[:length], size).String() })
			continue
		}
		id, from, to, perr := parseVerify(line)
		if perr != nil {
			err = perr
			break
		}
		if from == "" && to == "" {
			name, keep := v.Generation()
			s.Say(fmt.Sprintf("%s %s - %s %d", id, askGeneration, name, keep))
			continue
		}
		s.Go(func() string { return id + " " + v.Verify(ctx, from, to).String() })
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, s.Wait())
}

// maxVerifyLine is how long a request may be. Bytes.
const maxVerifyLine = 16 << 10

// String returns the answer as Serve writes it: one line.
func (k Known) String() string {
	code := "-"
	if !k.Code.IsZero() {
		code = k.Code.String()
	}
	if k.Next.Channel != "" {
		return k.Word + " " + code + " " + k.Next.String()
	}
	return k.Word + " " + code + " " + answer.Text(k.Text)
}

// askGeneration is the request for Generation.
const askGeneration = "generation"

// maxHead is how long the envelope and header of a message may be. Bytes.
const maxHead = 2 << 20

// parseMessage reads "ID message LENGTH SIZE", behind which as many bytes and a newline follow.
func parseMessage(line []byte) (id string, length int, size int64, ok bool) {
	f := strings.Fields(string(line))
	if len(f) != 4 || f[1] != "message" {
		return "", 0, 0, false
	}
	length, err := strconv.Atoi(f[2])
	size, serr := strconv.ParseInt(f[3], 10, 64)
	return f[0], length, size, err == nil && serr == nil && length >= 0 && length <= maxHead && size >= 0
}

func parseVerify(line []byte) (id, from, to string, err error) {
	f := bytes.Fields(line)
	if len(f) == 2 && string(f[1]) == askGeneration {
		return string(f[0]), "", "", nil
	}
	if len(f) != 3 {
		return "", "", "", fmt.Errorf("a request is ID FROM TO, not %.80q", line)
	}
	if from, err = address.DecodeXText(string(f[1])); err == nil {
		to, err = address.DecodeXText(string(f[2])) // never empty: the word is not
	}
	return string(f[0]), from, to, err
}

// Tell verifies recipients, a line each.
func (v *Verifier) Tell(ctx context.Context, out io.Writer, from string, list []string) error {
	for _, to := range list {
		if _, err := fmt.Fprintf(out, "%s: %s\n", to, v.Verify(ctx, from, to)); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	return nil
}
