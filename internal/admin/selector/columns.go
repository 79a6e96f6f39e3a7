package selector

import (
	"cmp"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"zmailer/internal/run/glob"
)

// column is something that a recipient can be chosen by.
type column struct {
	name, usage string
	text        func(f *Facts) []string        // of those that are compared with patterns
	check       func(s string) (string, error) // makes a pattern canonical; nil: as it is
	address     bool

	number     func(f *Facts) int64 // of those that have a bound
	less       bool                 // they match below it
	bound      func(s string) (int64, error)
	printBound func(n int64) string
}

// columns returns all of them, in the order of help texts.
func columns() []column {
	age := func(f *Facts) int64 { return int64(f.Age) }
	size := func(f *Facts) int64 { return f.Size }
	one := func(get func(f *Facts) string) func(f *Facts) []string {
		return func(f *Facts) []string { return []string{get(f)} }
	}
	// A message whose recipients are not known has none that could match.
	known := func(get func(f *Facts) string) func(f *Facts) []string {
		return func(f *Facts) []string {
			if f.To == "" {
				return nil
			}
			return []string{get(f)}
		}
	}
	// What is not known matches nothing, * included.
	given := func(get func(f *Facts) []string) func(f *Facts) []string {
		return func(f *Facts) []string { return slices.DeleteFunc(get(f), func(s string) bool { return s == "" }) }
	}
	return []column{
		{name: "from", usage: "sender: `GLOB` like *@example.com, @example.com, or <> for the null sender",
			text: one(func(f *Facts) string { return f.From }), check: addressPattern, address: true},
		{name: "to", usage: "recipient: `GLOB` like user@*, @example.com",
			text: known(func(f *Facts) string { return f.To }), check: addressPattern, address: true},
		{name: "orig-to", usage: "recipient before aliases: `GLOB` like user@*", text: known(func(f *Facts) string { return cmp.Or(f.OrigTo, f.To) }), check: addressPattern, address: true},
		{name: "user", usage: "user who logged in to submit it: `GLOB`", text: given(func(f *Facts) []string { return []string{f.User} })},
		{name: "client", usage: "SMTP client that it came from: `ADDRESS`, network like 192.0.2.0/24, or GLOB of its host name",
			text: given(func(f *Facts) []string { return []string{f.Client, f.ClientName} }), check: network},
		{name: "message-id", usage: "Message-ID: `GLOB`, with or without < >", text: given(func(f *Facts) []string { return []string{bare(f.MessageID)} }), check: messageID},
		{name: "host", usage: "host that the recipient goes to: `GLOB`", text: known(func(f *Facts) string { return f.Host })},
		{name: "channel", usage: "channel that it goes over: `GLOB`", text: known(func(f *Facts) string { return f.Channel })},
		{name: "state", usage: "`STATE`: " + strings.Join(States(), " "), text: func(f *Facts) []string { return f.States }, check: stateName},
		{name: "older", usage: "accepted that long ago, or longer: `TIME` like 90s, 15m, 2h, 3d, 1w, 1d12h",
			number: age, bound: timeBound, printBound: printTime},
		{name: "younger", usage: "accepted less than `TIME` ago", number: age, less: true, bound: timeBound, printBound: printTime},
		{name: "larger", usage: "at least `SIZE` bytes; 10k, 4M, 1G", number: size, bound: sizeBound, printBound: printSize},
		{name: "smaller", usage: "less than `SIZE` bytes", number: size, less: true, bound: sizeBound, printBound: printSize},
		{name: "cause", usage: "why it was put aside or frozen, as in its name in deferred/ or freezer/: `GLOB`", text: one(func(f *Facts) string { return f.Cause })},
		{name: "reply", usage: "last answer: `REGEX`, in any case", text: nil},
		{name: "id", usage: "spool `ID`", text: one(func(f *Facts) string { return f.ID }), check: spoolID},
	}
}

// Names returns the columns' names, with what help texts say of them.
func Names() (names, usages []string) {
	for _, c := range columns() {
		names, usages = append(names, c.name), append(usages, c.usage)
	}
	return names, usages
}

// States returns the values of state. open is every state in which somebody
// still waits for the mail.
func States() []string {
	return []string{
		"open", "waiting", "due", "delivering", "held", "suspended", "frozen", "unserved", "locked", "delivered", "failed", "removed", "rerouted",
		"to-route", "accepted", "claimed", "handed-over", "queued", "finishing", "deferred", "set-aside", "copy",
	}
}

func find(name string) *column {
	for _, c := range columns() {
		if c.name == name {
			return &c
		}
	}
	return nil
}

func stateName(s string) (string, error) {
	s = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(s), " ", "-"))
	if !slices.Contains(States(), s) {
		return "", errors.New(strconv.Quote(s) + " is no state; they are " + strings.Join(States(), " "))
	}
	return s, nil
}

// addressPattern takes the brackets off, and makes a domain alone match every user
// in it.
func addressPattern(s string) (string, error) {
	if inner, ok := strings.CutPrefix(s, "<"); ok {
		if inner, ok = strings.CutSuffix(inner, ">"); !ok || strings.ContainsAny(inner, "<>") {
			return "", errors.New(strconv.Quote(s) + " is no address in < >")
		}
		s = inner
	}
	if strings.HasPrefix(s, "@") {
		return "*" + s, nil
	}
	return s, nil
}

// network checks a network in the notation of CIDR; an address is a network of one.
func network(s string) (string, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Unmap().String(), nil
	}
	if !strings.Contains(s, "/") {
		return s, nil
	}
	n, err := netip.ParsePrefix(s)
	if err != nil {
		return "", errors.New(strconv.Quote(s) + " is no network; write it like 192.0.2.0/24 or 2001:db8::/32")
	}
	if n != n.Masked() {
		return "", errors.New(strconv.Quote(s) + " has bits behind its length; write " + n.Masked().String())
	}
	return s, nil
}

func messageID(s string) (string, error) { return bare(s), nil }

// bare takes the brackets off.
func bare(s string) string { return strings.TrimSuffix(strings.TrimPrefix(s, "<"), ">") }

func spoolID(s string) (string, error) {
	rest, ok := strings.CutPrefix(s, "S")
	ino, stamp, found := strings.Cut(rest, "A")
	if !ok || !found || ino == "" || stamp == "" || strings.Trim(ino, "0123456789") != "" || strings.ContainsFunc(stamp, notSpool) {
		return "", errors.New(strconv.Quote(s) + " is no spool ID; zmctl queue shows them")
	}
	return s, nil
}

func notSpool(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-'
}

// compile makes a pattern of a text; * matches any text, ? one character.
func (c *column) compile(s string) (pattern, error) {
	if c.check != nil {
		var err error
		if s, err = c.check(s); err != nil {
			return pattern{}, err
		}
	}
	p := pattern{text: s, exact: c.name == "id"}
	if c.name == "client" {
		p.net, _ = netip.ParsePrefix(s)
	}
	if p.exact || c.name == "state" || !strings.ContainsAny(s, "*?") {
		return p, nil
	}
	if !utf8.ValidString(s) {
		return pattern{}, errors.New("the pattern is not valid UTF-8")
	}
	p.glob = glob.Simple(strings.ToLower(s))
	return p, nil
}

// units of a time, the longest first.
var units = [...]struct {
	letter byte
	span   time.Duration
}{{'w', 7 * 24 * time.Hour}, {'d', 24 * time.Hour}, {'h', time.Hour}, {'m', time.Minute}, {'s', time.Second}}

// Time reads a time like 90s, 15m, 2h, 3d, 1w, 1d12h.
func Time(s string) (time.Duration, error) {
	n, err := timeBound(s)
	return time.Duration(n), err
}

func timeBound(s string) (int64, error) {
	bad := errors.New(strconv.Quote(s) + " is no time; write it like 90s, 15m, 2h, 3d, 1w, 1d12h")
	var sum int64
	rest := s
	for rest != "" {
		i := 0
		for i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
			i++
		}
		n, err := strconv.ParseInt(rest[:i], 10, 64)
		if err != nil || i == len(rest) {
			return 0, bad
		}
		u := slices.IndexFunc(units[:], func(u struct {
			letter byte
			span   time.Duration
		}) bool {
			return u.letter == rest[i]
		})
		if u < 0 || n > (math.MaxInt64-sum)/int64(units[u].span) {
			return 0, bad
		}
		sum += n * int64(units[u].span)
		rest = rest[i+1:]
	}
	if s == "" {
		return 0, bad
	}
	return sum, nil
}

func printTime(n int64) string {
	if n == 0 {
		return "0s"
	}
	var b strings.Builder
	for _, u := range units {
		if u.letter == 'w' && n%int64(u.span) != 0 {
			continue // 8d is clearer than 1w1d
		}
		if k := n / int64(u.span); k > 0 {
			b.WriteString(strconv.FormatInt(k, 10) + string(u.letter))
			n -= k * int64(u.span)
		}
	}
	return b.String()
}

const sizeUnits = "kMGT"

func sizeBound(s string) (int64, error) {
	bad := errors.New(strconv.Quote(s) + " is no size; write bytes, or 10k, 4M, 1G")
	digits, shift := s, 0
	if s != "" {
		if i := strings.IndexByte(strings.ToLower(sizeUnits), s[len(s)-1]|0x20); i >= 0 {
			digits, shift = s[:len(s)-1], 10*(i+1)
		}
	}
	if strings.Trim(digits, "0123456789") != "" {
		return 0, bad
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, bad
	}
	return n << shift, nil
}

func printSize(n int64) string {
	unit := ""
	for i := 0; i < len(sizeUnits) && n >= 1024 && n%1024 == 0; i++ {
		n /= 1024
		unit = sizeUnits[i : i+1]
	}
	return strconv.FormatInt(n, 10) + unit
}
