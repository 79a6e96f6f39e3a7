package route

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"zmailer/internal/disk/durable"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// maxSorted is how many recipients a message may have so that they are written sorted
// by channel and host. More are written as they are found: they are never all in memory.
const maxSorted = 2000

// specWriter writes the work specification of one message while its recipients are found. It is
// not synced: until the hand-over it is thrown away with a stale claim, after it a file
// that lost bytes is known by its z line, and the message routed again.
type specWriter struct {
	w   *worker
	msg *message

	n        int          // recipients so far
	groups   []group      // of what is not written yet, in the order of their first recipient
	file     durable.File // nil: nothing is written yet
	at       group        // begun last
	begun    bool
	reportTo map[string]bool // other senders that have an e line
	large    bool            // it holds Router.large
	// Headers with Delivered-To, and their bytes: where recipients are not sorted there may
	// be one for each change between those who have the field and those who do not.
	forwards, forwardsB int
}

// kept is a recipient that is not written yet.
type kept struct {
	group int // its place in specWriter.groups
	workspec.Recipient
}

// specify resolves a message's recipients and writes its work specification. 0: it has
// none, and nothing was written. After an error the work file is worth nothing; it goes
// when the claim ends.
func (w *worker) specify(msg *message) (n int, err error) {
	s := specWriter{w: w, msg: msg}
	w.kept = w.kept[:0]
	defer func() {
		if s.file != nil {
			err = errors.Join(err, s.file.Close())
		}
		if s.large {
			w.en.large.Unlock()
		}
	}()
	if err := w.resolve(msg, s.take); err != nil {
		return 0, err
	}
	if s.n == 0 {
		return 0, nil
	}
	return s.n, s.end()
}

// take is an addFunc.
func (s *specWriter) take(g group, r *workspec.Recipient) error {
	s.n++
	s.w.en.recipients.With(r.Channel).Add(1)
	if s.file != nil {
		return s.write(g, r)
	}
	if s.n == manyRecipients {
		s.msg.Busy()
	}
	s.w.kept = append(s.w.kept, kept{s.place(g), *r})
	if s.n <= maxSorted {
		return nil
	}
	// One after the other: the first one's delivery begins while the second one is still
	// resolved, instead of both waiting for each other's last recipient.
	// What waits for lookups would have the second one wait for long.
	if !s.msg.waited() {
		s.w.en.large.Lock()
		s.large = true
	}
	return s.begin()
}

// place returns a group's in s.groups.
func (s *specWriter) place(g group) int {
	if i := slices.Index(s.groups, g); i >= 0 {
		return i
	}
	s.groups = append(s.groups, g)
	return len(s.groups) - 1
}

// begin creates the file and writes the recipients that are known: a thread's stand
// together, and within one they keep their order.
func (s *specWriter) begin() error {
	f, err := s.msg.claim.CreateWork()
	if err != nil {
		return err
	}
	s.file = f
	s.w.spec.Reset(f)
	s.preamble()
	list := s.w.kept
	slices.SortStableFunc(list, func(a, b kept) int {
		return cmp.Or(cmp.Compare(s.groups[a.group].variant, s.groups[b.group].variant), cmp.Compare(a.group, b.group), cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Host, b.Host))
	})
	for i := range list {
		if err := s.write(s.groups[list[i].group], &list[i].Recipient); err != nil {
			return err
		}
	}
	clear(list)
	s.w.kept = list[:0]
	return nil
}

// write writes one recipient, behind its sender. Groups of one variant share a header.
func (s *specWriter) write(g group, r *workspec.Recipient) error {
	if s.forwards >= mostForwarded || s.forwardsB >= mostForwardedB {
		g.variant = s.msg.variants.place(g.variant)
	}
	if s.begun && g.variant != s.at.variant {
		s.header()
	}
	if !s.begun || g != s.at {
		s.errorTo(g)
		from := s.sender(g)
		s.w.spec.Begin(&from)
		s.at, s.begun = g, true
	}
	s.w.spec.Recipient(r)
	return s.w.spec.Err()
}

func (s *specWriter) end() error {
	if s.file == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	s.header()
	if err := s.w.spec.Close(); err != nil {
		return err
	}
	return s.history()
}

// header writes the header for the groups that have none yet.
func (s *specWriter) header() {
	s.w.header = s.w.top(s.w.header[:0], s.msg, s.at.variant)
	s.w.spec.Header(s.w.header)
	if s.msg.variants.place(s.at.variant) != s.at.variant {
		s.forwards++
		s.forwardsB += len(s.w.header)
	}
}

// preamble gives the specification the lines that concern the whole message.
func (s *specWriter) preamble() {
	msg := s.msg
	spec := workspec.Spec{Message: msg.claim.Name(), BodyOffset: msg.head.BodyOffset, Ident: msg.header.ident()}
	if a := msg.senderText(); a != "" {
		spec.ErrorTo = append(spec.ErrorTo, a)
	}
	if msg.trusted {
		// A privileged program would write to the file.
		spec.Verbose = msg.head.Verbose
		// RFC 3848: ESMTPA, ESMTPSA, LMTPSA and the like.
		spec.Own = strings.HasSuffix(strings.ToUpper(msg.head.With), "A")
	}
	if msg.external {
		o := msg.head.Origin()
		spec.Client, spec.ClientName, spec.User = o.Client, o.Name, o.User
	}
	spec.Obsoletes = msg.obsoletes()
	if spec.Ident == "" {
		spec.Ident = msg.id
		if msg.makesID() {
			spec.Ident = msg.madeID(s.w.en.c.Hostname)
		}
	}
	msg.ident = spec.Ident
	s.w.spec.Preamble(&spec)
	for _, g := range s.groups {
		s.errorTo(g)
	}
}

// errorTo has reports of a group go to its sender, if that is not the message's: the
// scheduler sends reports only to the address of an e line.
func (s *specWriter) errorTo(g group) {
	to := s.from(g)
	if to == "" || s.reportTo[to] || to == s.msg.senderText() {
		return
	}
	if s.reportTo == nil {
		s.reportTo = map[string]bool{}
	}
	s.reportTo[to] = true
	s.w.spec.ErrorTo(to)
}

// from returns a group's sender: the owner of a list, or whom the policy names, or the
// message's; "": null.
func (s *specWriter) from(g group) string {
	if g.owner != "" {
		return g.owner
	}
	if len(s.msg.variants.list) == 0 {
		return s.msg.senderText()
	}
	return s.msg.from(g.variant).String()
}

// sender returns a group's s line.
func (s *specWriter) sender(g group) workspec.Sender {
	from := workspec.Sender{Channel: "error", Host: "-", Address: "<>", Privilege: privilegeText(rules.Nobody)}
	address := s.from(g)
	if address == "" {
		return from
	}
	from.Channel, from.Host, from.Address = rules.Local, word(address), address
	switch {
	case g.owner != "":
		if g.verp {
			from.VERP = verpMark
		}
	case !s.msg.external:
		from.Privilege = privilegeText(s.msg.uid)
	}
	return from
}

// verpMark separates the owner's local part from the recipient.
const verpMark = "+"

// word returns an address for a place where no blank is allowed.
func word(s string) string {
	if strings.ContainsAny(s, " \t") {
		return "-"
	}
	return s
}
