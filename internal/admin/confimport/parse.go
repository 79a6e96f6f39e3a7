package confimport

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
)

// Limits of what is read.
const (
	maxFile  = 16 << 20 // bytes of a file
	maxWork  = 8 << 20  // bytes of all that parameters stand for
	maxLines = 5000     // parameters of main.cf, services of master.cf; Postfix has 1000 and 40
	maxDepth = 20       // of parameters in parameters
)

// setting is a parameter as main.cf or an option in master.cf sets it.
type setting struct {
	name, value string // the value before its parameters are filled in
	file        string
	line        int
}

// service is an entry of master.cf.
type service struct {
	name, kind, command string
	private, chroot     bool
	processes           string    // how many of them may run; "-": default_process_limit
	options             []setting // -o NAME=VALUE
	args                []string
	line                int
}

// postfix is a configuration of Postfix.
type postfix struct {
	dir      string
	settings []setting
	services []service
	work     int    // bytes that parameters were expanded to, at each level, and 64 for each step
	excess   string // the parameter at which that was too much
}

// read reads main.cf and master.cf in a directory.
func read(dir string) (*postfix, error) {
	p := &postfix{dir: dir}
	lines, err := readLines(filepath.Join(dir, "main.cf"))
	if err != nil {
		return nil, err
	}
	if len(lines) > maxLines {
		return nil, &config.Error{File: lines[maxLines].file, Line: lines[maxLines].number, Reason: fmt.Sprintf("more than %d parameters", maxLines)}
	}
	for _, l := range lines {
		name, value, ok := strings.Cut(l.text, "=")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(name, " \t") {
			return nil, &config.Error{File: l.file, Line: l.number, Reason: fmt.Sprintf("not NAME = VALUE: %.60s", l.text)}
		}
		s := setting{name, strings.TrimSpace(value), l.file, l.number}
		if i := slices.IndexFunc(p.settings, func(o setting) bool { return o.name == name }); i >= 0 {
			p.settings[i] = s // the last one counts
		} else {
			p.settings = append(p.settings, s)
		}
	}
	lines, err = readLines(filepath.Join(dir, "master.cf"))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil // a null client may do without
	}
	if err != nil {
		return nil, err
	}
	if len(lines) > maxLines {
		return nil, &config.Error{File: lines[maxLines].file, Line: lines[maxLines].number, Reason: fmt.Sprintf("more than %d services", maxLines)}
	}
	for _, l := range lines {
		s, err := parseService(l)
		if err != nil {
			return nil, err
		}
		p.services = append(p.services, s)
	}
	return p, nil
}

// line is a line with those that continue it.
type line struct {
	text   string
	file   string
	number int // of the first
}

// readLines reads a file as postconf(5) describes it: # begins a comment at the start of a
// line only, and a line that begins with a blank continues the one before.
func readLines(path string) ([]line, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var g gatherer
	for l := range strings.Lines(text) {
		g.number++
		trimmed := strings.TrimSpace(l)
		switch {
		case trimmed == "" || trimmed[0] == '#':
		case l[0] == ' ' || l[0] == '\t':
			g.add(path, trimmed, " ", true)
		default:
			g.add(path, trimmed, "", false)
		}
	}
	return g.end(), nil
}

// gatherer collects lines with those that continue them.
type gatherer struct {
	list   []line
	parts  []string // of the last
	number int      // of the line that is read
}

// add adds a line, or with more continues the one before by sep and a text.
func (g *gatherer) add(path, text, sep string, more bool) {
	if more && len(g.list) > 0 {
		g.parts = append(g.parts, sep, text)
		return
	}
	g.end()
	g.list, g.parts = append(g.list, line{"", path, g.number}), append(g.parts[:0], text)
}

// end returns the lines.
func (g *gatherer) end() []line {
	if n := len(g.list); n > 0 {
		g.list[n-1].text = strings.Join(g.parts, "")
	}
	return g.list
}

func readFile(path string) (string, error) {
	// A pipe is opened without waiting for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	var text []byte
	if err == nil {
		defer f.Close() // it was only read
		var info fs.FileInfo
		info, err = f.Stat()
		switch {
		case err != nil:
		case !info.Mode().IsRegular():
			err = errors.New("not a regular file")
		case info.Size() > maxFile:
			err = fmt.Errorf("%d bytes: larger than %d", info.Size(), maxFile)
		default:
			text, err = io.ReadAll(io.LimitReader(f, maxFile+1))
		}
		if err == nil && bytes.IndexByte(text, 0) >= 0 {
			err = errors.New("it has NUL bytes: not a text")
		}
	}
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		return "", &config.Error{File: path, Reason: "cannot be read", Err: perr.Err}
	}
	if err != nil {
		return "", &config.Error{File: path, Reason: "cannot be read", Err: err}
	}
	return string(text), nil
}

// parseService reads an entry of master.cf: service, type, private, unprivileged, chroot,
// wakeup, processes, and the command with its arguments.
func parseService(l line) (service, error) {
	fields := words(l.text)
	if len(fields) < 8 {
		return service{}, &config.Error{File: l.file, Line: l.number, Reason: "a service has eight fields: " + l.text}
	}
	s := service{
		name: fields[0], kind: fields[1], processes: fields[6], command: fields[7], line: l.number,
		private: fields[2] != "n", chroot: fields[4] == "y", args: fields[8:],
	}
	for i := 8; i < len(fields); i++ {
		text := fields[i]
		switch {
		case text == "-o" && i+1 < len(fields):
			i++
			text = fields[i]
		case strings.HasPrefix(text, "-o"):
			text = text[2:]
		default:
			continue
		}
		text = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}"))
		if name, value, ok := strings.Cut(text, "="); ok {
			s.options = append(s.options, setting{strings.TrimSpace(name), strings.TrimSpace(value), l.file, l.number})
		}
	}
	return s, nil
}

// words splits text at blanks outside braces.
func words(text string) []string {
	var list []string
	depth, begin := 0, -1
	for i := 0; i <= len(text); i++ {
		if i == len(text) || depth == 0 && strings.IndexByte(" \t\r\n", text[i]) >= 0 {
			if begin >= 0 {
				list = append(list, text[begin:i])
			}
			begin = -1
			continue
		}
		if begin < 0 {
			begin = i
		}
		switch text[i] {
		case '{':
			depth++
		case '}':
			depth = max(0, depth-1)
		}
	}
	return list
}

// list splits a value at commas and blanks outside braces.
func list(text string) []string {
	var out []string
	depth := 0
	flat := []byte(text)
	for i, c := range flat {
		switch {
		case c == '{':
			depth++
		case c == '}':
			depth = max(0, depth-1)
		case c == ',' && depth == 0:
			flat[i] = ' '
		}
	}
	out = words(string(flat))
	return out
}

// defaults has those parameters whose built-in values matter here.
func defaults() map[string]string {
	return map[string]string{
		"mydestination": "$myhostname, localhost.$mydomain, localhost", "myorigin": "$myhostname",
		"queue_directory": "/var/spool/postfix", "config_directory": "/etc/postfix", "data_directory": "/var/lib/postfix",
		"default_database_type": "hash", "alias_maps": "hash:/etc/aliases", "inet_interfaces": "all",
		"smtpd_banner": "$myhostname ESMTP $mail_name",
		"mynetworks":   "127.0.0.0/8 [::1]/128", "mail_name": "Postfix", "smtpd_sasl_type": "cyrus",
		"virtual_minimum_uid": "100", "virtual_transport": "virtual", "mailbox_size_limit": "51200000",
		"message_size_limit": "10240000", "smtpd_recipient_limit": "1000", "recipient_delimiter": "",
		"mail_spool_directory": "/var/mail", "virtual_alias_domains": "$virtual_alias_maps", "relay_domains": "",
		"smtpd_relay_restrictions": "permit_mynetworks, permit_sasl_authenticated, defer_unauth_destination",
		"default_transport":        "smtp", "local_transport": "local:$myhostname", "relay_transport": "relay",
		"milter_default_action": "tempfail", "postscreen_dnsbl_threshold": "1", "postscreen_dnsbl_action": "ignore",
		"anvil_rate_time_unit": "60s",
	}
}

// get returns a parameter with the parameters in it filled in, those of a service first.
func (p *postfix) get(name string, of ...service) string {
	return p.value(name, of, 0)
}

// isSet reports whether main.cf sets a parameter.
func (p *postfix) isSet(name string) bool {
	return slices.ContainsFunc(p.settings, func(s setting) bool { return s.name == name })
}

func (p *postfix) value(name string, of []service, depth int) string {
	for _, s := range of {
		for _, o := range slices.Backward(s.options) {
			if o.name == name {
				return p.expand(o.value, of, depth+1)
			}
		}
	}
	for _, s := range p.settings {
		if s.name == name {
			return p.expand(s.value, of, depth+1)
		}
	}
	switch name {
	case "myhostname":
		host, _ := os.Hostname()
		return host
	case "mydomain":
		if _, domain, ok := strings.Cut(p.value("myhostname", of, depth+1), "."); ok {
			return domain
		}
		return "localdomain"
	}
	return p.expand(defaults()[name], of, depth+1)
}

// expand fills in $NAME, ${NAME}, $(NAME), ${NAME?TEXT}, ${NAME:TEXT}, ${NAME?{TEXT}:{TEXT}},
// ${{A}==?{B}...} is left empty, and $$ is a dollar sign.
func (p *postfix) expand(text string, of []service, depth int) string {
	if depth > maxDepth || p.excess != "" {
		return text
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		if p.work += len(before) + 64; p.work > maxWork {
			p.excess = fmt.Sprintf("%.60q", text)
			return b.String()
		}
		b.WriteString(before)
		if !found {
			return b.String()
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "{") || strings.HasPrefix(rest, "("):
			end := closing(rest)
			if end < 0 {
				b.WriteString("$" + rest)
				return b.String()
			}
			value := p.conditional(rest[1:end], of, depth+1)
			p.work += len(value)
			b.WriteString(value)
			text = rest[end+1:]
		default:
			n := 0
			for n < len(rest) && (rest[n] == '_' || rest[n] >= '0' && rest[n] <= '9' || rest[n]|0x20 >= 'a' && rest[n]|0x20 <= 'z') {
				n++
			}
			if name := rest[:n]; n == 0 || name == strings.ToUpper(name) { // of the environment of a command
				b.WriteString("$" + name)
			} else {
				value := p.value(rest[:n], of, depth+1)
				p.work += len(value)
				b.WriteString(value)
			}
			text = rest[n:]
		}
	}
}

// closing returns where the brace or parenthesis that text begins with is closed; -1: nowhere.
func closing(text string) int {
	begin, end := text[0], byte('}')
	if begin == '(' {
		end = ')'
	}
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case begin:
			depth++
		case end:
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// conditional returns what ${...} stands for.
func (p *postfix) conditional(text string, of []service, depth int) string {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "{") { // {A} == {B}
		return p.comparison(text, of, depth)
	}
	at := strings.IndexAny(text, "?:")
	if at < 0 {
		return p.value(text, of, depth)
	}
	set := p.value(strings.TrimSpace(text[:at]), of, depth) != ""
	return p.choose(set, text[at:], of, depth)
}

// choose returns what follows ? if yes, else what follows :.
func (p *postfix) choose(yes bool, rest string, of []service, depth int) string {
	then, otherwise := "", ""
	part := func(s string) (string, string) {
		s = strings.TrimLeft(s, " \t")
		if strings.HasPrefix(s, "{") {
			if end := closing(s); end >= 0 {
				return strings.TrimSpace(s[1:end]), strings.TrimLeft(s[end+1:], " \t")
			}
		}
		return s, ""
	}
	if after, ok := strings.CutPrefix(rest, "?"); ok {
		then, rest = part(after)
	}
	if after, ok := strings.CutPrefix(rest, ":"); ok {
		otherwise, _ = part(after)
	}
	return p.expand(map[bool]string{true: then, false: otherwise}[yes], of, depth)
}

func (p *postfix) comparison(text string, of []service, depth int) string {
	end := closing(text)
	if end < 0 {
		return ""
	}
	left, rest := p.expand(strings.TrimSpace(text[1:end]), of, depth), strings.TrimSpace(text[end+1:])
	for _, operator := range []string{"==", "!=", "<=", ">=", "<", ">"} {
		after, ok := strings.CutPrefix(rest, operator)
		if !ok {
			continue
		}
		after = strings.TrimSpace(after)
		if !strings.HasPrefix(after, "{") {
			return ""
		}
		end := closing(after)
		if end < 0 {
			return ""
		}
		c := compare(left, p.expand(strings.TrimSpace(after[1:end]), of, depth))
		yes := map[string]bool{"==": c == 0, "!=": c != 0, "<=": c <= 0, ">=": c >= 0, "<": c < 0, ">": c > 0}[operator]
		return p.choose(yes, strings.TrimSpace(after[end+1:]), of, depth)
	}
	return ""
}

// compare compares numbers as numbers and other text as text.
func compare(a, b string) int {
	var x, y int
	_, errA := fmt.Sscanf(a, "%d", &x)
	_, errB := fmt.Sscanf(b, "%d", &y)
	if errA == nil && errB == nil {
		return cmp.Compare(x, y)
	}
	return strings.Compare(a, b)
}
