package confimport

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// lists has Postfix's lists of restrictions in the order in which they are applied.
func lists() []string {
	return []string{
		"smtpd_client_restrictions", "smtpd_helo_restrictions", "smtpd_sender_restrictions", "smtpd_relay_restrictions", "smtpd_recipient_restrictions",
	}
}

// taken has the restrictions that the file access has under the same names, and what follows them.
func taken() map[string]string {
	return map[string]string{
		"reject_invalid_helo_hostname": "", "reject_non_fqdn_helo_hostname": "", "reject_unknown_helo_hostname": "",
		"reject_non_fqdn_sender": "", "reject_non_fqdn_recipient": "", "reject_unknown_sender_domain": "", "reject_unknown_recipient_domain": "",
		"reject_unknown_client_hostname": "", "reject_unknown_reverse_client_hostname": "",
		"reject_rbl_client": "list", "permit_dnswl_client": "list", "reject_rhsbl_client": "list", "permit_rhswl_client": "list",
		"reject_rhsbl_reverse_client": "list", "reject_rhsbl_helo": "list", "reject_rhsbl_sender": "list", "reject_rhsbl_recipient": "list",
		"check_client_access": "table", "check_helo_access": "table", "check_sender_access": "table", "check_recipient_access": "table",
		"check_policy_service":   "service",
		"reject_unlisted_sender": "", "reject_unverified_sender": "", "reject_unverified_recipient": "",
	}
}

// older has names that Postfix had before.
func older() map[string]string {
	return map[string]string{
		"reject_unknown_client": "reject_unknown_client_hostname", "reject_unknown_hostname": "reject_unknown_helo_hostname",
		"reject_invalid_hostname": "reject_invalid_helo_hostname", "reject_non_fqdn_hostname": "reject_non_fqdn_helo_hostname",
		"reject_maps_rbl": "",
	}
}

// convertRestrictions converts the lists of restrictions into rules of the file access. A permit
// ends only its own list in Postfix, so it becomes a condition of the rules behind it.
func convertRestrictions(c *converter) {
	nets, _ := c.networks(c.p.get("mynetworks"))
	for _, name := range lists() {
		if !c.p.isSet(name) {
			continue
		}
		var rules, trouble, conditions []string
		warn := ""
		items := list(c.p.get(name))
		for i := 0; i < len(items); i++ {
			word := items[i]
			if inner, ok := strings.CutPrefix(word, "{"); ok { // {check_policy_service inet:..., timeout=...}
				inner = strings.TrimSuffix(inner, "}")
				items = slices.Replace(items, i, i+1, list(inner)...)
				word = items[i]
			}
			if now, ok := older()[word]; ok && now != "" {
				word = now
			}
			argument, known := taken()[word]
			switch {
			case word == "permit_mynetworks":
				conditions = append(conditions, "client!="+strings.Join(nets, ","))
				continue
			case word == "permit_sasl_authenticated":
				conditions = append(conditions, "user=-")
				continue
			case slices.Contains([]string{"reject_unauth_destination", "defer_unauth_destination", "reject_unlisted_recipient", "reject_unauth_pipelining", "permit", "permit_auth_destination"}, word):
				continue // always so
			case strings.HasSuffix(word, "sender_login_mismatch"):
				continue // SENDERLOGIN
			case word == "warn_if_reject":
				warn = "warn_if_reject "
				continue
			case word == "reject" || word == "defer":
				if len(conditions) > 0 && name != "smtpd_relay_restrictions" {
					rules = append(rules, warn+strings.Join(append([]string{word, "role=mx"}, conditions...), " "))
				}
			case !known && i+1 < len(items) && strings.HasPrefix(word, "check_"):
				i++
				trouble = append(trouble, word+" "+items[i]+" has no counterpart")
			case !known:
				trouble = append(trouble, word+" has no counterpart")
			case argument == "":
				rules = append(rules, warn+strings.Join(append(c.verification(word), conditions...), " "))
			case i+1 == len(items):
				trouble = append(trouble, word+" without what it needs")
			default:
				i++
				if argument == "service" {
					items = unbraced(items, i)
				}
				value := items[i]
				why := ""
				switch argument {
				case "table":
					value, why = c.accessTable(value)
				case "service":
					value = c.policyService(value)
				}
				if why != "" {
					trouble = append(trouble, word+": "+why)
					break
				}
				rule := append([]string{word, value}, conditions...)
				for argument == "service" && i+1 < len(items) && strings.Contains(items[i+1], "=") {
					i++
					if key, _, _ := strings.Cut(items[i], "="); slices.Contains([]string{"timeout", "default_action", "policy_context"}, key) {
						rule = append(rule, items[i])
					}
				}
				if argument == "service" {
					rule = c.serviceOptions(rule)
				}
				rules = append(rules, warn+strings.Join(rule, " "))
			}
			warn = ""
		}
		if len(rules) > 0 {
			c.b.add("access", "# "+name+"\n"+strings.Join(rules, "\n")+"\n")
		}
		became := "the rules without restrictions: RELAYNETS and users relay, others reach local and relay domains"
		if len(rules) > 0 {
			became = fmt.Sprintf("rules in access: %d", len(rules))
		}
		c.report(name, "access.md", became, trouble)
	}
	for _, s := range c.p.services {
		if s.command != "smtpd" {
			continue
		}
		for _, o := range s.options {
			if slices.Contains(lists(), o.name) && s.name == "smtp" {
				c.service(s, ByHand, "access.md", "%s of one port: rules with role=", o.name)
			}
		}
	}
	for _, name := range []string{"smtpd_data_restrictions", "smtpd_end_of_data_restrictions", "smtpd_etrn_restrictions"} {
		value := c.p.get(name)
		switch {
		case value == "" || slices.Equal(list(value), []string{"reject_unauth_pipelining"}) || slices.Equal(list(value), []string{"reject_unauth_pipelining", "permit"}):
			c.notNeeded(name, "clients that do not wait for replies are refused")
		case strings.Contains(value, "check_policy_service"):
			state := map[string]string{"smtpd_data_restrictions": "DATA", "smtpd_end_of_data_restrictions": "END-OF-MESSAGE"}[name]
			items := list(value)
			if state != "" && items[0] == "check_policy_service" && len(items) > 1 {
				items = unbraced(items, 1)
				options := slices.DeleteFunc(slices.Clone(items[2:]), func(s string) bool { return s == "permit" })
				if !slices.ContainsFunc(options, func(s string) bool { return !strings.Contains(s, "=") }) {
					rule := append([]string{"check_policy_service", c.policyService(items[1]), "protocol_state=" + state}, options...)
					c.b.add("access", strings.Join(c.serviceOptions(rule), " ")+"\n")
					c.converted(name, "policy-service.md", "access: check_policy_service with protocol_state=%s", state)
				}
			}
			c.byHand(name, "policy-service.md", "check_policy_service with protocol_state= in access")
		default:
			c.byHand(name, "access.md", "rules of the file access")
		}
	}
	if c.p.get("smtpd_helo_required") == "yes" {
		c.notNeeded("smtpd_helo_required", "MAIL without HELO or EHLO is refused")
	}
	c.notNeeded("smtpd_helo_required", "always")
	c.byHand("smtpd_restriction_classes", "access.md", "rules with several conditions take the place of classes")
	for _, name := range []string{"policyd-spf_time_limit", "policy_time_limit"} {
		c.notNeeded(name, "of a service that master.cf starts: run it as a service of its own")
	}
	for _, s := range c.p.settings {
		if strings.HasSuffix(s.name, "_time_limit") && !c.done[s.name] {
			c.notNeeded(s.name, "of a service of master.cf")
		}
	}
	convertPostscreen(c)
	convertVerification(c)
}

// unbraced parts an item { inet:HOST:PORT, timeout=5s } into its words.
func unbraced(items []string, i int) []string {
	inner, ok := strings.CutPrefix(items[i], "{")
	words := list(strings.TrimSuffix(inner, "}"))
	if !ok || len(words) == 0 {
		return items
	}
	return slices.Replace(items, i, i+1, words...)
}

// serviceOptions adds to a rule with check_policy_service what main.cf sets for all of them.
func (c *converter) serviceOptions(rule []string) []string {
	for _, option := range []string{"timeout", "default_action", "policy_context"} {
		name := "smtpd_policy_service_" + option
		value := c.p.get(name)
		if !c.p.isSet(name) || value == "" || strings.HasPrefix(value, "$") || strings.ContainsAny(value, " \t") ||
			slices.ContainsFunc(rule, func(s string) bool { return strings.HasPrefix(s, option+"=") }) {
			continue
		}
		rule = append(rule, option+"="+value)
		c.converted(name, "policy-service.md", "access: %s=%s of check_policy_service", option, value)
	}
	return rule
}

// policyService returns where a policy service listens.
func (c *converter) policyService(text string) string {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		return "unix:" + c.socket(path)
	}
	return text
}

// accessTable makes the file of an access(5) table.
func (c *converter) accessTable(text string) (source, why string) {
	t := c.parseTable(text)
	switch {
	case t.isText() || t.kind == "cidr" || t.kind == "regexp" || t.kind == "pcre":
		content, err := readFile(c.path(t.name))
		if err != nil {
			return "", err.Error()
		}
		name := filepath.Base(t.name)
		if name == "access" || c.b.tables[name] != nil && !c.written[name] {
			name += "-rules"
		}
		if !c.written[name] {
			c.written[name] = true
			c.b.add(name, content)
		}
		return "file:" + name, ""
	case slices.Contains([]string{"pgsql", "mysql", "sqlite", "ldap"}, t.kind):
		return c.database(t, "")
	}
	return "", t.String() + " has no counterpart"
}

// convertPostscreen converts the DNS lists of postscreen.
func convertPostscreen(c *converter) {
	if sites := c.p.get("postscreen_dnsbl_sites"); sites != "" {
		c.b.set("DNSBL_SITES", strings.Join(list(sites), " "), "postscreen_dnsbl_sites")
		c.b.set("DNSBL_THRESHOLD", c.p.get("postscreen_dnsbl_threshold"), "postscreen_dnsbl_threshold")
		action := "enforce"
		if c.p.get("postscreen_dnsbl_action") == "ignore" {
			action = "ignore"
		}
		c.b.set("DNSBL_ACTION", action, "postscreen_dnsbl_action")
		for _, name := range []string{"postscreen_dnsbl_sites", "postscreen_dnsbl_threshold", "postscreen_dnsbl_action"} {
			c.converted(name, "dns-lists.md", "DNSBL_SITES, DNSBL_THRESHOLD, DNSBL_ACTION=%s", action)
		}
	}
	if access := c.p.get("postscreen_access_list"); access != "" && access != "permit_mynetworks" {
		c.byHand("postscreen_access_list", "access.md", "check_client_access at the top of access")
	}
	for _, s := range c.p.settings {
		if !strings.HasPrefix(s.name, "postscreen_") {
			continue
		}
		switch {
		case strings.HasPrefix(s.name, "postscreen_dnsbl_"):
			c.notNeeded(s.name, "DNSBL_TIMEOUT; answers are remembered for their time to live")
		case strings.Contains(s.name, "bare_newline"), strings.Contains(s.name, "pipelining"), strings.Contains(s.name, "non_smtp"):
			c.notNeeded(s.name, "always")
		default:
			c.notNeeded(s.name, "of postscreen")
		}
	}
}

// verificationCodes are settings of Postfix that are options of a rule.
var verificationCodes = []string{
	"unverified_sender_reject_code", "unverified_sender_defer_code", "unverified_sender_tempfail_action",
	"unverified_recipient_reject_code", "unverified_recipient_defer_code", "unverified_recipient_tempfail_action",
}

// verification returns a restriction with the options that Postfix has as settings.
func (c *converter) verification(word string) []string {
	rule := []string{word}
	what, is := strings.CutPrefix(word, "reject_")
	for _, option := range []string{"reject_code", "defer_code", "tempfail_action"} {
		name := what + "_" + option
		if value := c.p.get(name); is && slices.Contains(verificationCodes, name) && c.p.isSet(name) && !strings.HasPrefix(value, "$") {
			rule = append(rule, option+"="+value)
		}
	}
	return rule
}

func convertVerification(c *converter) {
	for _, t := range []struct{ of, setting, unit string }{
		{"positive_expire_time", "ADDRESSVERIFYPOSITIVEEXPIRE", "d"}, {"positive_refresh_time", "ADDRESSVERIFYPOSITIVEREFRESH", "d"},
		{"negative_expire_time", "ADDRESSVERIFYNEGATIVEEXPIRE", "d"}, {"negative_refresh_time", "ADDRESSVERIFYNEGATIVEREFRESH", "h"},
	} {
		name := "address_verify_" + t.of
		if d, ok := duration(c.p.get(name), t.unit); ok && d > 0 && c.p.isSet(name) {
			c.b.set(t.setting, interval(d), name)
			c.converted(name, "relay-domains.md", "%s=%s", t.setting, interval(d))
		}
	}
	if c.p.get("address_verify_negative_cache") == "no" {
		c.b.set("ADDRESSVERIFYNEGATIVEEXPIRE", "0", "address_verify_negative_cache")
		c.converted("address_verify_negative_cache", "relay-domains.md", "ADDRESSVERIFYNEGATIVEEXPIRE=0")
	}
	for _, name := range verificationCodes {
		c.converted(name, "access.md", "access: an option of reject_unverified_sender and reject_unverified_recipient; 450 without it, as there")
	}
}

// milterActions are the default actions of filters that MILTERTROUBLE and the option have, too.
var milterActions = []string{"accept", "reject", "tempfail", "quarantine"}

// milter converts a filter with its options; trouble are those that have no counterpart.
func (c *converter) milter(item string) (ours string, trouble []string) {
	words := []string{item}
	if inner, ok := strings.CutPrefix(item, "{"); ok {
		words = list(strings.TrimSuffix(inner, "}"))
	}
	if len(words) == 0 {
		return "", []string{item}
	}
	switch family, rest, _ := strings.Cut(words[0], ":"); family {
	case "unix", "local":
		ours = "unix:" + c.socket(rest)
	case "inet", "inet6":
		ours = "inet:" + rest
	default:
		return "", []string{item}
	}
	connect := c.p.get("milter_connect_timeout")
	var options []string
	for _, word := range words[1:] {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "connect_timeout":
			connect = value
		case "command_timeout", "content_timeout":
			options = append(options, word)
		case "default_action":
			if !slices.Contains(milterActions, value) {
				trouble = append(trouble, word+" of "+words[0])
				continue
			}
			options = append(options, word)
		case "protocol": // it is agreed on with the filter
		default:
			trouble = append(trouble, word+" of "+words[0])
		}
	}
	if connect != "" {
		options = append([]string{"connect_timeout=" + connect}, options...)
	}
	if len(options) > 0 {
		ours = "{ " + ours + ", " + strings.Join(options, ", ") + " }"
	}
	return ours, trouble
}

// convertContent converts filters and rules about content.
func convertContent(c *converter) {
	var milters, trouble []string
	for _, item := range list(c.p.get("smtpd_milters")) {
		ours, wrong := c.milter(item)
		if ours != "" {
			milters = append(milters, ours)
		}
		trouble = append(trouble, wrong...)
	}
	if len(milters) > 0 {
		c.b.set("MILTERS", strings.Join(milters, " "), "smtpd_milters")
	}
	for name, ours := range map[string]string{"milter_command_timeout": "MILTERTIME", "milter_content_timeout": "MILTERCONTENTTIME"} {
		if value := c.p.get(name); c.p.isSet(name) {
			c.b.set(ours, value, name)
			c.converted(name, "filters.md", "%s=%s", ours, value)
		}
	}
	if c.p.isSet("milter_connect_timeout") {
		c.converted("milter_connect_timeout", "filters.md", "the option connect_timeout of each filter in MILTERS")
	}
	c.report("smtpd_milters", "filters.md", "MILTERS="+strings.Join(milters, " "), trouble)
	if c.p.get("non_smtpd_milters") == "" || len(milters) == 0 {
		c.notNeeded("non_smtpd_milters", "no filters")
	} else {
		c.byHand("non_smtpd_milters", "filters.md", "filters get mail that comes by SMTP; keys in the file dkim sign local mail (docs/dkim.md)")
	}
	if c.p.isSet("milter_default_action") {
		action := c.p.get("milter_default_action")
		if !slices.Contains(milterActions, action) {
			c.byHand("milter_default_action", "filters.md", "%s: MILTERTROUBLE is one of %s", action, strings.Join(milterActions, ", "))
		} else {
			c.b.set("MILTERTROUBLE", action, "milter_default_action")
			c.converted("milter_default_action", "filters.md", "MILTERTROUBLE=%s", action)
		}
	}
	c.notNeeded("milter_protocol", "version 6")
	if name := c.p.get("milter_macro_daemon_name"); name != "" {
		c.daemonNames = append([]string{name}, c.daemonNames...)
		c.converted("milter_macro_daemon_name", "filters.md", "MILTERDAEMONNAME=%s", name)
	}
	if len(c.daemonNames) > 0 && len(milters) > 0 {
		c.b.set("MILTERDAEMONNAME", strings.Join(c.daemonNames, " "), "milter_macro_daemon_name")
	}
	for _, s := range c.p.settings {
		if strings.HasPrefix(s.name, "milter_") {
			c.notNeeded(s.name, "all macros are sent")
		}
	}
	for name, file := range map[string]string{"header_checks": "header-rules", "mime_header_checks": "mime-header-rules", "nested_header_checks": "nested-header-rules", "body_checks": "body-rules"} {
		var trouble []string
		for _, item := range list(c.p.get(name)) {
			t := c.parseTable(item)
			text, err := readFile(c.path(t.name))
			switch {
			case t.kind != "regexp" && t.kind != "pcre":
				trouble = append(trouble, item+" is no table of patterns")
			case err != nil:
				trouble = append(trouble, err.Error())
			default:
				c.b.add(file, text)
			}
		}
		c.report(name, "headers.md", file, trouble)
	}
	if v := c.p.get("body_checks_size_limit"); c.p.isSet("body_checks_size_limit") {
		c.b.set("BODYRULESSIZE", v, "body_checks_size_limit")
		c.converted("body_checks_size_limit", "headers.md", "BODYRULESSIZE=%s", v)
	}
	c.byHand("smtp_header_checks", "headers.md", "header-rules hold for all mail")
	c.notNeeded("strict_mime_encoding_domain", "content is never changed")
}
