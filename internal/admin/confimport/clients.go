package confimport

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// convertPorts converts the addresses that are listened on.
func convertPorts(c *converter) {
	var addresses []string
	for _, item := range list(c.p.get("inet_interfaces")) {
		switch item {
		case "all":
			addresses = append(addresses, "")
		case "loopback-only", "localhost":
			addresses = append(addresses, "127.0.0.1", "[::1]")
		default:
			if a, err := netip.ParseAddr(strings.Trim(item, "[]")); err == nil && a.Is6() {
				item = "[" + a.String() + "]"
			}
			addresses = append(addresses, item)
		}
	}
	if c.p.get("inet_protocols") == "ipv4" {
		addresses = slices.DeleteFunc(addresses, func(a string) bool { return strings.HasPrefix(a, "[") })
		for i, a := range addresses {
			if a == "" {
				addresses[i] = "0.0.0.0"
			}
		}
	}
	c.converted("inet_interfaces", "setup.md", "the addresses of SMTPLISTEN, SUBMISSIONLISTEN and SUBMISSIONSLISTEN")
	if p := c.p.get("inet_protocols"); p == "ipv4" {
		c.converted("inet_protocols", "setup.md", "the addresses of SMTPLISTEN; for outgoing mail sources= of a clause")
	}
	c.notNeeded("inet_protocols", "both are used")
	listens := map[string][]string{}
	if len(c.p.services) == 0 {
		c.p.services = []service{{name: "smtp", kind: "inet", command: "smtpd"}}
	}
	for _, s := range c.p.services {
		if s.kind != "inet" {
			continue
		}
		host, port, found := strings.Cut(s.name, ":")
		if i := strings.LastIndexByte(s.name, ':'); i >= 0 {
			host, port, found = s.name[:i], s.name[i+1:], true
		}
		if !found {
			host, port = "", s.name
		}
		number := map[string]string{"smtp": "25", "submission": "587", "smtps": "465", "submissions": "465"}[port]
		if number == "" {
			number = port
		}
		ours := "SMTPLISTEN"
		switch {
		case s.command == "postscreen":
			c.service(s, Converted, "dns-lists.md", "smtpserver does what postscreen does on the same port")
		case s.command != "smtpd":
			c.service(s, ByHand, "", "%s has no counterpart", s.command)
			continue
		case c.p.get("smtpd_tls_wrappermode", s) == "yes" && c.p.get("smtpd_tls_chain_files", s) == "" && c.p.get("smtpd_tls_cert_file", s) == "":
			c.service(s, ByHand, "tls.md", "SUBMISSIONSLISTEN=:465, once TLSCERT has a certificate")
			continue
		case c.p.get("smtpd_tls_wrappermode", s) == "yes":
			ours = "SUBMISSIONSLISTEN"
		case number == "587" || c.p.get("smtpd_sasl_auth_enable", s) == "yes" && number != "25":
			ours = "SUBMISSIONLISTEN"
		}
		if c.isWayBack(s) {
			ours = "REINJECTLISTEN"
			if nets, _ := c.networks(c.p.get("mynetworks", s)); len(nets) > 0 && !slices.Equal(nets, []string{"127.0.0.0/8"}) && slices.ContainsFunc(s.options, func(o setting) bool { return o.name == "mynetworks" }) {
				c.b.set("REINJECTNETS", strings.Join(nets, " "), "mynetworks of "+s.name)
			}
		} else if host != "" && number != "25" && number != "587" && number != "465" {
			// The way back from a content filter, or a port for another program.
			c.service(s, ByHand, "filters.md", "a port for another program: SMTPLISTEN=\"... %s:%s\", and rules of access for its clients", host, number)
			continue
		}
		for _, a := range addresses {
			if host != "" {
				a = host
			}
			if listen := a + ":" + number; !slices.Contains(listens[ours], listen) {
				listens[ours] = append(listens[ours], listen)
			}
		}
		c.service(s, Converted, map[bool]string{false: "setup.md", true: "content-filters.md"}[ours == "REINJECTLISTEN"], "%s", ours)
		if name := c.p.get("milter_macro_daemon_name", s); name != "" && name != c.p.get("milter_macro_daemon_name") {
			role := map[string]string{"SUBMISSIONLISTEN": "submission=", "SUBMISSIONSLISTEN": "submissions="}[ours]
			c.daemonNames = append(c.daemonNames, role+name)
		}
	}
	for _, ours := range []string{"SMTPLISTEN", "SUBMISSIONLISTEN", "SUBMISSIONSLISTEN", "REINJECTLISTEN"} {
		if len(listens[ours]) > 0 {
			c.b.set(ours, strings.Join(listens[ours], " "), "ports of master.cf, inet_interfaces")
		} else if ours == "SMTPLISTEN" {
			c.b.set(ours, "off", "master.cf has no smtpd on port 25")
		}
	}
	for _, s := range c.p.services {
		if s.command == "pipe" {
			c.service(s, ByHand, "pipe.md", "mail for a program: an alias \"|program\"; to Dovecot and Mailman by LMTP")
		} else if _, filter := c.contentFilter(); s.name == filter {
			continue // with content_filter
		} else if (s.command == "smtp" || s.command == "lmtp") && len(s.options) > 0 && s.name != "smtp" && s.name != "relay" && s.name != "lmtp" {
			c.service(s, ByHand, "scheduler.conf.md", "a clause %s/* of scheduler.conf", s.name)
		}
	}
}

// convertPeers converts the lists of clients that may speak for others.
func convertPeers(c *converter) {
	for _, t := range []struct{ name, ours string }{{"smtpd_authorized_xclient_hosts", "XCLIENTNETS"}, {"smtpd_authorized_xforward_hosts", "XFORWARDNETS"}} {
		nets, trouble := c.networks(c.p.get(t.name))
		if len(nets) == 0 && len(trouble) == 0 {
			c.notNeeded(t.name, "no client may")
			continue
		}
		if len(nets) > 0 {
			c.b.set(t.ours, strings.Join(nets, " "), t.name)
		}
		c.report(t.name, "smtpserver.md", t.ours+"="+strings.Join(nets, " "), trouble)
	}
}

// service adds the row of an entry of master.cf.
func (c *converter) service(s service, outcome Outcome, page, format string, args ...any) {
	var options []string
	for _, o := range s.options {
		options = append(options, o.name+"="+o.value)
	}
	c.rows = append(c.rows, Row{
		"master.cf: " + s.name + "/" + s.kind, strings.TrimSpace(s.command + " " + strings.Join(options, " ")),
		fmt.Sprintf("%s:%d", filepath.Join(c.p.dir, "master.cf"), s.line), outcome, fmt.Sprintf(format, args...), page,
	})
}

// anyService reports whether a parameter has a value in main.cf or for one of the services
// that accept mail.
func (c *converter) anyService(name, value string) bool {
	if c.p.get(name) == value {
		return true
	}
	return slices.ContainsFunc(c.p.services, func(s service) bool { return s.command == "smtpd" && c.p.get(name, s) == value })
}

// convertTLS converts certificates and policies.
func convertTLS(c *converter) {
	if chain := c.p.get("smtpd_tls_chain_files"); chain != "" {
		c.b.set("TLSCERT", strings.Join(list(chain), " "), "smtpd_tls_chain_files")
		c.converted("smtpd_tls_chain_files", "tls.md", "TLSCERT")
	} else if cert := c.p.get("smtpd_tls_cert_file"); cert != "" && cert != "none" {
		c.b.set("TLSCERT", cert, "smtpd_tls_cert_file")
		if key := c.p.get("smtpd_tls_key_file"); key != "" && key != cert {
			c.b.set("TLSKEY", key, "smtpd_tls_key_file")
		}
	}
	c.converted("smtpd_tls_cert_file", "tls.md", "TLSCERT")
	c.converted("smtpd_tls_key_file", "tls.md", "TLSKEY")
	if level := c.p.get("smtpd_tls_security_level"); level == "encrypt" {
		c.b.add("access", "reject tls=no role=mx : \"530 5.7.0 Must issue a STARTTLS command first\"\n")
		c.converted("smtpd_tls_security_level", "access.md", "access: reject tls=no")
	} else if level == "none" {
		c.byHand("smtpd_tls_security_level", "tls.md", "without TLSCERT there is no STARTTLS")
	}
	c.notNeeded("smtpd_tls_security_level", "STARTTLS is offered if there is a certificate")
	c.notNeeded("smtpd_use_tls", "STARTTLS is offered if there is a certificate")
	if c.p.get("smtpd_tls_auth_only") == "no" && c.anyService("smtpd_sasl_auth_enable", "yes") {
		c.b.set("AUTHPLAINTEXT", "yes", "smtpd_tls_auth_only=no")
		c.converted("smtpd_tls_auth_only", "auth.md", "AUTHPLAINTEXT=yes; no is better: passwords go in the clear")
	}
	c.notNeeded("smtpd_tls_auth_only", "AUTH is offered only with TLS")
	if c.p.get("smtpd_tls_ask_ccert") == "yes" || c.p.get("smtpd_tls_req_ccert") == "yes" {
		c.b.set("TLSASKCERT", "yes", "smtpd_tls_ask_ccert")
	}
	c.converted("smtpd_tls_ask_ccert", "access.md", "TLSASKCERT")
	c.byHand("smtpd_tls_req_ccert", "access.md", "TLSASKCERT=yes, and access: reject cert!=FINGERPRINT")
	c.byHand("relay_clientcerts", "access.md", "access: relay cert=FINGERPRINT (SHA-256)")
	c.byHand("smtpd_tls_CAfile", "access.md", "certificates of clients are identified by their fingerprint: cert= in access")
	policy := map[string]string{
		"may": "may", "encrypt": "encrypt", "dane": "dane", "dane-only": "dane-only", "verify": "verify match=host", "secure": "verify match=destination", "none": "none",
	}
	level := c.p.get("smtp_tls_security_level")
	if ours := policy[level]; ours != "" && ours != "may" {
		if c.p.get("smtp_tls_wrappermode") == "yes" {
			ours += " implicit"
		}
		c.b.add("tls", "*\t"+ours+"\n")
		c.converted("smtp_tls_security_level", "tls.md", "tls: * %s", ours)
	}
	c.notNeeded("smtp_tls_security_level", "TLS is used where it is offered")
	c.notNeeded("smtp_use_tls", "TLS is used where it is offered")
	c.converted("smtp_tls_wrappermode", "tls.md", "the word implicit in the file tls")
	if c.p.get("smtp_dns_support_level") == "dnssec" {
		c.byHand("smtp_dns_support_level", "tls.md", "DANE needs a validating name server on this machine, or DANETRUST=yes")
	}
	if maps := c.p.get("smtp_tls_policy_maps"); maps != "" {
		_, trouble := c.mapSources(maps, "tls", func(e entry) (string, bool) {
			words := strings.Fields(strings.ReplaceAll(e.value, ",", " "))
			if len(words) == 0 {
				return e.key + " has no policy", false
			}
			ours, rest := policy[words[0]], words[1:]
			if words[0] == "fingerprint" {
				for _, w := range rest {
					if hex, ok := strings.CutPrefix(w, "match="); ok {
						return e.key + "\tfingerprint=" + strings.ReplaceAll(hex, "|", ","), true
					}
				}
			}
			if ours == "" {
				return e.key + ": " + words[0] + " has no counterpart", false
			}
			for _, w := range rest {
				name, value, _ := strings.Cut(w, "=")
				switch name {
				case "match":
					names := strings.ReplaceAll(strings.ReplaceAll(value, ":", ","), "nexthop", "destination")
					ours = "verify match=" + strings.ReplaceAll(names, "dot-destination", "destination")
				case "protocols", "ciphers", "exclude", "servername", "connection_reuse", "tafile":
				default:
					return e.key + ": " + w + " has no counterpart", false
				}
			}
			return e.key + "\t" + ours, true
		})
		c.report("smtp_tls_policy_maps", "tls.md", "the file tls", trouble)
	}
	if c.p.get("smtp_sasl_auth_enable") == "yes" || c.p.get("smtp_sasl_password_maps") != "" {
		_, trouble := c.mapSources(c.p.get("smtp_sasl_password_maps"), "credentials", func(e entry) (string, bool) {
			user, password, _ := strings.Cut(e.value, ":")
			host := e.key
			if strings.Contains(host, "@") {
				return host + " is a sender: write HOST USER PASSWORD from=" + host, false
			}
			host = strings.NewReplacer("[", "", "]", "").Replace(host)
			return fmt.Sprintf("%s %s %s", host, quoteWord(user), quoteWord(password)), true
		})
		if c.b.tables["credentials"] != nil {
			c.b.secret("credentials")
		}
		c.report("smtp_sasl_password_maps", "tls.md", "credentials", trouble)
		c.converted("smtp_sasl_auth_enable", "tls.md", "credentials")
	}
	c.notNeeded("smtp_sasl_auth_enable", "no credentials")
	c.notNeeded("smtp_sasl_security_options", "passwords go only over verified TLS, or where the file tls and credentials say otherwise")
	c.notNeeded("smtp_sasl_tls_security_options", "passwords go only over verified TLS")
	c.notNeeded("smtp_sasl_mechanism_filter", "SCRAM-SHA-256, PLAIN or LOGIN, the first that is offered")
	c.byHand("smtp_sender_dependent_authentication", "tls.md", "credentials with from=")
	for _, s := range c.p.settings {
		if strings.Contains(s.name, "_tls_") || strings.HasPrefix(s.name, "tls_") {
			c.notNeeded(s.name, "TLS 1.2 and 1.3 with the ciphers of Go's library, and the system's authorities")
		}
	}
}

func quoteWord(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\"'#\\") {
		return s
	}
	return strconv.Quote(s)
}

// convertAuth converts how users log in.
func convertAuth(c *converter) {
	if !c.anyService("smtpd_sasl_auth_enable", "yes") {
		c.notNeeded("smtpd_sasl_auth_enable", "nobody logs in")
	} else {
		kind, path := c.p.get("smtpd_sasl_type"), c.p.get("smtpd_sasl_path")
		for _, s := range c.p.services {
			if s.command == "smtpd" && c.p.get("smtpd_sasl_auth_enable", s) == "yes" {
				kind, path = c.p.get("smtpd_sasl_type", s), c.p.get("smtpd_sasl_path", s)
			}
		}
		switch {
		case kind == "dovecot" && !strings.HasPrefix(path, "inet:"):
			c.b.set("AUTH", "dovecot:"+c.socket(path), "smtpd_sasl_type, smtpd_sasl_path")
			c.converted("smtpd_sasl_auth_enable", "auth.md", "AUTH=dovecot:%s", c.socket(path))
		default:
			c.byHand("smtpd_sasl_auth_enable", "auth.md", "type %s: AUTH=file:PATH, pam:SERVICE or another back end", kind)
		}
		if c.p.get("smtpd_sasl_auth_enable") == "yes" {
			for _, s := range c.p.services {
				if s.kind == "inet" && s.name == "smtp" && s.command == "smtpd" && c.p.get("smtpd_sasl_auth_enable", s) == "yes" {
					c.byHand("smtpd_sasl_local_domain", "auth.md", "AUTH is offered on the ports of users; on port 25 it is an option")
				}
			}
		}
	}
	c.converted("smtpd_sasl_type", "auth.md", "AUTH")
	c.converted("smtpd_sasl_path", "auth.md", "AUTH")
	c.notNeeded("smtpd_sasl_security_options", "passwords are taken only with TLS (AUTHPLAINTEXT=no)")
	c.notNeeded("smtpd_sasl_tls_security_options", "the mechanisms are those of the back end")
	c.notNeeded("smtpd_sasl_local_domain", "user names are taken as they are given")
	c.notNeeded("smtpd_sasl_authenticated_header", "HIDECLIENT is for the opposite")
	c.notNeeded("broken_sasl_auth_clients", "clients of that kind are gone")
	c.notNeeded("cyrus_sasl_config_path", "of Cyrus SASL")
	if maps := c.p.get("smtpd_sender_login_maps"); maps != "" {
		sources, trouble := c.mapSources(maps, "senderlogin", func(e entry) (string, bool) { return e.key + " " + e.value, true })
		if len(sources) > 0 {
			c.b.set("SENDERLOGIN", strings.Join(sources, " "), "smtpd_sender_login_maps")
		}
		c.report("smtpd_sender_login_maps", "access.md", "SENDERLOGIN="+strings.Join(sources, " "), trouble)
	}
}

// convertLimits converts sizes, numbers and rates.
func convertLimits(c *converter) {
	number := func(name, ours, page string) {
		if c.p.isSet(name) {
			c.b.set(ours, c.p.get(name), name)
			c.converted(name, page, "%s=%s", ours, c.p.get(name))
		}
	}
	if c.p.get("message_size_limit") == "0" {
		c.b.set("MAXSIZE", "1T", "message_size_limit=0")
		c.converted("message_size_limit", "limits.md", "MAXSIZE=1T")
	} else {
		c.b.set("MAXSIZE", c.p.get("message_size_limit"), "message_size_limit")
		c.converted("message_size_limit", "limits.md", "MAXSIZE=%s", c.p.get("message_size_limit"))
	}
	number("smtpd_recipient_limit", "MAXRCPTUNAUTH", "limits.md")
	number("queue_minfree", "MINFREE", "limits.md")
	number("smtpd_client_connection_count_limit", "SMTPPERADDRESS", "limits.md")
	unit := c.p.get("anvil_rate_time_unit")
	for name, ours := range map[string]string{
		"smtpd_client_connection_rate_limit": "SMTPCONNECTRATE", "smtpd_client_message_rate_limit": "SMTPMESSAGERATE", "smtpd_client_recipient_rate_limit": "SMTPRCPTRATE",
	} {
		if v := c.p.get(name); v != "" && v != "0" {
			c.b.set(ours, v+"/"+unit, name)
			c.converted(name, "limits.md", "%s=%s/%s", ours, v, unit)
		}
		c.notNeeded(name, "off by default")
	}
	if v := c.p.get("smtpd_client_auth_rate_limit"); v != "" && v != "0" {
		c.b.set("AUTHFAILURES", v+"/"+unit, "smtpd_client_auth_rate_limit")
		c.converted("smtpd_client_auth_rate_limit", "limits.md", "AUTHFAILURES, which counts wrong passwords")
	}
	c.notNeeded("anvil_rate_time_unit", "part of the rates")
	c.byHand("smtpd_client_event_limit_exceptions", "limits.md", "LIMITSEXEMPT")
	if v := c.p.get("smtpd_hard_error_limit"); v != "" && !strings.Contains(v, "stress") {
		if _, err := strconv.Atoi(v); err == nil {
			c.b.set("SMTPERRORS", v, "smtpd_hard_error_limit")
			c.converted("smtpd_hard_error_limit", "limits.md", "SMTPERRORS=%s", v)
		}
	}
	c.notNeeded("smtpd_hard_error_limit", "SMTPERRORS=20")
	for _, name := range []string{"smtpd_soft_error_limit", "smtpd_error_sleep_time", "smtpd_junk_command_limit", "smtpd_timeout", "smtpd_client_new_tls_session_rate_limit", "smtpd_starttls_timeout", "default_process_limit", "smtpd_per_record_deadline", "smtpd_per_request_deadline", "smtpd_min_data_rate"} {
		c.notNeeded(name, "SMTPERRORS, MINRATE and SMTPCONNECTIONS limit clients (docs/limits.md)")
	}
}
