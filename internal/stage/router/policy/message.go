package policy

import (
	"math"
	"net/netip"
	"sort"
	"strings"
	"time"

	"go.starlark.net/starlark"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
)

// Message is what a program may know of a message.
type Message struct {
	ID       string // spool ID
	Sender   address.Mailbox
	External bool // came from outside
	Report   bool // is a report
	Size     int64
	Accepted time.Time
	UID      uint32 // owner of the file
	Login    string // of the local submitter; "": it came from outside
	User     string // who has authenticated and submitted it by SMTP; ""
	RcvdFrom string // the envelope's rcvdfrom, if it is believed
	Protocol string // with
	Ident    string // identinfo
	Header   []envelope.Field
	// Recipients are those of the envelope, as written there.
	Recipients []string
}

// Recipient is one recipient of the envelope.
type Recipient struct {
	Address address.Mailbox
	Domain  string // lower case, A-labels; of a bare name the host's
	Local   bool   // in a domain of ours
	DSN     string // the todsn line
}

// object is a value with attributes that a program may read.
type object struct {
	kind  string
	text  string
	attrs starlark.StringDict
}

func (o *object) String() string        { return o.text }
func (o *object) Type() string          { return o.kind }
func (o *object) Freeze()               {} // nothing in it can be changed
func (o *object) Truth() starlark.Bool  { return true }
func (o *object) Hash() (uint32, error) { return starlark.String(o.text).Hash() }
func (o *object) AttrNames() []string {
	names := o.attrs.Keys()
	sort.Strings(names)
	return names
}
func (o *object) Attr(name string) (starlark.Value, error) { return o.attrs[name], nil }

func (m *Message) object(hostname string) *object {
	clientName, client := clientOf(m.RcvdFrom)
	list := make([]starlark.Value, len(m.Recipients))
	for i, r := range m.Recipients {
		list[i] = starlark.String(r)
	}
	recipients := starlark.NewList(list)
	recipients.Freeze()
	login := starlark.Value(starlark.None)
	if m.Login != "" {
		login = starlark.String(m.Login)
	}
	user := starlark.Value(starlark.None)
	if m.User != "" {
		user = starlark.String(m.User)
	}
	return &object{"message", "message " + m.ID, starlark.StringDict{
		"id":            starlark.String(m.ID),
		"sender":        starlark.String(m.Sender.String()),
		"sender_local":  starlark.String(m.Sender.Local),
		"sender_domain": starlark.String(domainOf(m.Sender, hostname)),
		"external":      starlark.Bool(m.External),
		"report":        starlark.Bool(m.Report),
		"size":          starlark.MakeInt64(m.Size),
		"time":          timeObject(m.Accepted),
		"uid":           starlark.MakeUint64(uint64(m.UID)),
		"login":         login,
		"user":          user,
		"client":        starlark.String(client),
		"client_name":   starlark.String(clientName),
		"protocol":      starlark.String(m.Protocol),
		"ident":         starlark.String(m.Ident),
		"recipients":    recipients,
		"count":         starlark.MakeInt(len(m.Recipients)),
		"header":        starlark.NewBuiltin("header", m.header),
		"headers":       starlark.NewBuiltin("headers", m.headers),
	}}
}

func (r *Recipient) object() *object {
	return &object{"recipient", r.Address.String(), starlark.StringDict{
		"address":  starlark.String(r.Address.String()),
		"local":    starlark.String(r.Address.Local),
		"domain":   starlark.String(r.Domain),
		"is_local": starlark.Bool(r.Local),
		"dsn":      starlark.String(r.DSN),
	}}
}

// domainOf returns an address's domain in the form that is compared; of a bare name the
// host's, of the null sender none.
func domainOf(m address.Mailbox, hostname string) string {
	if m.IsNull() {
		return ""
	}
	if m.Domain == "" {
		return hostname
	}
	d, err := m.ASCIIDomain()
	if err != nil {
		return strings.ToLower(m.Domain)
	}
	return d
}

// timeObject returns a time in this machine's zone.
func timeObject(t time.Time) *object {
	t = t.Local()
	return &object{"time", t.Format(time.RFC3339), starlark.StringDict{
		"unix":    starlark.MakeInt64(t.Unix()),
		"date":    starlark.String(t.Format(time.DateOnly)),
		"year":    starlark.MakeInt(t.Year()),
		"month":   starlark.MakeInt(int(t.Month())),
		"day":     starlark.MakeInt(t.Day()),
		"hour":    starlark.MakeInt(t.Hour()),
		"minute":  starlark.MakeInt(t.Minute()),
		"weekday": starlark.MakeInt((int(t.Weekday()) + 6) % 7), // 0: Monday
	}}
}

// clientOf takes name and IP address from a rcvdfrom line:
// "client.example ([192.0.2.1]:37290 ...)".
func clientOf(s string) (name, ip string) {
	name, rest, _ := strings.Cut(s, " ")
	for rest != "" {
		var inside string
		var ok bool
		if _, rest, ok = strings.Cut(rest, "["); !ok {
			break
		}
		if inside, rest, ok = strings.Cut(rest, "]"); !ok {
			break
		}
		if len(inside) > 5 && strings.EqualFold(inside[:5], "IPv6:") {
			inside = inside[5:]
		}
		if a, err := netip.ParseAddr(inside); err == nil {
			return name, a.Unmap().WithZone("").String()
		}
	}
	return name, ""
}

// header is m.header(name): the value of the first such field, None if there is none.
func (m *Message) header(_ *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	list, err := m.values(b, a, kw, 1)
	if err != nil || len(list) == 0 {
		return starlark.None, err
	}
	return list[0], nil
}

// headers is m.headers(name): those of all.
func (m *Message) headers(_ *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	list, err := m.values(b, a, kw, math.MaxInt)
	return starlark.NewList(list), err
}

func (m *Message) values(b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple, most int) ([]starlark.Value, error) {
	var name string
	if err := starlark.UnpackArgs(b.Name(), a, kw, "name", &name); err != nil {
		return nil, err
	}
	var list []starlark.Value
	for i := range m.Header {
		f := &m.Header[i]
		if !strings.EqualFold(f.Name, name) {
			continue
		}
		if list = append(list, starlark.String(strings.ToValidUTF8(f.Value(), "\uFFFD"))); len(list) == most {
			break
		}
	}
	return list, nil
}
