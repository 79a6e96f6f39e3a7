package confimport

import (
	"fmt"
	"slices"
	"strings"

	"zmailer/internal/run/config"
)

// debian converts update-exim4.conf.conf, from which Debian makes Exim's configuration.
func (x *eximConfig) debian(file string) error {
	lines, err := eximLines(file)
	if err != nil {
		return err
	}
	for _, l := range lines {
		name, value, ok := strings.Cut(l.text, "=")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(name, " \t") {
			return &config.Error{File: l.file, Line: l.number, Reason: fmt.Sprintf("%.80q is not NAME='VALUE'", l.text)}
		}
		value = strings.Trim(strings.TrimSpace(value), `'"`)
		x.settings = append(x.settings, setting{name: name, value: value, file: l.file, line: l.number})
		x.value[name] = value
	}
	kind := x.value["dc_eximconfig_configtype"]
	if !slices.Contains([]string{"internet", "smarthost", "satellite", "local", "none"}, kind) {
		return &config.Error{File: file, Reason: fmt.Sprintf("dc_eximconfig_configtype is %q, not internet, smarthost, satellite, local or none", kind)}
	}
	x.macros()
	get := func(name string) setting {
		if i := slices.IndexFunc(x.settings, func(s setting) bool { return s.name == name }); i >= 0 {
			return x.settings[i]
		}
		return setting{name: name, file: file}
	}
	x.localDomains(get("dc_other_hostnames"), append([]string{"@", "localhost"}, eximList(x.value["dc_other_hostnames"])...))
	if _, text := x.text("hubbed_hosts"); text != "" {
		x.hubbed(text)
	}
	relay := "" // the smarthost
	for _, s := range x.settings {
		switch s.name {
		case "dc_other_hostnames":
		case "dc_eximconfig_configtype":
			relay = x.kind(s, get("dc_smarthost"), x.value["dc_readhost"])
		case "dc_smarthost":
			if s.value == "" || kind != "smarthost" && kind != "satellite" {
				x.row(s, NotNeeded, "", "used by the types smarthost and satellite")
			}
		case "dc_local_interfaces":
			x.interfaces(s, eximList(s.value))
		case "dc_relay_domains":
			x.relayDomains(s, eximList(s.value))
		case "dc_relay_nets":
			x.relayNets(s, eximList(s.value))
		case "dc_localdelivery":
			x.mailbox(s)
		case "dc_readhost", "dc_hide_mailname":
			host := x.readhost()
			if host == "" || !isDomain(host) {
				x.row(s, NotNeeded, "", "used with dc_hide_mailname=true and by the type satellite")
				continue
			}
			if s.name == "dc_readhost" {
				for _, d := range x.senderDomains() {
					if d != host && !strings.HasPrefix(d, ".") {
						x.b.add("masquerade", fmt.Sprintf("@%s: @%s\n", d, host))
					}
				}
			}
			x.row(s, Converted, "headers.md", "masquerade: senders at local domains appear at %s", host)
		case "dc_minimaldns", "dc_mailname_in_oh", "CFILEMODE":
			x.row(s, NotNeeded, "", "of Debian's script")
		case "dc_use_split_config":
			if s.value == "true" {
				x.row(s, ByHand, "coming-from-exim.md", "files of yours in conf.d are not read; router.star does what routers of your own did")
				continue
			}
			x.row(s, NotNeeded, "", "of Debian's script")
		default:
			x.row(s, ByHand, "coming-from-exim.md", "no counterpart is known")
		}
	}
	x.aliases("aliases")
	x.emailAddresses()
	x.clientPasswords(relay)
	for _, name := range []string{"host_local_deny_exceptions", "host_local_deny", "local_host_blacklist", "local_sender_blacklist", "local_sender_callout", "local_rcpt_callout", "local_domain_dnsbl_whitelist"} {
		if path := x.find(name); path != "" {
			x.row(setting{name: name, file: path}, ByHand, "access.md", "rules of access: reject client=, reject from=")
		}
	}
	return nil
}

// kind converts the type of configuration: where mail for other domains goes. It returns the
// smarthost with its port.
func (x *eximConfig) kind(s, smart setting, readhost string) (host string) {
	switch s.value {
	case "internet":
		x.row(s, NotNeeded, "", "mail goes to the MX of its domain")
	case "local":
		x.b.add("routes", ".\terror!5.1.2:"+xtext("Mailing to remote domains not supported")+"\n")
		x.row(s, Converted, "routing.md", "routes: . error!5.1.2")
	case "none":
		x.row(s, ByHand, "setup.md", "Exim is not configured: zmctl setup asks what is needed")
	default:
		target, next, why := smarthost(eximList(smart.value))
		if target == "" {
			x.row(smart, ByHand, "connecting.md", "routes: . smtpx!HOST: %s", why)
			break
		}
		host = next
		x.b.add("routes", ".\t"+target+"\n")
		var trouble []string
		if why != "" {
			trouble = append(trouble, why)
		}
		if s.value == "satellite" {
			trouble = append(trouble, x.satellite(readhost)...)
		}
		x.outcome(smart, "connecting.md", "routes: . "+target, trouble)
		x.row(s, Converted, "routing.md", "routes")
	}
	return host
}

// satellite has the mail of local users sent to the host where they read it.
func (x *eximConfig) satellite(readhost string) (trouble []string) {
	switch {
	case readhost == "":
		return []string{"dc_readhost is empty: local users' mail stays here"}
	case slices.Contains(x.local, readhost):
		return []string{"dc_readhost is a local domain: local users' mail stays here"}
	}
	for _, d := range x.local {
		if !strings.HasPrefix(d, ".") {
			x.b.add("fqdnaliases", fmt.Sprintf("@%s: %%1@%s\n", d, readhost))
		}
	}
	return nil
}

// hubbed converts hubbed_hosts: domains with hosts of their own.
func (x *eximConfig) hubbed(text string) {
	var trouble []string
	for _, l := range logical(text, "#") {
		domain, hosts, _ := strings.Cut(l, ":")
		domain = strings.TrimSpace(domain)
		target, _, why := smarthost(eximList(strings.NewReplacer("byname", "", "bydns", "").Replace(hosts)))
		if why != "" {
			trouble = append(trouble, domain+": "+why)
		}
		if strings.HasPrefix(domain, "*.") {
			domain = domain[1:]
		}
		if target == "" || !isDomain(domain) || strings.Contains(domain, "*") {
			trouble = append(trouble, domain+" is not converted")
			continue
		}
		x.b.add("routes", domain+"\t"+target+"\n")
	}
	x.outcome(setting{name: "hubbed_hosts", file: x.find("hubbed_hosts")}, "routing.md", "routes", trouble)
}

// macros reads the macros of the administrator.
func (x *eximConfig) macros() {
	path := x.find(macroFile)
	host := ""
	if path == "" {
		x.names("")
		return
	}
	lines, err := eximLines(path)
	for _, l := range lines {
		name, value, _ := strings.Cut(l.text, "=")
		s := setting{name: strings.TrimSpace(name), value: strings.TrimSpace(value), file: l.file, line: l.number}
		switch s.name {
		case "MAIN_HARDCODE_PRIMARY_HOSTNAME":
			host = s.value
			x.row(s, Converted, "setup.md", "HOSTNAME=%s", host)
		case "MESSAGE_SIZE_LIMIT":
			x.b.set("MAXSIZE", s.value, s.name)
			x.row(s, Converted, "limits.md", "MAXSIZE=%s", s.value)
		case "MAIN_TLS_CERTIFICATE", "MAIN_TLS_CERTKEY":
			x.b.set("TLSCERT", s.value, s.name)
			x.row(s, Converted, "tls.md", "TLSCERT=%s", s.value)
		case "MAIN_TLS_PRIVATEKEY":
			x.b.set("TLSKEY", s.value, s.name)
			x.row(s, Converted, "tls.md", "TLSKEY=%s", s.value)
		case "MAIN_TLS_ENABLE":
			x.row(s, NotNeeded, "", "STARTTLS is offered if there is a certificate")
		case "REMOTE_SMTP_SMARTHOST_HOSTS_REQUIRE_TLS":
			x.b.add("tls", "*\tencrypt\n")
			x.row(s, Converted, "tls.md", "tls: * encrypt")
		default:
			x.row(s, ByHand, "coming-from-exim.md", "a macro of your own")
		}
	}
	x.names(host)
	if err != nil {
		x.row(setting{name: macroFile, file: path}, ByHand, "", "%v", err)
	}
}
