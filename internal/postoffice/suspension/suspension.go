// Package suspension is what operators have suspended: deliveries to a host, over a channel,
// from a sender or from a source address, and the acceptance of new mail (a drain). Mail that
// a suspension is about is queued and waits.
//
//	s, err := suspension.New(suspension.Suspension{Order: id, Host: "*.example.net", Who: "root"})
//	err = suspension.Change(po, func(l *suspension.List) error { l.Add(s); return nil })
//
// It owns the format of the file suspensions of the postoffice: a line for each suspension,
// which the scheduler, smtpserver, submit and the tools read. One that has an end is over
// when its time has come, whether its line is there or not; the next change drops the line.
//
// What survives a crash: the file is replaced by one rename after an fsync, so that a reader
// finds the suspensions before a change or those after it.
//
// Diagnostics: ErrPattern: what a suspension is to match cannot be used. A line that cannot
// be read is in List.Damaged, and the others are in force. Other errors are those of the disk.
package suspension

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/glob"
	"zmailer/internal/run/human"
)

// ErrPattern means that a suspension cannot match what it is given.
var ErrPattern = errors.New("it cannot be used")

// Suspension is one decision of an operator. Of Channel, Host, Sender and Source those that
// are not empty all have to match.
type Suspension struct {
	Order       postoffice.OperationID
	Since       time.Time
	Until       time.Time // zero: until it is resumed
	Who, Reason string

	// Accepting: new mail is refused, and deliveries go on.
	Accepting bool

	Channel string // pattern; "": any
	Host    string // pattern; "": any
	Sender  string // pattern; "": any. "<>" is the null sender
	Source  string // local address that connections are made from; "": any

	channel, host, sender string // as glob has them
	source                netip.Addr
}

// New makes a suspension that can be added to a List.
func New(s Suspension) (*Suspension, error) {
	for _, x := range []struct {
		name string
		text *string
	}{{"channel", &s.Channel}, {"host", &s.Host}, {"sender", &s.Sender}, {"source", &s.Source}} {
		if !utf8.ValidString(*x.text) || strings.ContainsFunc(*x.text, unicode.IsControl) || len(*x.text) > 1000 {
			return nil, fmt.Errorf("%s %q: %w: it is too long, or not plain text", x.name, human.Cut(*x.text, 100), ErrPattern)
		}
	}
	s.Channel, s.Host = strings.ToLower(s.Channel), strings.ToLower(s.Host)
	s.channel, s.host = glob.Simple(s.Channel), glob.Simple(s.Host)
	if strings.HasPrefix(s.Sender, "<") && strings.HasSuffix(s.Sender, ">") && s.Sender != NullSender {
		s.Sender = s.Sender[1 : len(s.Sender)-1]
	}
	s.Sender = strings.ToLower(s.Sender)
	if s.sender = glob.Simple(s.Sender); strings.HasPrefix(s.Sender, "@") {
		s.sender = "*" + s.sender
	}
	if s.Source != "" {
		addr, err := netip.ParseAddr(strings.Trim(s.Source, "[]"))
		if err != nil {
			return nil, fmt.Errorf("source %q: %w: it is not an IP address", s.Source, ErrPattern)
		}
		s.source = addr.Unmap()
		s.Source = s.source.String()
	}
	if all := s.Channel + s.Host + s.Sender + s.Source; s.Accepting != (all == "") {
		return nil, fmt.Errorf("%w: it names no host, channel, sender or source", ErrPattern)
	}
	return &s, nil
}

// NullSender is the sender of reports, as Sender has it.
const NullSender = "<>"

// Over reports whether the suspension has ended.
func (s *Suspension) Over(now time.Time) bool { return !s.Until.IsZero() && !now.Before(s.Until) }

// Thread reports whether channel and host are those of the suspension. They decide alone
// unless OfMessages.
func (s *Suspension) Thread(channel, host string) bool {
	return !s.Accepting && (s.Channel == "" || glob.Match(s.channel, strings.ToLower(channel))) &&
		(s.Host == "" || glob.Match(s.host, strings.ToLower(host)))
}

// OfMessages reports whether sender or source decide, which differ among the messages for a
// host.
func (s *Suspension) OfMessages() bool { return s.Sender != "" || s.Source != "" }

// From reports whether a sender is that of the suspension; "" is the null sender.
func (s *Suspension) From(sender string) bool {
	switch {
	case s.Sender == "":
		return true
	case sender == "" || sender == NullSender:
		return s.Sender == NullSender
	}
	return s.Sender != NullSender && glob.Match(s.sender, strings.ToLower(sender))
}

// By reports whether an address that connections are made from is that of the suspension.
func (s *Suspension) By(source netip.Addr) bool { return s.Source == "" || source.Unmap() == s.source }

// Sources are the addresses that the agents of a clause connect from, by family.
type Sources struct{ v4, v6 []netip.Addr }

// ParseSources reads the words of sources= as ta-smtp does; others were refused by the check
// of scheduler.conf.
func ParseSources(words []string) (of Sources) {
	for _, word := range words {
		text, _, _ := strings.Cut(word, "=")
		addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
		if err != nil {
			continue
		}
		if addr = addr.Unmap(); addr.Is6() {
			of.v6 = append(of.v6, addr)
		} else {
			of.v4 = append(of.v4, addr)
		}
	}
	return of
}

// Leaves reports whether a message may leave from the source of the suspension: turn is
// SpoolID.Turn and how often the message was given another source.
func (s *Suspension) Leaves(of Sources, turn uint64) bool {
	if s.Source == "" {
		return true
	}
	for _, list := range [][]netip.Addr{of.v4, of.v6} {
		if n := uint64(len(list)); n > 0 && s.By(list[turn%n]) {
			return true
		}
	}
	return false
}

// Subject describes what the suspension is about: "host example.net", "new mail".
func (s *Suspension) Subject() string {
	if s.Accepting {
		return "new mail"
	}
	var words []string
	for _, x := range []struct{ name, text string }{{"channel", s.Channel}, {"host", s.Host}, {"sender", s.Sender}, {"source", s.Source}} {
		if x.text != "" {
			words = append(words, x.name+" "+x.text)
		}
	}
	return strings.Join(words, ", ")
}

// Details describes who suspended it, since when and why, and when it ends.
func (s *Suspension) Details(now time.Time) string {
	text := "by " + s.Who + " since " + s.Since.Local().Format(human.TimeFormat)
	if !s.Until.IsZero() {
		text += ", until " + s.Until.Local().Format(human.TimeFormat)
		if left := s.Until.Sub(now); left > 0 {
			text += " (for another " + human.Span(left) + ")"
		}
	}
	if s.Reason != "" {
		text += ", reason " + strconv.Quote(s.Reason)
	}
	return text
}

// List is all suspensions of a postoffice.
type List struct {
	All []*Suspension
	// Damaged are the lines that could not be read, each with what is wrong with it.
	Damaged []Damage
}

// Damage is a line that could not be read.
type Damage struct {
	Line int // its number
	Text string
	Err  error
}

// String describes the damage.
func (d Damage) String() string {
	return fmt.Sprintf("%s:%d: %v", postoffice.SuspensionFile, d.Line, d.Err)
}

// Active returns those that are in force.
func (l *List) Active(now time.Time) []*Suspension {
	var list []*Suspension
	for _, s := range l.All {
		if !s.Over(now) {
			list = append(list, s)
		}
	}
	return list
}

// Accepting returns the suspension by which new mail is refused, nil if it is accepted.
func (l *List) Accepting(now time.Time) *Suspension {
	for _, s := range l.Active(now) {
		if s.Accepting {
			return s
		}
	}
	return nil
}

// Find returns the suspension of an order, nil if there is none.
func (l *List) Find(order postoffice.OperationID) *Suspension {
	for _, s := range l.All {
		if s.Order == order {
			return s
		}
	}
	return nil
}

// Add adds a suspension that New or Parse has made.
func (l *List) Add(s *Suspension) { l.All = append(l.All, s) }

// Remove takes a suspension out.
func (l *List) Remove(s *Suspension) {
	l.All = slices.DeleteFunc(l.All, func(x *Suspension) bool { return x == s })
}

// Read reads the suspensions of a postoffice.
func Read(po *postoffice.PostOffice) (*List, error) {
	b, err := po.ReadSuspensions()
	if err != nil {
		return nil, err
	}
	return Parse(b), nil
}

// Change changes the suspensions of a postoffice. Those that are over are dropped; lines that
// cannot be read stay, unless change takes them out.
func Change(po *postoffice.PostOffice, now time.Time, change func(*List) error) error {
	return po.ChangeSuspensions(func(old []byte) ([]byte, error) {
		l := Parse(old)
		if err := change(l); err != nil {
			return nil, err
		}
		l.All = l.Active(now)
		return l.Append(nil), nil
	})
}

// header is the first line of the file.
const header = "zmailer-suspensions 1"

// Words of the lines.
const (
	wordDeliveries = "deliveries" // they are suspended
	wordAccepting  = "accepting"
)

// fields returns the texts of a suspension with their words.
func (s *Suspension) fields() (words []string, values []*string) {
	return []string{"channel", "host", "sender", "source", "by", "reason"},
		[]*string{&s.Channel, &s.Host, &s.Sender, &s.Source, &s.Who, &s.Reason}
}

// Append writes the file.
func (l *List) Append(b []byte) []byte {
	b = append(b, header+"\n"...)
	for _, s := range l.All {
		b = append(s.AppendLine(b), '\n')
	}
	for _, d := range l.Damaged {
		b = append(append(b, d.Text...), '\n')
	}
	return b
}

// AppendLine writes the line of a suspension, without its end.
func (s *Suspension) AppendLine(b []byte) []byte {
	word := wordDeliveries
	if s.Accepting {
		word = wordAccepting
	}
	b = append(append(append(b, word...), " order="...), s.Order...)
	b = append(append(b, " since="...), s.Since.UTC().Format(time.RFC3339)...)
	if !s.Until.IsZero() {
		b = append(append(b, " until="...), s.Until.UTC().Format(time.RFC3339)...)
	}
	words, values := s.fields()
	for i, v := range values {
		if *v != "" {
			b = append(append(append(b, ' '), words[i]...), '=')
			b = strconv.AppendQuote(b, *v)
		}
	}
	return b
}

// Parse reads the file.
func Parse(b []byte) *List {
	l := &List{}
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		text := strings.TrimSuffix(line, "\n")
		switch {
		case n == 1 && text == header, strings.TrimSpace(text) == "", strings.HasPrefix(text, "#"):
			continue
		}
		s, err := ParseLine(text)
		if err != nil {
			l.Damaged = append(l.Damaged, Damage{n, text, err})
			continue
		}
		l.Add(s)
	}
	return l
}

// ParseLine reads the line of a suspension. What it does not know is an error: a suspension
// without one of its words would be about more mail.
func ParseLine(text string) (*Suspension, error) {
	word, rest, _ := strings.Cut(text, " ")
	s := Suspension{Accepting: word == wordAccepting}
	if !s.Accepting && word != wordDeliveries {
		return nil, fmt.Errorf("%q is neither %s nor %s", human.Cut(word, 50), wordDeliveries, wordAccepting)
	}
	seen := map[string]bool{}
	for rest != "" {
		key, value, tail, err := nextField(rest)
		if err == nil && seen[key] {
			err = errors.New("it is there twice")
		}
		if err == nil {
			err = s.set(key, value)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", human.Cut(human.Clean(key), 50), err)
		}
		seen[key], rest = true, tail
	}
	if !seen["order"] || !seen["since"] {
		return nil, errors.New("order or since is missing")
	}
	return New(s)
}

// nextField takes KEY=VALUE off a line. A value is quoted unless it has no space.
func nextField(text string) (key, value, rest string, err error) {
	key, rest, ok := strings.Cut(text, "=")
	if !ok {
		return text, "", "", errors.New("it has no value")
	}
	if strings.HasPrefix(rest, `"`) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return key, "", "", errors.New("its quotation marks are not balanced")
		}
		value, _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
		rest = rest[len(quoted):]
	} else {
		n := strings.IndexByte(rest+" ", ' ')
		value, rest = rest[:n], rest[n:]
	}
	if rest == "" {
		return key, value, "", nil
	}
	if rest, ok = strings.CutPrefix(rest, " "); !ok || rest == "" {
		return key, "", "", errors.New("a space is missing or too many behind it")
	}
	return key, value, rest, nil
}

func (s *Suspension) set(key, value string) (err error) {
	switch key {
	case "order":
		var ok bool
		if s.Order, ok = postoffice.ParseOperationID(value); !ok {
			return errors.New("it is not the name of an operation")
		}
		return nil
	case "since":
		s.Since, err = time.Parse(time.RFC3339, value)
		return err
	case "until":
		s.Until, err = time.Parse(time.RFC3339, value)
		return err
	}
	words, values := s.fields()
	i := slices.Index(words, key)
	if i < 0 {
		return errors.New("unknown word")
	}
	*values[i] = value
	return nil
}
