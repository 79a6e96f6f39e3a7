package confimport

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/run/config"
)

// target converts transport:nexthop into channel!host. domain is the one that the route is
// for; why says what has no counterpart.
func (c *converter) target(text, transport string) (target, why string) {
	name, next, ok := strings.Cut(text, ":")
	if !ok {
		name, next = text, ""
	}
	if strings.HasPrefix(text, "[") && transport != "" { // a nexthop alone
		name, next = transport, text
	} else if transport != "" && !c.isTransport(name) {
		name, next = transport, text
	}
	if name == "" {
		name = "smtp"
	}
	command := name
	for _, s := range c.p.services {
		if s.name == name && s.kind == "unix" {
			command = s.command
		}
	}
	switch command {
	case "smtp", "relay", "lmtp":
		channel := "smtp"
		if command == "lmtp" || name == "lmtp" {
			channel = "lmtp"
		}
		if command != name && name != "relay" && name != "smtp" && name != "lmtp" {
			for _, s := range c.p.services {
				if s.name == name && len(s.options) > 0 {
					why = fmt.Sprintf("the transport %s has options of its own: make it a clause of scheduler.conf", name)
				}
			}
		}
		if path, ok := strings.CutPrefix(next, "unix:"); ok {
			return channel + "!unix:" + c.socket(path), why
		}
		next = strings.TrimPrefix(next, "inet:")
		if next == "" {
			return channel + "!", why
		}
		if inner, rest, found := strings.Cut(strings.TrimPrefix(next, "["), "]"); strings.HasPrefix(next, "[") && found {
			if _, err := netip.ParseAddr(strings.TrimPrefix(inner, "IPv6:")); err == nil {
				inner = "[" + inner + "]"
			}
			if channel == "smtp" {
				channel = "smtpx"
			}
			return channel + "!" + inner + rest, why
		}
		return channel + "!" + next, why
	case "local":
		return "local!", ""
	case "virtual":
		return "virtual!", ""
	case "error", "retry":
		if command == "retry" {
			return "", "the transport retry has no counterpart; hold! keeps mail until an operator releases it"
		}
		code, rest := "5.1.1", next
		if word, after, _ := strings.Cut(next, " "); strings.HasPrefix(word, "5.") || strings.HasPrefix(word, "4.") {
			code, rest = word, after
		}
		if strings.HasPrefix(code, "4.") {
			return "", "error: with " + code + " has no counterpart; hold! keeps mail until an operator releases it"
		}
		return "error!" + code + ":" + xtext(strings.TrimSpace(rest)), ""
	case "discard":
		return "bitbucket!", ""
	case "hold":
		return "hold!", ""
	}
	return "", fmt.Sprintf("the transport %s runs %s, which has no counterpart", name, command)
}

// isTransport reports whether master.cf or Postfix itself has a transport of a name.
func (c *converter) isTransport(name string) bool {
	if slices.Contains([]string{"", "smtp", "relay", "lmtp", "local", "virtual", "error", "retry", "discard"}, name) {
		return true
	}
	return slices.ContainsFunc(c.p.services, func(s service) bool { return s.name == name && s.kind == "unix" })
}

// xtext encodes a text for the error channel.
func xtext(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if ch := s[i]; ch <= ' ' || ch > '~' || ch == '+' || ch == '=' || ch == '#' {
			fmt.Fprintf(&b, "+%02X", ch)
		} else {
			b.WriteByte(ch)
		}
	}
	return b.String()
}

// convertRoutes converts transport_maps and relayhost.
func convertRoutes(c *converter) {
	var lines []string
	_, trouble := c.mapSources(c.p.get("transport_maps"), "routes", func(e entry) (string, bool) {
		key := e.key
		if strings.Contains(key, "@") {
			return fmt.Sprintf("%s is an address; routes are for domains: use router.star", key), false
		}
		if key == "*" {
			key = "."
		}
		target, why := c.target(e.value, "")
		if target == "" {
			return key + ": " + why, false
		}
		lines = append(lines, key)
		if why != "" {
			return fmt.Sprintf("%s: %s", key, why), false
		}
		return key + "\t" + target, true
	})
	for _, item := range list(c.p.get("transport_maps")) {
		if t := c.parseTable(item); !t.isText() && t.kind != "inline" {
			trouble = append(trouble, t.String()+" answers with transports of Postfix; ROUTES wants channel!host")
		}
	}
	trouble = slices.Compact(trouble)
	became := fmt.Sprintf("routes, %d lines", len(lines))
	c.report("transport_maps", "routing.md", became, trouble)
	if host := c.p.get("relayhost"); host != "" {
		target, why := c.target(host, "smtp")
		c.b.add("routes", ".\t"+target+"\n")
		if why != "" {
			c.byHand("relayhost", "connecting.md", "%s", why)
		}
		c.converted("relayhost", "connecting.md", "routes: . %s", target)
	}
	if port := c.p.get("smtp_tcp_port"); port != "smtp" && port != "25" && port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
			c.b.set("SMTPPORT", port, "smtp_tcp_port")
			c.converted("smtp_tcp_port", "setup.md", "SMTPPORT=%s", port)
		}
		c.byHand("smtp_tcp_port", "setup.md", "SMTPPORT, a number")
	}
	c.notNeeded("smtp_tcp_port", "SMTPPORT=25")
	c.notNeeded("relayhost", "mail goes to the hosts of the MX records")
	c.byHand("smtp_fallback_relay", "routing.md", "no counterpart")
	c.byHand("fallback_relay", "routing.md", "no counterpart")
	c.byHand("sender_dependent_relayhost_maps", "router.star.md", "router.star: route() by m.sender")
	c.byHand("sender_dependent_default_transport_maps", "router.star.md", "router.star: route() by m.sender, and a clause with sources= (docs/zones.md)")
	for _, name := range []string{"default_transport", "local_transport", "relay_transport"} {
		if c.p.isSet(name) {
			target, why := c.target(c.p.get(name), "")
			if why == "" && slices.Contains([]string{"smtp!", "local!"}, target) {
				c.notNeeded(name, "the default")
			}
			if strings.HasPrefix(target, "error!") && name == "local_transport" {
				c.byHand(name, "routing.md", "HOSTNAME is a local domain; let aliases send its mail on")
			}
			c.byHand(name, "routing.md", "a route in routes: %s %s", target, why)
		}
	}
}

// duration converts a time of Postfix's, which has a unit of one letter.
func duration(text, unit string) (time.Duration, bool) {
	if text == "" {
		return 0, false
	}
	if last := text[len(text)-1]; last < '0' || last > '9' {
		text, unit = text[:len(text)-1], string(last)
	}
	n, err := strconv.Atoi(text)
	scale := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}[unit]
	return time.Duration(n) * scale, err == nil && scale > 0
}

// interval writes a time as scheduler.conf has it.
func interval(d time.Duration) string {
	for _, u := range []struct {
		letter string
		scale  time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if d >= u.scale && d%u.scale == 0 {
			return strconv.Itoa(int(d/u.scale)) + u.letter
		}
	}
	return strconv.Itoa(int(d/time.Second)) + "s"
}

// convertQueue converts retries, expiry and concurrency.
func convertQueue(c *converter) {
	if d, ok := duration(c.p.get("maximal_queue_lifetime"), "d"); ok {
		c.clause["expiry=3d "] = "expiry=" + interval(d) + " "
		c.converted("maximal_queue_lifetime", "scheduler.conf.md", "scheduler.conf: expiry=%s", interval(d))
	} else {
		c.clause["expiry=3d "] = "expiry=5d " // Postfix's default
	}
	c.notNeeded("bounce_queue_lifetime", "reports have the expiry of their clause")
	if d, ok := duration(c.p.get("delay_warning_time"), "h"); ok && d > 0 {
		c.clause[`reporttimes="4h"`] = fmt.Sprintf("reporttimes=%q", interval(d))
		c.converted("delay_warning_time", "scheduler.conf.md", "scheduler.conf: reporttimes=%s; to senders who ask for it (NOTIFY=DELAY)", interval(d))
	}
	c.notNeeded("delay_warning_time", "only senders who ask for it get a report of a delay")
	c.notNeeded("confirm_delay_cleared", "not done")
	least, ok1 := duration(c.p.get("minimal_backoff_time"), "s")
	most, ok2 := duration(c.p.get("maximal_backoff_time"), "s")
	if ok1 || ok2 {
		if !ok1 || least < time.Minute {
			least = max(least, 300*time.Second)
		}
		if !ok2 {
			most = 4000 * time.Second
		}
		var waits []string
		for w := least; len(waits) < 12; w *= 2 {
			waits = append(waits, strconv.Itoa(int(min(w, most)/time.Minute)))
			if w >= most {
				break
			}
		}
		c.clause[`retries="1 1 2 3 4 8 13 21 34"`] = fmt.Sprintf("retries=%q", strings.Join(waits, " "))
		c.converted("minimal_backoff_time", "scheduler.conf.md", "scheduler.conf: retries=%s", strings.Join(waits, " "))
		c.converted("maximal_backoff_time", "scheduler.conf.md", "scheduler.conf: retries=%s", strings.Join(waits, " "))
	}
	c.notNeeded("queue_run_delay", "each recipient has its own next attempt")
	for _, name := range []string{"default_destination_concurrency_limit", "smtp_destination_concurrency_limit"} {
		if v := c.p.get(name); v != "" {
			c.clause["maxthr=20 "] = "maxthr=" + v + " "
			if n, err := strconv.Atoi(v); err == nil && n < 5 {
				c.clause["start=5 "] = "start=" + v + " "
			}
			c.converted(name, "scheduler.conf.md", "scheduler.conf: maxthr=%s", v)
		}
	}
	for _, name := range []string{"default_destination_rate_delay", "smtp_destination_rate_delay"} {
		if d, ok := duration(c.p.get(name), "s"); ok && d > 0 {
			rate := fmt.Sprintf("1/%s", interval(d))
			c.clause["#	hostrate=60/m  "] = "	hostrate=" + rate + "  "
			c.converted(name, "scheduler.conf.md", "scheduler.conf: hostrate=%s", rate)
		}
		c.notNeeded(name, "no delay")
	}
	for _, s := range c.p.settings {
		switch {
		case strings.HasSuffix(s.name, "_destination_recipient_limit"):
			c.notNeeded(s.name, "an agent puts as many recipients into a transaction as the host takes (docs/connecting.md)")
		case strings.HasSuffix(s.name, "_destination_concurrency_limit"), strings.HasSuffix(s.name, "_destination_rate_delay"), strings.HasSuffix(s.name, "_initial_destination_concurrency"):
			c.byHand(s.name, "scheduler.conf.md", "maxthr, hostrate and start of a clause")
		case strings.HasPrefix(s.name, "qmgr_"):
			c.notNeeded(s.name, "the scheduler knows all mail")
		}
	}
	for _, name := range []string{"defer_transports"} {
		if c.p.get(name) != "" {
			c.byHand(name, "queue.md", "zmctl suspend --channel CHANNEL")
		}
	}
	c.byHand("fast_flush_domains", "admin-guide.md", "zmctl flush HOST works for every host; ETRNNETS says who may use ETRN")
	if address := c.p.get("smtp_bind_address"); address != "" {
		c.clause["smtp/*\nsmtpx/*\nlmtp/*\n"] = "smtp/*\nsmtpx/*\nlmtp/*\n\tsources=" + address + "\n"
		c.converted("smtp_bind_address", "zones.md", "scheduler.conf: sources=%s", address)
	}
	c.byHand("smtp_bind_address6", "zones.md", "sources= of a clause of scheduler.conf")
	c.byHand("smtp_helo_name", "zones.md", "helo= of a clause of scheduler.conf; the default is HOSTNAME")
}

// writeScheduler writes scheduler.conf if it differs from the built-in one.
func writeScheduler(c *converter) { writeClauses(&c.b, c.clause) }

// writeClauses writes scheduler.conf with the parts replaced that are keys of clauses.
func writeClauses(b *builder, clauses map[string]string) {
	text := string(config.Default("scheduler.conf"))
	changed := false
	for old, new := range clauses {
		if strings.Contains(text, old) {
			text, changed = strings.Replace(text, old, new, 1), true
		}
	}
	if changed {
		b.add("scheduler.conf", text)
	}
}

// convertMailboxes converts where local mail goes.
func convertMailboxes(c *converter) {
	switch home, spool := c.p.get("home_mailbox"), c.p.get("mail_spool_directory"); {
	case home != "":
		c.b.set("MAILBOX", "%h/"+home, "home_mailbox")
		c.converted("home_mailbox", "mailboxes.md", "MAILBOX=%%h/%s", home)
	case c.p.isSet("mail_spool_directory"):
		path := strings.TrimSuffix(spool, "/") + "/%u"
		if strings.HasSuffix(spool, "/") {
			path += "/"
		}
		c.b.set("MAILBOX", path, "mail_spool_directory")
		c.converted("mail_spool_directory", "mailboxes.md", "MAILBOX=%s", path)
	}
	c.notNeeded("home_mailbox", "MAILBOX=/var/mail/%%u")
	c.notNeeded("mail_spool_directory", "home_mailbox comes first")
	if v := c.p.get("mailbox_size_limit"); c.p.isSet("mailbox_size_limit") && v != "0" {
		c.b.set("MAILBOXQUOTA", v, "mailbox_size_limit")
		c.converted("mailbox_size_limit", "mailboxes.md", "MAILBOXQUOTA=%s", v)
	}
	c.notNeeded("mailbox_size_limit", "no limit is the default")
	if t := c.p.get("mailbox_transport"); t != "" {
		if target, why := c.target(t, ""); why == "" && strings.HasPrefix(target, "lmtp!") {
			c.byHand("mailbox_transport", "mailboxes.md", "make the local domains virtual mailbox domains with VIRTUALTRANSPORT=%s, or routes: DOMAIN %s", target, target)
		}
		c.byHand("mailbox_transport", "mailboxes.md", "a route to the program's LMTP socket")
	}
	c.byHand("mailbox_command", "pipe.md", "a .forward \"|program\" of the user, or Dovecot's LMTP")
	c.byHand("mailbox_transport_maps", "mailboxes.md", "a route to the program's LMTP socket")
	c.byHand("forward_path", "routing.md", "FORWARD")
	c.notNeeded("allow_mail_to_commands", "docs/pipe.md")
	c.notNeeded("allow_mail_to_files", "docs/pipe.md")
	c.notNeeded("mailbox_delivery_lock", "fcntl and dot locks")
	c.converted("strict_mailbox_ownership", "mailboxes.md", "always")
	for _, name := range []string{"default_privs"} {
		if c.p.isSet(name) {
			c.b.set("PIPEUSER", c.p.get(name), name)
			c.converted(name, "pipe.md", "PIPEUSER=%s", c.p.get(name))
		}
	}
}
