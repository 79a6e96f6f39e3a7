package whatif

import (
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/admin/view"
	"zmailer/internal/mail/address"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/route"
)

// Kinds of differences between where a recipient's mail goes and where a configuration
// would route it, the worst first.
const (
	Fail    = "fail"    // the sender would get a report
	Aside   = "aside"   // the message would be set aside
	Unknown = "unknown" // is not known
	Freeze  = "freeze"
	Defer   = "defer"
	Drop    = "drop"   // no longer a recipient
	Add     = "add"    // a recipient that the queue does not have
	Expand  = "expand" // an alias or list leads to others
	Move    = "move"   // another channel or host
	Act     = "act"    // with another privilege
	Report  = "report" // reports would go to another sender
	Work    = "work"   // what could not be routed would go out
)

// place is where mail for a recipient goes. Its Sender is never left out.
type place = route.ExplainedTarget

// queued is a recipient that a work specification has.
type queued struct {
	place place
	open  bool   // somebody waits for it
	asked bool   // and it was selected
	orcpt string // the address that its sender wrote, if that is recorded
}

// difference is what would be otherwise with one recipient.
type difference struct {
	kind     string
	address  string      // as the queue has it; of what would be added, as it would be
	of       string      // the recipient of the envelope that is expanded to others, or would be
	from, to string      // places in short
	detail   string      // what an example says beside the address
	present  bool        // by the present configuration, too
	pair     view.Thread // where it would go, if that is one place
}

// text is a place in short. A host that is the recipient's own domain, or a user's own
// mailbox, is left out, as in the table routes: so alike recipients get alike texts.
func placeText(p *place) string {
	switch p.Channel {
	case "error":
		word, _, _ := strings.Cut(p.Host, ":")
		return "error!" + word
	case "file", "pipe":
		return p.Channel + " " + human.Cut(human.Clean(p.User), 60)
	}
	if strings.EqualFold(p.Host, p.User) || strings.EqualFold(p.Host, domainOf(p.User)) {
		return p.Channel + "!"
	}
	if m, err := address.Parse(p.User); err == nil {
		if ascii, err := m.ASCIIDomain(); err == nil && strings.EqualFold(p.Host, ascii) {
			return p.Channel + "!"
		}
	}
	return p.Channel + "!" + human.Clean(p.Host)
}

func domainOf(user string) string { return user[strings.LastIndexByte(user, '@')+1:] }

// user returns a place's user as it is compared: a domain's case makes no difference.
func user(p *place) string {
	if p.Channel == "file" || p.Channel == "pipe" {
		return p.Channel + " " + p.User
	}
	at := strings.LastIndexByte(p.User, '@') + 1
	return p.User[:at] + strings.ToLower(p.User[at:])
}

func key(p *place) string { return p.Channel + "\x00" + p.Host + "\x00" + user(p) }

// isNotice reports whether a target only reports something to the sender.
func isNotice(p *place) bool {
	return p.Channel == "bitbucket" && (p.Host == "expanded" || p.Host == "list")
}

// found is where in an explanation a target was found.
type found struct {
	place *place
	rcpt  int // of the envelope
}

// index finds what a routing has.
type index struct {
	r     *route.Explanation
	byKey map[string]found
	byWho map[string][]found
}

func newIndex(r *route.Explanation) *index {
	x := &index{r: r, byKey: map[string]found{}, byWho: map[string][]found{}}
	if r == nil {
		return x
	}
	for i := range r.Recipients {
		for j := range r.Recipients[i].Targets {
			p := &r.Recipients[i].Targets[j]
			if isNotice(p) {
				continue
			}
			x.byKey[key(p)] = found{p, i}
			x.byWho[user(p)] = append(x.byWho[user(p)], found{p, i})
		}
	}
	return x
}

func goes(r *route.Explanation) bool {
	return r.Verdict == route.VerdictRouted || r.Verdict == route.VerdictRejected
}

// same reports whether two routings of a message that goes nowhere say the same.
func sameVerdict(r, o *route.Explanation) bool {
	return r != nil && o != nil && r.Verdict == o.Verdict && r.Why == o.Why
}

// stopped returns the difference for a message that a configuration does not route.
func stopped(r *route.Explanation) difference {
	d := difference{to: r.Verdict, detail: r.Reason}
	if r.Why != "" {
		d.to += " (" + human.Clean(r.Why) + ")"
	}
	switch r.Verdict {
	case route.VerdictDeferred:
		d.kind = Defer
	case route.VerdictFrozen:
		d.kind = Freeze
	case route.VerdictUnreadable:
		d.kind = Unknown
	default:
		d.kind = Aside
	}
	return d
}

// comparison is one message's: what it has, and what the present configuration (nil: not
// known) and the candidate would do.
type comparison struct {
	spec      []queued
	now, then *index
	names     map[string]int  // recipients of the envelope, by address
	used      map[string]bool // places of then that a difference has named
	list      []difference
}

// compare returns the differences. Places are compared as sets, so each is certain; which
// of the new ones replaces which of the old ones is decided by the address, then by the
// recipient of the envelope that they come from.
func compare(spec []queued, now, then *route.Explanation) []difference {
	c := &comparison{spec: spec, now: newIndex(now), then: newIndex(then), used: map[string]bool{}}
	if !goes(then) {
		d := stopped(then)
		d.present = sameVerdict(now, then)
		for i := range spec {
			d.address, d.from = spec[i].place.User, placeText(&spec[i].place)
			c.note(&spec[i], d)
		}
		return c.list
	}
	var gone []*queued
	for i := range spec {
		s := &spec[i]
		t, there := c.then.byKey[key(&s.place)]
		if there {
			c.used[key(&s.place)] = true
		}
		switch {
		case isNotice(&s.place) || !s.open:
		case !there:
			gone = append(gone, s)
		case t.place.Privilege != s.place.Privilege:
			c.kept(s, t.place, Act, uidText(s.place.Privilege), uidText(t.place.Privilege))
		case t.place.Sender != s.place.Sender:
			c.kept(s, t.place, Report, "<"+s.place.Sender+">", "<"+t.place.Sender+">")
		}
	}
	c.settled()
	gone = slices.DeleteFunc(gone, c.moved)
	c.expanded(gone)
	c.added()
	return c.list
}

// nobodyUID is the privilege of what comes from no trustworthy file.
const nobodyUID = 65534

func uidText(uid uint32) string {
	if uid == nobodyUID {
		return "as nobody"
	}
	return "as uid " + strconv.FormatUint(uint64(uid), 10)
}

// kept notes a recipient that goes where it went, but not alike.
func (c *comparison) kept(s *queued, t *place, kind, from, to string) {
	p, there := c.now.byKey[key(&s.place)]
	present := there && p.place.Privilege == t.Privilege && p.place.Sender == t.Sender
	text := placeText(&s.place) + " "
	c.note(s, difference{kind: kind, address: s.place.User, from: text + from, to: text + to, present: present, pair: threadOf(t)})
}

// note takes in what would be otherwise with a recipient, if that was asked for.
func (c *comparison) note(s *queued, d difference) {
	if s.asked {
		c.list = append(c.list, d)
	}
}

func threadOf(p *place) view.Thread { return view.Thread{Channel: p.Channel, Host: p.Host} }

// settled leaves places out of account whose user has the mail.
func (c *comparison) settled() {
	open, done := map[string]bool{}, map[string]bool{}
	for i := range c.spec {
		if s := &c.spec[i]; s.open {
			open[user(&s.place)] = true
		} else {
			done[user(&s.place)] = true
		}
	}
	for key, t := range c.then.byKey {
		if who := user(t.place); done[who] && !open[who] {
			c.used[key] = true
		}
	}
}

// moved notes a recipient that goes to the same user by another way; it reports whether it
// does.
func (c *comparison) moved(s *queued) bool {
	ways := c.then.byWho[user(&s.place)]
	i := slices.IndexFunc(ways, func(f found) bool { return !c.used[key(f.place)] })
	if i < 0 {
		return false
	}
	t := ways[i]
	c.used[key(t.place)] = true
	d := difference{kind: Move, address: s.place.User, from: placeText(&s.place), to: placeText(t.place), pair: threadOf(t.place)}
	switch {
	case t.place.Channel == "error":
		d.kind, d.detail = Fail, errorText(t.place.Host)
	case s.place.Channel == "error":
		d.kind = Work
	}
	_, d.present = c.now.byKey[key(t.place)]
	c.note(s, d)
	return true
}

// of returns the recipient of the envelope that a place comes from; -1 if that is unknown.
func (c *comparison) of(s *queued) int {
	if f, there := c.now.byKey[key(&s.place)]; there {
		// The envelope is the same; but one configuration may have stopped earlier.
		if i := c.named(c.now.r.Recipients[f.rcpt].Address); i >= 0 {
			return i
		}
	}
	for _, f := range c.now.byWho[user(&s.place)] {
		if i := c.named(c.now.r.Recipients[f.rcpt].Address); i >= 0 {
			return i
		}
	}
	if ways := c.then.byWho[user(&s.place)]; len(ways) > 0 {
		return ways[0].rcpt
	}
	if s.orcpt != "" {
		if i := c.named(s.orcpt); i >= 0 {
			return i
		}
	}
	if len(c.then.r.Recipients) == 1 {
		return 0
	}
	return -1
}

// named returns the recipient of the envelope with an address.
func (c *comparison) named(addr string) int {
	if c.names == nil {
		c.names = make(map[string]int, len(c.then.r.Recipients))
		for i := range c.then.r.Recipients {
			c.names[strings.ToLower(c.then.r.Recipients[i].Address)] = i
		}
	}
	if i, ok := c.names[strings.ToLower(addr)]; ok {
		return i
	}
	return -1
}

// unused returns the places that a recipient of the envelope would newly lead to.
func (c *comparison) unused(rcpt int) []*place {
	var list []*place
	if rcpt < 0 {
		return nil
	}
	targets := c.then.r.Recipients[rcpt].Targets
	for i := range targets {
		if p := &targets[i]; !isNotice(p) && !c.used[key(p)] {
			list = append(list, p)
		}
	}
	return list
}

// instead is what a recipient of the envelope would newly lead to.
type instead struct {
	of      string // its address; "" if it is not known
	news    []*place
	kind    string
	to      string
	detail  string
	pair    view.Thread
	present bool // by the present configuration, too
}

func (c *comparison) instead(rcpt int) *instead {
	n := &instead{kind: Drop, to: "nobody", present: c.now.r != nil && goes(c.now.r)}
	if rcpt < 0 {
		return n
	}
	n.of, n.news = c.then.r.Recipients[rcpt].Address, c.unused(rcpt)
	if len(n.news) == 0 {
		return n
	}
	n.kind, n.to, n.detail = Expand, texts(n.news), "instead "+users(n.news)
	if len(n.news) == 1 {
		n.pair = threadOf(n.news[0])
	}
	if !slices.ContainsFunc(n.news, func(p *place) bool { return p.Channel != "error" }) {
		n.kind = Fail
		if text := errorText(n.news[0].Host); text != "" {
			n.detail += ": " + text
		}
	}
	for _, p := range n.news {
		if _, there := c.now.byKey[key(p)]; !there {
			n.present = false
		}
	}
	return n
}

// expanded notes those that no longer are recipients: their alias leads to others now,
// or to none.
func (c *comparison) expanded(gone []*queued) {
	byRcpt := map[int]*instead{}
	for _, s := range gone {
		rcpt := c.of(s)
		n := byRcpt[rcpt]
		if n == nil {
			n = c.instead(rcpt)
			byRcpt[rcpt] = n
		}
		_, there := c.now.byKey[key(&s.place)]
		c.note(s, difference{
			kind: n.kind, address: s.place.User, of: n.of, from: placeText(&s.place), to: n.to, detail: n.detail, present: n.present && !there, pair: n.pair,
		})
	}
	for _, n := range byRcpt {
		for _, p := range n.news {
			c.used[key(p)] = true
		}
	}
}

// added notes places that have no recipient in the queue, of recipients of the envelope
// that are still open.
func (c *comparison) added() {
	var asked, others map[int]bool
	for i := range c.then.r.Recipients {
		r := c.then.r.Recipients[i]
		for j := range r.Targets {
			p := &r.Targets[j]
			if isNotice(p) || c.used[key(p)] {
				continue
			}
			if asked == nil {
				asked, others = c.attribute()
			}
			if others[i] && !asked[i] {
				continue
			}
			d := difference{kind: Add, address: p.User, of: r.Address, from: "nobody", to: placeText(p), pair: threadOf(p)}
			_, d.present = c.now.byKey[key(p)]
			c.list = append(c.list, d)
		}
	}
}

// attribute returns which recipients of the envelope have recipients in the queue that were
// asked for, and which have others.
func (c *comparison) attribute() (asked, others map[int]bool) {
	asked, others = map[int]bool{}, map[int]bool{}
	for i := range c.spec {
		if s := &c.spec[i]; !isNotice(&s.place) {
			if rcpt := c.of(s); s.asked {
				asked[rcpt] = true
			} else {
				others[rcpt] = true
			}
		}
	}
	return asked, others
}

// texts are places in short, each once.
func texts(list []*place) string {
	var all []string
	for _, p := range list {
		if text := placeText(p); !slices.Contains(all, text) {
			all = append(all, text)
		}
		if len(all) > manyTexts {
			all[manyTexts] = "others"
			break
		}
	}
	return strings.Join(all, ", ")
}

const manyTexts = 3

func users(list []*place) string {
	var all []string
	for _, p := range list[:min(len(list), manyTexts)] {
		all = append(all, "<"+human.Clean(p.User)+">")
	}
	text := strings.Join(all, ", ")
	if n := len(list) - len(all); n > 0 {
		text += " and " + human.Count(n, "other")
	}
	return text
}

// errorText returns what a host of channel error says beside its word.
func errorText(host string) string {
	_, text, _ := strings.Cut(host, ":")
	if decoded, err := address.DecodeXText(text); err == nil {
		text = decoded
	}
	return human.Clean(text)
}
