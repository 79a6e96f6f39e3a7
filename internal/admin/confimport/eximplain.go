package confimport

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"zmailer/internal/run/config"
)

// block is a router, a transport or a part of another section of Exim's file.
type block struct {
	setting
	section string
	options map[string]string
}

// plain converts Exim's own configuration file as far as it has the lists and routers of the
// file that Exim comes with.
func (x *eximConfig) plain(file string) error {
	lines, err := eximLines(file)
	if err != nil {
		return err
	}
	blocks, err := x.parse(lines)
	if err != nil {
		return err
	}
	host := x.value["primary_hostname"]
	x.names(host)
	if q := x.value["qualify_domain"]; q != "" && !strings.ContainsAny(q, "$/") {
		x.mailname = q
	}
	// The local domains are part of what the other settings become.
	local := setting{name: "domainlist local_domains", value: "@", file: file}
	if i := slices.IndexFunc(x.settings, func(s setting) bool { return s.name == local.name }); i >= 0 {
		local = x.settings[i]
	}
	x.localDomains(local, eximList(local.value))
	for _, s := range x.settings {
		switch s.name {
		case local.name:
		case "primary_hostname", "qualify_domain":
			x.row(s, Converted, "setup.md", "HOSTNAME=%s, masquerade", x.host)
		case "domainlist relay_to_domains":
			if s.value != "" {
				x.relayDomains(s, eximList(s.value))
				continue
			}
			x.row(s, NotNeeded, "", "no such domains")
		case "hostlist relay_from_hosts":
			x.relayNets(s, eximList(s.value))
		case "local_interfaces":
			x.interfaces(s, eximList(s.value))
		case "message_size_limit":
			x.b.set("MAXSIZE", s.value, s.name)
			x.row(s, Converted, "limits.md", "MAXSIZE=%s", s.value)
		case "tls_certificate", "tls_privatekey":
			name := map[string]string{"tls_certificate": "TLSCERT", "tls_privatekey": "TLSKEY"}[s.name]
			if !filepath.IsAbs(s.value) {
				x.row(s, ByHand, "tls.md", "%s: a path", name)
				continue
			}
			x.b.set(name, s.value, s.name)
			x.row(s, Converted, "tls.md", "%s=%s", name, s.value)
		default:
			if why := eximIgnored()[s.name]; why != "" {
				x.row(s, NotNeeded, "", "%s", why)
				continue
			}
			page := "coming-from-exim.md"
			if strings.HasPrefix(s.name, "acl_") || strings.HasPrefix(s.name, "hostlist") || strings.HasPrefix(s.name, "addresslist") {
				page = "access.md"
			}
			x.row(s, ByHand, page, "no counterpart is known")
		}
	}
	for _, b := range blocks {
		x.block(b)
	}
	return nil
}

// eximIgnored has the settings without a meaning here, and why.
func eximIgnored() map[string]string {
	return map[string]string{
		"never_users": "mail is never delivered as root", "host_lookup": "REVERSELOOKUP", "rfc1413_hosts": "not done", "rfc1413_query_timeout": "not done",
		"ignore_bounce_errors_after": "reports that cannot be delivered go to the postmaster", "timeout_frozen_after": "zmctl freezer", "split_spool_directory": "HASHLEVELS",
		"daemon_smtp_ports": "SMTPLISTEN, SUBMISSIONLISTEN, SUBMISSIONSLISTEN", "tls_advertise_hosts": "STARTTLS is offered if there is a certificate", "tls_on_connect_ports": "SUBMISSIONSLISTEN",
		"prdr_enable": "of Exim", "log_selector": "the log has all of it", "smtp_banner": "the greeting is HOSTNAME ESMTP", "keep_environment": "of Exim", "dns_dnssec_ok": "DANE asks for it",
		"exim_user": "DAEMONUSER", "exim_group": "DAEMONUSER", "spool_directory": "POSTOFFICE", "log_file_path": "LOGFILE", "trusted_users": "TRUSTED", "freeze_tell": "zmctl status and its alarms",
	}
}

var namedList = regexp.MustCompile(`^(domainlist|hostlist|addresslist|localpartlist)(?:_cache)?\s+(\S+)\s*=\s*(.*)$`)

// parse reads the main section into settings, and the others into blocks.
func (x *eximConfig) parse(lines []line) (blocks []block, err error) {
	section := ""
	macros := map[string]string{}
	for _, l := range lines {
		s := setting{file: l.file, line: l.number}
		text := l.text
		if strings.HasPrefix(text, ".include") || strings.HasPrefix(text, ".if") || strings.HasPrefix(text, ".else") || strings.HasPrefix(text, ".elif") || strings.HasPrefix(text, ".endif") {
			s.name, s.value, _ = strings.Cut(text, " ")
			if strings.HasPrefix(s.name, ".include") || s.name == ".ifdef" || s.name == ".ifndef" {
				x.row(s, ByHand, "coming-from-exim.md", "not followed: give the file that exim -bP config prints")
			}
			continue
		}
		for name, value := range macros {
			text = strings.ReplaceAll(text, name, value)
		}
		if len(text) > maxFile {
			return nil, &config.Error{File: l.file, Line: l.number, Reason: "the macros make it too long"}
		}
		if name, ok := strings.CutPrefix(text, "begin "); ok {
			section = strings.TrimSpace(name)
			continue
		}
		name, value, assigned := strings.Cut(text, "=")
		name, value = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(name), "hide ")), strings.Trim(strings.TrimSpace(value), `"`)
		switch {
		case section == "" && assigned && name != "" && name[0] >= 'A' && name[0] <= 'Z':
			if strings.Contains(value, name) {
				return nil, &config.Error{File: l.file, Line: l.number, Reason: "the macro " + name + " contains itself"}
			}
			if len(macros) >= 1000 {
				return nil, &config.Error{File: l.file, Line: l.number, Reason: "more than 1000 macros"}
			}
			macros[strings.TrimSuffix(name, "=")] = value
		case section == "":
			s.name, s.value = name, value
			if m := namedList.FindStringSubmatch(text); m != nil {
				s.name, s.value = m[1]+" "+m[2], m[3]
			}
			if i := slices.IndexFunc(x.settings, func(o setting) bool { return o.name == s.name }); i >= 0 {
				return nil, &config.Error{File: l.file, Line: l.number, Reason: fmt.Sprintf("%s is also in line %d", s.name, x.settings[i].line)}
			}
			x.settings = append(x.settings, s)
			x.value[s.name] = s.value
		case (section == "routers" || section == "transports" || section == "authenticators") && strings.HasSuffix(text, ":") && !strings.ContainsAny(text, " ="):
			s.name = strings.TrimSuffix(text, ":")
			blocks = append(blocks, block{setting: s, section: section, options: map[string]string{}})
		case len(blocks) > 0 && blocks[len(blocks)-1].section == section && section != "acl":
			blocks[len(blocks)-1].options[name] = value
		case !slices.ContainsFunc(blocks, func(b block) bool { return b.section == section }):
			s.name = section
			blocks = append(blocks, block{setting: s, section: section, options: map[string]string{}})
		}
	}
	return blocks, nil
}

// isNotLocal reports whether a router is for the domains that are not ours.
func (b *block) isNotLocal() bool {
	return strings.ReplaceAll(b.options["domains"], " ", "") == "!+local_domains"
}

var lsearch = regexp.MustCompile(`^\$\{lookup\{\$local_part\}lsearch\{(/[^{}$]+)\}\}$`)

// block converts a router, or reports a block.
func (x *eximConfig) block(b block) {
	s := b.setting
	s.value = b.options["driver"]
	if b.section != s.name {
		s.name = strings.TrimSuffix(b.section, "s") + " " + s.name
	}
	_, check := b.options["check_local_user"]
	switch {
	case b.section == "retry":
		x.row(s, ByHand, "scheduler.conf.md", "retries= and expiry= of a clause; the default is four days as Exim has it")
	case b.section == "rewrite":
		x.row(s, ByHand, "headers.md", "masquerade for senders, fqdnaliases for recipients")
	case b.section == "acl":
		x.row(s, ByHand, "access.md", "rules of access; relaying, unknown recipients and bad addresses are refused without one")
	case b.section == "authenticators":
		x.row(s, ByHand, "auth.md", "AUTH for our users, credentials for other hosts")
	case b.section == "transports":
		if s.value == "appendfile" && strings.HasPrefix(b.options["directory"], "$home/Maildir") {
			x.b.set("MAILBOX", "%h/Maildir/", s.name)
			x.row(s, Converted, "mailboxes.md", "MAILBOX=%%h/Maildir/")
			return
		}
		x.row(s, NotNeeded, "", "the routers that use it are reported")
	case b.section != "routers":
		x.row(s, ByHand, "coming-from-exim.md", "no counterpart is known")
	case s.value == "dnslookup" && b.isNotLocal():
		x.row(s, NotNeeded, "", "mail goes to the MX of its domain")
	case s.value == "manualroute" && b.isNotLocal() && strings.HasPrefix(b.options["route_list"]+b.options["route_data"], "*"), s.value == "manualroute" && b.isNotLocal() && b.options["route_data"] != "":
		target, _, why := smarthost(eximList(strings.TrimPrefix(b.options["route_list"]+b.options["route_data"], "*")))
		if target == "" || why != "" {
			x.row(s, ByHand, "connecting.md", "routes: . smtpx!HOST: %s", why)
			return
		}
		x.b.add("routes", ".\t"+target+"\n")
		x.row(s, Converted, "connecting.md", "routes: . %s", target)
	case s.value == "redirect" && lsearch.MatchString(b.options["data"]):
		name := filepath.Base(lsearch.FindStringSubmatch(b.options["data"])[1])
		before := len(x.rows)
		x.aliases(name)
		if len(x.rows) == before {
			x.row(s, ByHand, "routing.md", "aliases: %s is not beside the configuration", name)
			return
		}
		x.row(s, Converted, "routing.md", "aliases")
	case s.value == "redirect" && strings.HasPrefix(b.options["file"], "$home/.forward"):
		x.row(s, NotNeeded, "", "FORWARD=~/.forward")
	case s.value == "accept" && check:
		x.row(s, NotNeeded, "", "mail of this machine's users goes to MAILBOX")
	default:
		x.row(s, ByHand, "router.star.md", "the driver %s: a table (docs/routing.md), or router.star", s.value)
	}
}
