package confimport

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// convertNames converts the names of the machine.
func convertNames(c *converter) {
	host := c.p.get("myhostname")
	if c.p.isSet("myhostname") {
		c.b.set("HOSTNAME", host, "myhostname")
	}
	c.converted("myhostname", "", "HOSTNAME=%s", host)
	c.notNeeded("mydomain", "used in other settings: %s", c.p.get("mydomain"))
	if origin := c.origin(); origin != host {
		c.b.add("masquerade", fmt.Sprintf("@%s: @%s\n", host, origin))
		c.converted("myorigin", "headers.md", "masquerade: senders at %s appear at %s", host, origin)
	} else {
		c.notNeeded("myorigin", "senders are at HOSTNAME")
	}
}

// origin returns the domain of local senders; myorigin may be the path of a file with it.
func (c *converter) origin() string {
	origin := c.p.get("myorigin")
	if strings.HasPrefix(origin, "/") {
		text, err := readFile(c.path(origin))
		if err != nil {
			c.byHand("myorigin", "headers.md", "%v", err)
			return c.p.get("myhostname")
		}
		origin = strings.TrimSpace(text)
	}
	return origin
}

// domainSource converts a list of domains: names go into the file that is named, tables
// become sources. trouble says what could not be converted.
func (c *converter) domainSource(value, file string, keep func(domain string) bool) (sources, trouble []string) {
	var names []string
	for _, item := range list(value) {
		t := c.parseTable(item)
		switch {
		case t.kind == "" && strings.HasPrefix(item, "/"), t.isText(), t.kind == "inline":
			var entries []entry
			var err error
			if entries, err = c.entries(t); err != nil {
				trouble = append(trouble, err.Error())
				continue
			}
			for _, e := range entries {
				// A table of addresses has its domains as keys without an @.
				if !strings.ContainsAny(e.key, "@/") && (t.kind == "" || strings.Contains(e.key, ".") || e.key == "localhost") {
					names = append(names, e.key)
				}
			}
		case slices.Contains([]string{"pgsql", "mysql", "sqlite", "ldap"}, t.kind):
			source, why := c.database(t, "domain")
			if why != "" {
				trouble = append(trouble, why)
				continue
			}
			sources = append(sources, source)
		case t.kind == "regexp" || t.kind == "pcre":
			c.copyPatterns(t)
			sources = append(sources, "regexp:"+filepath.Base(t.name))
		case t.kind != "" || strings.ContainsAny(item, "!/"):
			trouble = append(trouble, item+" has no counterpart")
		default:
			names = append(names, item)
		}
	}
	var kept []string
	seen := map[string]bool{}
	for _, name := range names {
		if !seen[name] && (keep == nil || keep(name)) {
			kept = append(kept, name)
		}
		seen[name] = true
	}
	if len(kept) > 0 {
		c.b.add(file, strings.Join(kept, "\n")+"\n")
		sources = append([]string{file}, sources...)
	}
	return sources, trouble
}

// copyPatterns copies a table of patterns.
func (c *converter) copyPatterns(t table) {
	name := filepath.Base(t.name)
	if c.written[name] {
		return
	}
	c.written[name] = true
	if text, err := readFile(c.path(t.name)); err == nil {
		c.b.add(name, text)
	}
}

// convertDomains converts the local domains.
func convertDomains(c *converter) {
	host := c.p.get("myhostname")
	sources, trouble := c.domainSource(c.p.get("mydestination"), "localnames", func(d string) bool { return d != host })
	if len(sources) > 0 && !(len(sources) == 1 && sources[0] == "localnames") {
		c.b.set("LOCALNAMES", strings.Join(sources, " "), "mydestination")
	}
	became := "localnames"
	if len(sources) == 0 {
		became = "no local domains but HOSTNAME"
	}
	if c.p.get("mydestination") == "" {
		c.byHand("mydestination", "routing.md", "HOSTNAME is always a local domain here; a null client sends its mail on with aliases or routes")
	}
	c.report("mydestination", "routing.md", became, trouble)

	maps := c.p.get("alias_maps")
	if !c.p.isSet("alias_maps") && filepath.Clean(c.p.dir) != "/etc/postfix" && !exists(filepath.Join(c.p.dir, "aliases")) {
		maps = "" // the aliases of this machine are not those of the other
	}
	sources, trouble = c.mapSources(maps, "aliases", func(e entry) (string, bool) { return "", false })
	if len(sources) > 0 && !(len(sources) == 1 && sources[0] == "aliases") {
		c.b.set("ALIASES", strings.Join(sources, " "), "alias_maps")
	}
	c.report("alias_maps", "routing.md", "ALIASES="+strings.Join(sources, " "), trouble)
	c.notNeeded("alias_database", "aliases is read without newaliases")
	if maps := c.p.get("local_recipient_maps"); c.p.isSet("local_recipient_maps") && maps == "" {
		c.b.set("RCPTCHECK", "no", "local_recipient_maps is empty: unknown recipients are accepted, and bounced")
		c.converted("local_recipient_maps", "access.md", "RCPTCHECK=no; RCPTCHECK=yes is better: a report to a forged sender is spam")
	}
	c.notNeeded("local_recipient_maps", "RCPTCHECK=yes asks the tables by which mail is routed")
	c.byHand("luser_relay", "routing.md", "an alias of the name * does not exist; use a catch-all @domain in fqdnaliases")
}

// mapSources converts a list of tables. Text tables become lines of the file, as format makes
// them of entries; for aliases the text is copied.
func (c *converter) mapSources(value, file string, format func(e entry) (string, bool)) (sources, trouble []string) {
	for _, item := range list(value) {
		t := c.parseTable(item)
		switch {
		case t.isText() && file == "aliases":
			text, err := readFile(c.path(t.name))
			if err != nil {
				trouble = append(trouble, err.Error())
				continue
			}
			c.b.add(file, text)
		case t.isText() || t.kind == "inline":
			entries, err := c.entries(t)
			if err != nil {
				trouble = append(trouble, err.Error())
				continue
			}
			for _, e := range entries {
				if !utf8.ValidString(e.key) || !utf8.ValidString(e.value) {
					trouble = append(trouble, fmt.Sprintf("%q is not UTF-8", e.key))
					continue
				}
				line, ok := format(e)
				if !ok {
					if line != "" {
						trouble = append(trouble, line)
					}
					continue
				}
				c.b.add(file, line+"\n")
			}
			if t.isText() {
			}
		case slices.Contains([]string{"pgsql", "mysql", "sqlite", "ldap"}, t.kind):
			source, why := c.database(t, "")
			if why != "" {
				trouble = append(trouble, why)
				continue
			}
			if !slices.Contains(sources, source) {
				sources = append(sources, source)
			}
			continue
		case t.kind == "regexp" || t.kind == "pcre":
			if !exists(c.path(t.name)) {
				trouble = append(trouble, t.name+" cannot be read")
				continue
			}
			c.copyPatterns(t)
			sources = append(sources, "regexp:"+filepath.Base(t.name))
			continue
		case t.kind == "socketmap":
			// socketmap:unix:PATH:NAME and socketmap:inet:HOST:PORT:NAME
			sources = append(sources, "socket:"+t.name)
			continue
		default:
			trouble = append(trouble, t.String()+" has no counterpart")
			continue
		}
		if c.b.tables[file] != nil && !slices.Contains(sources, file) {
			sources = append([]string{file}, sources...)
		}
	}
	return sources, trouble
}

// convertVirtual converts virtual alias and mailbox domains.
func convertVirtual(c *converter) {
	maps := c.p.get("virtual_alias_maps")
	local := list(c.p.get("mydestination"))
	if origin := c.origin(); !slices.Contains(local, origin) {
		local = append(local, origin)
	}
	sources, trouble := c.mapSources(maps, "fqdnaliases", func(e entry) (string, bool) {
		switch {
		case e.value == "":
			return "", false
		case strings.HasPrefix(e.key, "@"):
			target := e.value
			if strings.HasPrefix(target, "@") { // the user part stays
				target = "%1" + target
			}
			return e.key + ": " + target, true
		case strings.Contains(e.key, "@"):
			return e.key + ": " + e.value, true
		case strings.Contains(e.key, "."):
			return "", false // the line of a domain
		}
		var lines []string
		for _, domain := range local {
			if !strings.ContainsAny(domain, ":/") {
				lines = append(lines, e.key+"@"+domain+": "+e.value)
			}
		}
		return strings.Join(lines, "\n"), len(lines) > 0
	})
	if len(sources) > 0 && !(len(sources) == 1 && sources[0] == "fqdnaliases") {
		c.b.set("FQDNALIASES", strings.Join(sources, " "), "virtual_alias_maps")
	}
	c.report("virtual_alias_maps", "virtual-domains.md", "FQDNALIASES="+strings.Join(sources, " "), trouble)
	c.report("virtual_maps", "virtual-domains.md", "FQDNALIASES="+strings.Join(sources, " "), trouble)

	domains := c.p.get("virtual_alias_domains")
	if !c.p.isSet("virtual_alias_domains") {
		// By default the domains are those of the tables of addresses; databases answer for
		// domains too only where somebody has made them.
		var texts []string
		for _, item := range list(maps) {
			if t := c.parseTable(item); t.isText() || t.kind == "inline" {
				texts = append(texts, item)
			}
		}
		domains = strings.Join(texts, " ")
	}
	c.class("virtual_alias_domains", "VIRTUALALIASDOMAINS", domains)
	c.class("virtual_mailbox_domains", "VIRTUALMAILBOXDOMAINS", c.p.get("virtual_mailbox_domains"))

	maps = c.p.get("virtual_mailbox_maps")
	sources, trouble = c.mapSources(maps, "virtualmailboxmaps", func(e entry) (string, bool) {
		if e.value == "" {
			return "", false
		}
		return e.key + " " + e.value, true
	})
	if len(sources) > 0 {
		c.b.set("VIRTUALMAILBOXMAPS", strings.Join(sources, " "), "virtual_mailbox_maps")
	}
	c.report("virtual_mailbox_maps", "virtual-domains.md", "VIRTUALMAILBOXMAPS="+strings.Join(sources, " "), trouble)
	if base := c.p.get("virtual_mailbox_base"); base != "" {
		c.b.set("VIRTUALMAILBOXBASE", base, "virtual_mailbox_base")
		c.converted("virtual_mailbox_base", "virtual-domains.md", "VIRTUALMAILBOXBASE=%s", base)
	}
	for _, id := range []struct{ name, ours, file string }{{"virtual_uid_maps", "VIRTUALUIDMAPS", "virtualuidmaps"}, {"virtual_gid_maps", "VIRTUALGIDMAPS", "virtualgidmaps"}} {
		value := c.p.get(id.name)
		if value == "" {
			continue
		}
		if number, ok := strings.CutPrefix(value, "static:"); ok {
			c.b.set(id.ours, number, id.name)
			c.converted(id.name, "virtual-domains.md", "%s=%s", id.ours, number)
			continue
		}
		sources, trouble := c.mapSources(value, id.file, func(e entry) (string, bool) { return e.key + " " + e.value, true })
		if len(sources) > 0 {
			c.b.set(id.ours, strings.Join(sources, " "), id.name)
		}
		c.report(id.name, "virtual-domains.md", id.ours+"="+strings.Join(sources, " "), trouble)
	}
	if c.p.isSet("virtual_minimum_uid") {
		c.b.set("VIRTUALMINIMUMUID", c.p.get("virtual_minimum_uid"), "virtual_minimum_uid")
		c.converted("virtual_minimum_uid", "virtual-domains.md", "VIRTUALMINIMUMUID=%s", c.p.get("virtual_minimum_uid"))
	}
	if c.p.isSet("virtual_transport") {
		target, why := c.target(c.p.get("virtual_transport"), "")
		if why == "" && target != "virtual!" {
			c.b.set("VIRTUALTRANSPORT", target, "virtual_transport")
		}
		if why != "" {
			c.byHand("virtual_transport", "virtual-domains.md", "%s; VIRTUALTRANSPORT=lmtp!unix:/run/dovecot/lmtp hands mail to Dovecot", why)
		}
		c.converted("virtual_transport", "virtual-domains.md", "VIRTUALTRANSPORT=%s", target)
	}
	c.byHand("virtual_mailbox_limit", "virtual-domains.md", "quota= of a mailbox or domain")
}

// class converts the list of the domains of a class.
func (c *converter) class(name, ours, value string) {
	if value == "" {
		c.notNeeded(name, "no such domains")
		return
	}
	// A domain has one class; local ones come first in Postfix.
	local := list(c.p.get("mydestination"))
	sources, trouble := c.domainSource(value, strings.ToLower(ours), func(d string) bool {
		return !slices.Contains(local, d) && d != c.p.get("myhostname")
	})
	if len(sources) > 0 {
		c.b.set(ours, strings.Join(sources, " "), name)
	}
	c.report(name, map[bool]string{true: "relay-domains.md", false: "virtual-domains.md"}[ours == "RELAYDOMAINS"], ours+"="+strings.Join(sources, " "), trouble)
}

// convertRelay converts relay domains and networks.
func convertRelay(c *converter) {
	value := c.p.get("relay_domains")
	if value == "$mydestination" || value == c.p.get("mydestination") {
		value = ""
	}
	c.class("relay_domains", "RELAYDOMAINS", value)
	if maps := c.p.get("relay_recipient_maps"); maps != "" {
		sources, trouble := c.mapSources(maps, "relayrecipientmaps", func(e entry) (string, bool) { return e.key + " x", true })
		if len(sources) > 0 {
			c.b.set("RELAYRECIPIENTMAPS", strings.Join(sources, " "), "relay_recipient_maps")
		}
		c.report("relay_recipient_maps", "relay-domains.md", "RELAYRECIPIENTMAPS="+strings.Join(sources, " "), trouble)
	}
	if c.p.isSet("mynetworks") {
		nets, trouble := c.networks(c.p.get("mynetworks"))
		c.b.set("RELAYNETS", strings.Join(nets, " "), "mynetworks")
		c.report("mynetworks", "access.md", "RELAYNETS="+strings.Join(nets, " "), trouble)
	}
	switch style := c.p.get("mynetworks_style"); {
	case c.p.isSet("mynetworks"):
		c.notNeeded("mynetworks_style", "mynetworks is set")
	case style == "host":
		c.notNeeded("mynetworks_style", "the default of RELAYNETS is this machine")
	case c.p.isSet("mynetworks_style"):
		c.byHand("mynetworks_style", "access.md", "RELAYNETS names networks; the default is this machine")
	}
}

// networks converts a list of networks, of which some may be in files.
func (c *converter) networks(value string) (nets, trouble []string) {
	for _, item := range list(value) {
		t := c.parseTable(item)
		if strings.HasPrefix(item, "/") || t.kind == "cidr" || t.isText() {
			entries, err := c.entries(t)
			if err != nil {
				trouble = append(trouble, err.Error())
			}
			for _, e := range entries {
				inner, why := c.networks(e.key)
				if strings.EqualFold(e.value, "REJECT") {
					why, inner = append(why, e.key+" is excluded"), nil
				}
				nets, trouble = append(nets, inner...), append(trouble, why...)
			}
			continue
		}
		address, bits, _ := strings.Cut(item, "/")
		address = strings.Trim(address, "[]")
		if bits != "" {
			address += "/" + bits
		}
		if _, err := netip.ParsePrefix(address); err == nil {
			if prefix, _ := netip.ParsePrefix(address); true {
				nets = append(nets, prefix.Masked().String())
			}
			continue
		}
		if _, err := netip.ParseAddr(address); err == nil {
			nets = append(nets, address)
			continue
		}
		trouble = append(trouble, item+" is no network")
	}
	return nets, trouble
}

// convertRewriting converts tables that rewrite addresses.
func convertRewriting(c *converter) {
	address := func(e entry) (string, bool) {
		value := e.value
		if value == "" || strings.Contains(value, ",") {
			return e.key + " has no single address", false
		}
		key := e.key
		if !strings.Contains(key, "@") {
			key += "@" + c.origin()
		}
		if !strings.Contains(value, "@") {
			value += "@" + c.origin()
		}
		return key + ": " + value, true
	}
	for _, name := range []string{"sender_canonical_maps", "recipient_canonical_maps"} {
		if value := c.p.get(name); strings.Contains(value, ":1000") || strings.Contains(value, "srs") { // postsrsd listens on 10001, 10002 or 10003
			c.byHand(name, "srs.md", "postsrsd is not needed: SRSSECRETS names the file of its secrets")
		}
	}
	for _, name := range []string{"sender_canonical_maps", "smtp_generic_maps"} {
		if value := c.p.get(name); value != "" && !c.done[name] {
			_, trouble := c.mapSources(value, "masquerade", address)
			c.report(name, "headers.md", "masquerade", trouble)
		}
	}
	if value := c.p.get("recipient_canonical_maps"); value != "" && !c.done["recipient_canonical_maps"] {
		_, trouble := c.mapSources(value, "fqdnaliases", address)
		c.report("recipient_canonical_maps", "routing.md", "fqdnaliases; header fields are not changed", trouble)
	}
	if value := c.p.get("canonical_maps"); value != "" {
		_, trouble := c.mapSources(value, "masquerade", address)
		_, more := c.mapSources(value, "fqdnaliases", address)
		c.report("canonical_maps", "headers.md", "masquerade for senders, fqdnaliases for recipients", append(trouble, more...))
	}
	if domains := list(c.p.get("masquerade_domains")); len(domains) > 0 {
		for _, d := range domains {
			if strings.HasPrefix(d, "!") {
				c.b.add("masquerade", fmt.Sprintf("@%s: @%s\n", d[1:], d[1:]))
				continue
			}
			c.b.add("masquerade", fmt.Sprintf("@.%s: @%s\n", d, d))
		}
		for _, user := range list(c.p.get("masquerade_exceptions")) {
			c.b.add("masquerade", fmt.Sprintf("%s@%s: %s@%s\n", user, c.origin(), user, c.origin()))
		}
		c.converted("masquerade_domains", "headers.md", "masquerade")
		c.converted("masquerade_exceptions", "headers.md", "masquerade")
	}
	c.notNeeded("masquerade_classes", "masquerade changes the envelope sender, From, Sender and Reply-To")
	for _, name := range []string{"sender_canonical_classes", "recipient_canonical_classes", "canonical_classes"} {
		c.notNeeded(name, "masquerade and fqdnaliases have fixed classes (docs/headers.md)")
	}
	if delimiter := c.p.get("recipient_delimiter"); c.p.isSet("recipient_delimiter") {
		value := delimiter
		if value == "" {
			value = "off"
		}
		if value != "+" {
			c.b.set("SUBADDRESS", value, "recipient_delimiter")
		}
		c.converted("recipient_delimiter", "routing.md", "SUBADDRESS=%s", value)
	}
	for _, name := range []string{"always_bcc", "sender_bcc_maps", "recipient_bcc_maps"} {
		if c.p.get(name) != "" {
			c.byHand(name, "router.star.md", "router.star: add() for a further recipient")
		}
	}
	c.notNeeded("append_dot_mydomain", "names without a domain are at HOSTNAME")
	c.notNeeded("append_at_myorigin", "names without a domain are at HOSTNAME")
	c.notNeeded("remote_header_rewrite_domain", "header fields of mail from outside are never changed")
	c.byHand("relocated_maps", "routing.md", "routes or aliases with error!5.1.6:TEXT")
	c.notNeeded("owner_request_special", "owner-LIST gets the reports of a list (docs/lists.md)")
	if c.p.isSet("propagate_unmatched_extensions") {
		var kept, lost []string
		for _, word := range strings.Fields(strings.ReplaceAll(c.p.get("propagate_unmatched_extensions"), ",", " ")) {
			switch word {
			case "virtual", "alias":
				kept = append(kept, word)
			case "forward", "include":
				lost = append(lost, word)
			}
		}
		value := cmp.Or(strings.Join(kept, " "), "off")
		if value != "virtual" {
			c.b.set("PROPAGATEUNMATCHEDEXTENSIONS", value, "propagate_unmatched_extensions")
		}
		c.converted("propagate_unmatched_extensions", "routing.md", "PROPAGATEUNMATCHEDEXTENSIONS=%s", value)
		if lost != nil {
			c.byHand("propagate_unmatched_extensions", "routing.md", "tags are not passed on by %s", strings.Join(lost, ", "))
		}
	}
}
