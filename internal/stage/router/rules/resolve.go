package rules

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/table/text"
)

// Resolve gives the targets of a recipient as they are found, always one at least. Its
// error is a *Trouble, the one that give returned, or a shortage of files or memory;
// what was given before does not count then.
func (t *Tables) Resolve(ctx context.Context, q Query, give func(Target) error) error {
	x := expansion{lookups: lookups{ctx: ctx, batch: q.Batch}, t: t, rcpt: q.Recipient, report: q.Report, trace: q.Trace, give: give}
	if err := x.mailbox(q.Recipient, false); err != nil {
		return err
	}
	if x.given == 0 {
		// A list without members: its mail is discarded, which is a delivery.
		return x.add(Bitbucket, "-", q.Recipient.String(), Nobody)
	}
	return nil
}

// expansion is one recipient's way through the tables.
type expansion struct {
	lookups
	t       *Tables
	rcpt    address.Mailbox
	report  bool
	trace   func(Step)
	give    func(Target) error
	given   int
	path    trail
	via     []string            // the same for people
	done    map[stepID]struct{} // expanded: a second time would give duplicates
	doneLog []stepID            // the same in order, while logDone
	tagged  map[stepID]struct{} // expanded with a tag, whatever it was
	logDone bool                // they may have to be taken back, see apart
	owner   string              // of the list that is expanded
	verp    bool
	dry     bool // only whether there is an error counts
	brief   bool // lists, included files and users' own aliases are not read
	// retagged counts names that were expanded again for another tag.
	retagged int
	// verifies: the next hop of what is added is to be asked for the recipient.
	verifies bool
}

func (x *expansion) add(channel, host, user string, uid uint32) error {
	x.given++
	return x.give(Target{Channel: channel, Host: host, User: user, Privilege: uid, Via: x.via, Owner: x.owner, VERP: x.verp, Verify: x.verifies})
}

func (x *expansion) fail(why string, m address.Mailbox) error { return x.failText(why, m, "") }

// maxText bounds what a report says of a recipient. Bytes.
const maxText = 1500

func (x *expansion) failText(why string, m address.Mailbox, text string) error {
	if n := len(text); n > maxText {
		text = strings.ToValidUTF8(text[:maxText/2], "") + " ... " + strings.ToValidUTF8(text[n-maxText/2:], "")
	}
	return x.add(Error, ErrorHost(why, text), m.String(), Nobody)
}

// traceStep passes a step to the query's Trace, if it has one.
func (x *expansion) traceStep(m address.Mailbox, table string, f found, result string, args ...any) {
	if x.trace == nil {
		return
	}
	if len(args) > 0 {
		result = fmt.Sprintf(result, args...)
	}
	x.trace(Step{Depth: len(x.path), Address: m.String(), Table: table, Where: f.where.String(), Key: f.key, Result: result})
}

const (
	noEntry = "no entry"
	again   = "leads back here: not taken again"
)

// mailbox resolves an address. final: it is not to be looked up in aliases.
func (x *expansion) mailbox(m address.Mailbox, final bool) error {
	if m.IsNull() || m.Local == "" {
		x.traceStep(m, "address", found{}, "not an address")
		return x.fail(ErrBadAddress, m)
	}
	domain := x.t.hostname
	if m.Domain != "" {
		d, err := m.ASCIIDomain()
		if err != nil {
			x.traceStep(m, "address", found{}, "the domain is none: %v", err)
			return x.fail(ErrBadAddress, m)
		}
		domain = d
	}
	if x.t.reverse != nil && m.Domain != "" {
		if to, ok, err := x.t.reverse(m); err != nil {
			x.traceStep(m, "srs", found{}, "%v", err)
			return x.failText("5.1.1", m, err.Error())
		} else if ok {
			x.traceStep(m, "srs", found{}, "%s", to)
			return x.within(frame{step{table: inSRS, key: strings.ToLower(m.Local)}, m.String(), where{file: "SRSSECRETS"}}, func() error { return x.mailbox(to, false) })
		}
	}
	if has(x.t.fqdn) && !final {
		key := strings.ToLower(m.Local) + "@" + domain
		f, ext, ok, err := x.whole(m, key)
		if err != nil {
			return err
		}
		// An address that leads to itself goes on to the other tables.
		s := step{table: inFQDN, key: key}
		if ext != "" && x.t.extend.Virtual {
			s.key, s.tag = key[:len(key)-len(domain)-1-len(ext)]+"@"+domain, ext
		}
		switch {
		case !ok:
			x.traceStep(m, "fqdnaliases", f, noEntry)
		case x.path.has(s):
			x.traceStep(m, "fqdnaliases", f, again)
		default:
			if s.tag != "" {
				f.values = x.t.extended(f.values, m.Local[:len(m.Local)-len(ext)], domain, ext)
			}
			return x.expand(s, m, "fqdnaliases", f)
		}
	}
	class, f, err := x.t.classOf(x.lookups, domain)
	switch {
	case err != nil:
		return err
	case class == ClassDefault:
		x.traceStep(m, "localnames", f, noEntry)
		return x.remote(m, domain, final)
	case class != ClassLocal:
		return x.classed(class, m, domain, f, final)
	}
	if x.trace != nil && m.Domain != "" {
		x.traceStep(m, "localnames", f, "%s is ours", domain)
	}
	return x.user(m, domain, final)
}

// whole looks an address up in fqdnaliases: itself, without its tag, its domain. ext is the tag
// that it was found without.
func (x *expansion) whole(m address.Mailbox, key string) (f found, ext string, ok bool, err error) {
	if f, ok, err = x.t.find(x.lookups, text.FQDNAliases, key); ok || err != nil {
		return f, "", ok, err
	}
	at := key[strings.LastIndexByte(key, '@'):]
	if base, _, tagged := m.SplitTag(x.t.subaddress); tagged {
		if f, ok, err = x.t.find(x.lookups, text.FQDNAliases, strings.ToLower(base.Local)+at); ok || err != nil {
			return f, extension(m, base.Local), ok, err
		}
	}
	f, ok, err = x.t.find(x.lookups, text.FQDNAliases, at)
	return f, "", ok, err
}

// remote gives an address to its domain's route.
func (x *expansion) remote(m address.Mailbox, domain string, final bool) error {
	f, ok, err := x.t.routeOf(x.lookups, domain, x.report)
	if err != nil {
		return err
	}
	to := f.route
	if !ok {
		to.Channel = SMTP
	}
	if to.Channel == Local {
		x.verifies = false
		x.traceStep(m, "routes", f, "%s is ours", domain)
		return x.user(m, domain, final)
	}
	if to.Host == "" {
		to.Host = domain
		if v6, ok := strings.CutPrefix(domain, "[ipv6:"); ok {
			to.Host = "[" + v6
		}
	}
	if x.trace != nil {
		none := ""
		if !ok {
			none = "no entry: "
		}
		x.traceStep(m, "routes", f, "%s%s!%s", none, to.Channel, to.Host)
	}
	return x.add(to.Channel, to.Host, m.String(), Nobody)
}

// leads reports whether all targets of a value can be delivered. Nothing is given.
func (x *expansion) leads(s step, m, to address.Mailbox) (bool, error) {
	try := *x
	try.done, try.trace, try.dry = maps.Clone(x.done), nil, true
	try.path = x.path[:len(x.path):len(x.path)]
	try.give = func(t Target) error {
		if t.Channel == Error {
			return errUndeliverable
		}
		return nil
	}
	err := try.expand(s, m, "", found{entry: entry{values: []text.Value{{Mailbox: to}}}})
	if errors.Is(err, errUndeliverable) {
		return false, nil
	}
	return err == nil, err
}

var errUndeliverable = errors.New("a target cannot be delivered")

// first expands the first of some addresses that lead to somebody.
func (x *expansion) first(s step, m address.Mailbox, table string, f found, list ...address.Mailbox) (bool, error) {
	if x.path.has(s) {
		return false, nil
	}
	for _, to := range list {
		good, err := x.leads(s, m, to)
		if err != nil {
			return false, err
		}
		if good && x.dry {
			return true, nil // again would be twice as much at each step
		}
		if good {
			f.values = []text.Value{{Mailbox: to}}
			return true, x.expand(s, m, table, f)
		}
	}
	return false, nil
}

// expand resolves the values that an address has in a table.
func (x *expansion) expand(s step, m address.Mailbox, table string, f found) error {
	if x.trace != nil && table != "" {
		x.traceStep(m, table, f, "%s", showValues(f.values))
	}
	return x.within(frame{s, m.String(), f.where}, func() error {
		return x.values(f.values, m, f.rights)
	})
}

// value resolves one value of m, which acts with rights.
func (x *expansion) value(v *text.Value, m address.Mailbox, may rights) error {
	switch v.Kind {
	case text.ToPipe:
		return x.act(Pipe, v.Text, m, may)
	case text.ToFile:
		if v.Text == "/dev/null" {
			return x.add(Bitbucket, "-", v.Text, Nobody)
		}
		return x.act(File, v.Text, m, may)
	case text.ToInclude:
		return x.include(v.Text, m, may)
	default:
		to := v.Mailbox
		if strings.Contains(to.Local, text.UserPart) {
			to.Local = strings.ReplaceAll(to.Local, text.UserPart, m.Local)
		}
		return x.mailbox(to, v.Final)
	}
}

// act adds a program or a file. The user nobody may not have it run or written: that would
// be anyone who can write the file that names it (M48).
func (x *expansion) act(channel, what string, m address.Mailbox, may rights) error {
	if may.uid != Nobody {
		return x.add(channel, channel+"."+strconv.FormatUint(uint64(may.uid), 10), what, may.uid)
	}
	at := where{}
	if len(x.path) > 0 {
		at = x.path[len(x.path)-1].where
	}
	reason := fmt.Sprintf("%s in %s: %s", what, at, may.why)
	x.traceStep(m, "address", found{where: at}, "refused: %s", reason)
	if x.trace == nil {
		x.t.log.Warn("target-refused", "rcpt", x.rcpt.String(), "target", what, "where", at.String(), "reason", may.why)
	}
	return x.failText(ErrUnsafe, m, reason)
}

// showValues writes values as written in tables, for people; of many the first.
func showValues(list []text.Value) string {
	const most = 10
	var b strings.Builder
	for i, v := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == most {
			fmt.Fprintf(&b, "and %d more", len(list)-most)
			break
		}
		b.WriteString(showValue(&v))
	}
	return b.String()
}

func showValue(v *text.Value) string {
	switch {
	case v.Kind == text.ToInclude:
		return ":include:" + v.Text
	case v.Kind != text.ToAddress:
		return v.Text
	case v.Final:
		return `\` + v.Mailbox.String()
	}
	return v.Mailbox.String()
}
