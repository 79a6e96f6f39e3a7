package confimport

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"zmailer/internal/run/config"
)

// eximConfig makes our files from a configuration of Exim.
type eximConfig struct {
	dir      string // of the file
	b        builder
	rows     []Row
	clause   map[string]string
	settings []setting         // as they are written; a row is made of each
	value    map[string]string // of the settings
	host     string            // HOSTNAME
	mailname string            // qualify_domain
	local    []string          // local domains
}

// Files of Exim as Debian has it.
const (
	debianConf = "update-exim4.conf.conf" // what debconf asks
	macroFile  = "exim4.conf.localmacros"
)

// Exim converts the configuration at path: Debian's update-exim4.conf.conf, Exim's own file, or
// the directory of either. The settings in keep that are not empty are put into zmailer.conf.
func Exim(path string, keep map[string]string) (*Result, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	file := path
	if info.IsDir() {
		// Debian's script does nothing where there is an exim4.conf.
		if file = filepath.Join(path, "exim4.conf"); !exists(file) {
			file = filepath.Join(path, debianConf)
		}
	}
	x := &eximConfig{dir: filepath.Dir(file), value: map[string]string{}, clause: map[string]string{"expiry=3d ": "expiry=4d "}} // Exim's default
	for _, name := range slices.Sorted(maps.Keys(keep)) {
		if keep[name] != "" {
			x.b.set(name, keep[name], "")
		}
	}
	if filepath.Base(file) == debianConf {
		err = x.debian(file)
	} else {
		err = x.plain(file)
	}
	if err != nil {
		return nil, err
	}
	writeClauses(&x.b, x.clause)
	slices.SortStableFunc(x.rows, func(a, b Row) int { return strings.Compare(a.Setting, b.Setting) })
	return &Result{Files: x.b.files(fmt.Sprintf("# Made by zmctl import-config from %s; report.txt says what became of each setting.\n", file)), Rows: x.rows}, nil
}

// row reports what became of a setting, or of a file.
func (x *eximConfig) row(s setting, outcome Outcome, page, format string, args ...any) {
	where := s.file
	if s.line > 0 {
		where = fmt.Sprintf("%s:%d", s.file, s.line)
	}
	x.rows = append(x.rows, Row{s.name, s.value, where, outcome, fmt.Sprintf(format, args...), page})
}

// find returns the path of a file of /etc or /etc/exim4, or "" if it does not exist. The
// configuration may be a copy from another machine, with all files in one directory.
func (x *eximConfig) find(name string) string {
	path := filepath.Join(x.dir, name)
	if exists(path) {
		return path
	}
	if etc := filepath.Join("/etc", name); filepath.Clean(x.dir) == "/etc/exim4" && exists(etc) {
		return etc
	}
	return ""
}

// text returns the file of a name, and a row that it could not be read.
func (x *eximConfig) text(name string) (path, text string) {
	if path = x.find(name); path == "" {
		return "", ""
	}
	if info, err := os.Stat(path); err == nil && info.Mode()&0o004 == 0 {
		x.b.closed = true
	}
	text, err := readFile(path)
	if err != nil {
		x.row(setting{name: name, file: path}, ByHand, "", "%v", err)
		return "", ""
	}
	return path, text
}

// names decides HOSTNAME and the name in senders.
func (x *eximConfig) names(host string) {
	_, text := x.text("mailname")
	x.mailname, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	if x.host = host; x.host == "" && filepath.Clean(x.dir) == "/etc/exim4" {
		x.host, _ = os.Hostname()
	}
	if x.host == "" || !strings.Contains(x.host, ".") && x.mailname != "" {
		x.host = x.mailname
	}
	if x.mailname == "" {
		x.mailname = x.host
	}
	x.b.set("HOSTNAME", x.host, "primary_hostname")
}

// eximList splits a list: at colons, a doubled one being part of the item, or at the character
// behind a leading "<".
func eximList(s string) (items []string) {
	s = strings.TrimSpace(s)
	sep := ":"
	if strings.HasPrefix(s, "<") && len(s) > 1 {
		sep, s = s[1:2], s[2:]
	} else if strings.Contains(s, ";") {
		sep = ";" // update-exim4.conf puts "<;" before every list
	}
	const double = "\x00"
	for _, item := range strings.Split(strings.ReplaceAll(s, sep+sep, double), sep) {
		if item = strings.TrimSpace(strings.ReplaceAll(item, double, sep)); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// domains writes a list of domains into a file; it returns what has no counterpart.
func (x *eximConfig) domains(list []string, file string) (kept, trouble []string) {
	for _, d := range list {
		switch {
		case d == "@":
			d = x.host
		case strings.HasPrefix(d, "*.") && !strings.ContainsAny(d[1:], "*/;^@"):
			d = d[1:]
		case strings.ContainsAny(d, "*/;^+@! ${}") || !isDomain(d):
			trouble = append(trouble, d+" is no domain")
			continue
		}
		if !slices.Contains(kept, d) {
			kept = append(kept, d)
		}
	}
	for _, d := range kept {
		if file != "" && d != x.host {
			x.b.add(file, d+"\n")
		}
	}
	return kept, trouble
}

// isDomain reports whether a text may be a line of a list of domains.
func isDomain(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '#' || r == '"' || r == 0xfffd })
}

// localDomains converts local_domains, and masquerades the host's name as the mail name.
func (x *eximConfig) localDomains(s setting, list []string) {
	var trouble []string
	x.local, trouble = x.domains(list, "localnames")
	x.outcome(s, "routing.md", "localnames", trouble)
	if x.mailname != x.host && x.readhost() == "" {
		x.b.add("masquerade", fmt.Sprintf("@%s: @%s\n", x.host, x.mailname))
	}
}

// readhost returns the domain at which senders at local domains appear; "": they appear as they are.
func (x *eximConfig) readhost() string {
	if x.value["dc_hide_mailname"] != "true" {
		return ""
	}
	return x.value["dc_readhost"]
}

// outcome reports what became of a setting of which parts may have no counterpart.
func (x *eximConfig) outcome(s setting, page, became string, trouble []string) {
	if trouble = firstOf(trouble); len(trouble) > 0 {
		x.row(s, ByHand, page, "%s; but %s", became, strings.Join(trouble, "; "))
		return
	}
	x.row(s, Converted, page, "%s", became)
}

// relayDomains converts relay_to_domains.
func (x *eximConfig) relayDomains(s setting, list []string) {
	kept, trouble := x.domains(list, "")
	var names []string
	for _, d := range kept {
		if !slices.Contains(x.local, d) {
			names = append(names, d)
		}
	}
	if len(names) > 0 {
		x.b.add("relaydomains", strings.Join(names, "\n")+"\n")
		x.b.set("RELAYDOMAINS", "relaydomains", s.name)
	}
	x.outcome(s, "relay-domains.md", "RELAYDOMAINS, the file relaydomains; list the recipients, too (RELAYRECIPIENTMAPS)", trouble)
}

// relayNets converts relay_from_hosts.
func (x *eximConfig) relayNets(s setting, list []string) {
	nets, trouble := []string{"127.0.0.0/8", "::1/128"}, []string(nil)
	for _, item := range list {
		if item == "127.0.0.1" || item == "::1" || item == "localhost" {
			continue
		}
		if prefix, err := netip.ParsePrefix(item); err == nil {
			nets = append(nets, prefix.Masked().String())
		} else if _, err := netip.ParseAddr(item); err == nil {
			nets = append(nets, item)
		} else {
			trouble = append(trouble, item+" is no network")
		}
	}
	x.b.set("RELAYNETS", strings.Join(nets, " "), s.name)
	x.outcome(s, "access.md", "RELAYNETS="+strings.Join(nets, " "), trouble)
}

// interfaces converts the addresses that are listened on, with ports as ADDRESS.PORT.
func (x *eximConfig) interfaces(s setting, list []string) {
	var listen, trouble []string
	for _, item := range list {
		port := "25"
		a, err := netip.ParseAddr(item)
		if i := strings.LastIndexByte(item, '.'); err != nil && i > 0 {
			port = item[i+1:]
			a, err = netip.ParseAddr(strings.Trim(item[:i], "[]"))
		}
		if err != nil || strings.Trim(port, "0123456789") != "" || port == "" {
			trouble = append(trouble, item+" is no address")
			continue
		}
		listen = append(listen, addressAndPort(a, port))
	}
	if len(list) == 0 {
		listen = []string{":25"}
	}
	if len(listen) > 0 {
		x.b.set("SMTPLISTEN", strings.Join(listen, " "), s.name)
	}
	x.outcome(s, "setup.md", "SMTPLISTEN="+strings.Join(listen, " "), trouble)
}

func addressAndPort(a netip.Addr, port string) string {
	if a.Is6() {
		return "[" + a.String() + "]:" + port
	}
	return a.String() + ":" + port
}

// smarthost returns the target of hosts that are reached without MX, HOST or HOST::PORT.
func smarthost(items []string) (target, host, why string) {
	if len(items) == 0 {
		return "", "", "no host is named"
	}
	if len(items) > 1 {
		why = "one host can be named: make a name with several addresses of " + strings.Join(items, ", ")
	}
	words := strings.Fields(items[0])
	host, port := words[0], ""
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		host = a.String()
	} else if name, number, ok := strings.Cut(strings.Replace(host, "::", ":", 1), ":"); ok {
		host, port = name, number
	}
	host = strings.TrimSuffix(host, "/MX")
	if a, err := netip.ParseAddr(host); err == nil && a.Is6() {
		host = "[" + host + "]"
	}
	if !isDomain(host) || strings.ContainsAny(host, "!${}:*") && !strings.HasPrefix(host, "[") || strings.Trim(port, "0123456789") != "" {
		return "", "", items[0] + " is no host"
	}
	target = "smtpx!" + host
	if port != "" {
		target, host = target+":"+port, host+":"+port
	}
	return target, host, why
}

// aliases converts a file of aliases.
//
// A satellite's catch-all entries for users would come before them; there each becomes an
// address in fqdnaliases.
func (x *eximConfig) aliases(name string) {
	path, text := x.text(name)
	if path == "" {
		return
	}
	file := "aliases"
	if x.b.tables["fqdnaliases"] != nil {
		file = "fqdnaliases"
	}
	var trouble []string
	for i, l := range logical(text, "#") {
		key, value, ok := strings.Cut(l, ":")
		if value = strings.TrimSpace(value); !ok {
			key, value, _ = strings.Cut(strings.TrimSpace(l), " ")
		}
		switch {
		case value == ":blackhole:":
			value = "/dev/null"
		case strings.Contains(value, ":fail:") || strings.Contains(value, ":defer:") || strings.Contains(value, ":blackhole:") || strings.Contains(value, ":unknown:"):
			trouble = append(trouble, fmt.Sprintf("entry %d, %s: %s: an entry of routes, or router.star, refuses mail", i+1, strings.TrimSpace(key), value))
			continue
		case strings.Contains(value, "${"):
			trouble = append(trouble, fmt.Sprintf("entry %d, %s: %s is expanded", i+1, strings.TrimSpace(key), value))
			continue
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if file == "aliases" {
			x.b.add(file, key+": "+value+"\n")
			continue
		}
		if strings.ContainsAny(value, "|/:") || !isDomain(key) {
			trouble = append(trouble, fmt.Sprintf("entry %d, %s: %s is not an address", i+1, key, value))
			continue
		}
		for _, d := range x.local {
			x.b.add(file, fmt.Sprintf("%s@%s: %s\n", key, d, value))
		}
	}
	x.outcome(setting{name: name, file: path}, "routing.md", file, trouble)
}

// logical returns the lines of a text without comments and empty lines, those that begin with a
// blank being part of the one before.
func logical(text, comment string) (list []string) {
	var g gatherer
	for l := range strings.Lines(text) {
		trimmed := strings.TrimSpace(l)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, comment) || !utf8.ValidString(trimmed):
		default:
			g.add("", trimmed, " ", l[0] == ' ' || l[0] == '\t')
		}
	}
	for _, l := range g.end() {
		list = append(list, l.text)
	}
	return list
}

// senderDomains returns the domains of this machine's senders.
func (x *eximConfig) senderDomains() []string {
	if slices.Contains(x.local, x.mailname) {
		return x.local
	}
	return append(slices.Clone(x.local), x.mailname)
}

// emailAddresses converts the addresses that senders get.
func (x *eximConfig) emailAddresses() {
	path, text := x.text("email-addresses")
	if path == "" {
		return
	}
	domains := x.senderDomains()
	var trouble []string
	for _, l := range logical(text, "#") {
		user, address, ok := strings.Cut(l, ":")
		user, address = strings.TrimSpace(user), strings.TrimSpace(address)
		if !ok || !isDomain(user) || strings.Contains(user, "@") || !isDomain(address) || !strings.Contains(address, "@") {
			trouble = append(trouble, l+" is not USER: ADDRESS")
			continue
		}
		for _, d := range domains {
			x.b.add("masquerade", fmt.Sprintf("%s@%s: %s\n", user, d, address))
		}
	}
	x.outcome(setting{name: "email-addresses", file: path}, "headers.md", "masquerade", trouble)
}

// clientPasswords converts passwords for other hosts; those of all hosts are for the smarthost.
func (x *eximConfig) clientPasswords(smarthost string) {
	path, text := x.text("passwd.client")
	if path == "" {
		return
	}
	var trouble []string
	for i, l := range logical(text, "#") {
		host, rest, _ := strings.Cut(l, ":")
		user, password, ok := strings.Cut(rest, ":")
		password = strings.ReplaceAll(password, "^^", "^") // as exim4_passwd_client(5) doubles it
		if host == "*" {
			host = smarthost
		} else if name, port, _ := strings.Cut(smarthost, ":"); name == host && port != "" {
			host = smarthost
		}
		if !ok || !isDomain(host) || strings.ContainsAny(host, "*^ ") {
			trouble = append(trouble, fmt.Sprintf("entry %d is for no single host", i+1)) // without the password
			continue
		}
		x.b.add("credentials", fmt.Sprintf("%s %s %s\n", host, quoteWord(user), quoteWord(password)))
	}
	if x.b.tables["credentials"] != nil {
		x.b.secret("credentials")
	}
	x.outcome(setting{name: "passwd.client", file: path}, "tls.md", "credentials; passwords go only over verified TLS", trouble)
}

// mailbox converts where local mail goes.
func (x *eximConfig) mailbox(s setting) {
	switch s.value {
	case "maildir_home":
		x.b.set("MAILBOX", "%h/Maildir/", s.name)
		x.row(s, Converted, "mailboxes.md", "MAILBOX=%%h/Maildir/")
	case "mail_spool", "":
		x.row(s, NotNeeded, "", "MAILBOX=/var/mail/%%u")
	default:
		x.row(s, ByHand, "mailboxes.md", "the transport %s: MAILBOX, or a next hop by LMTP", s.value)
	}
}

// eximLines returns the lines of a file of Exim's, without comments; a backslash at the end
// continues a line.
func eximLines(path string) (list []line, err error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var g gatherer
	open := false
	for l := range strings.Lines(text) {
		g.number++
		l = strings.TrimSpace(l)
		if l == "" || l[0] == '#' {
			continue // also within a continued line
		}
		more := strings.HasSuffix(l, `\`)
		g.add(path, strings.TrimSuffix(l, `\`), "", open)
		open = more
	}
	list = g.end()
	if len(list) == 0 {
		return nil, &config.Error{File: path, Reason: "has no setting"}
	}
	if len(list) > maxLines {
		return nil, &config.Error{File: path, Line: list[maxLines].number, Reason: fmt.Sprintf("more than %d lines", maxLines)}
	}
	return list, nil
}
