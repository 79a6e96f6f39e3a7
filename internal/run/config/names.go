package config

import (
	"fmt"
	"strings"
)

// unknown explains a name that is no setting. An administrator of Postfix or of ZMailer writes the names
// that he knows.
func unknown(name string) string {
	const page = "docs/coming-from-postfix.md"
	lower := strings.ToLower(name)
	if here, ok := postfixNames[lower]; ok {
		return fmt.Sprintf("%s is not a setting; in place of Postfix's %s there is %s (%s)", name, lower, here, page)
	}
	if strings.Contains(name, "_") {
		// No setting here has an underscore but those of DNS lists, which have Postfix's names.
		if best := nearest(name); !strings.HasPrefix(best, "DNSBL_") || distance(name, best) > len(best)/3 {
			return fmt.Sprintf("%s is not a setting; %s names the counterparts of Postfix's parameters", name, page)
		}
	}
	return fmt.Sprintf("%s is not a setting; did you mean %s?", name, nearest(name))
}

// postfixNames are the parameters that everybody sets, and where their counterpart is.
var postfixNames = map[string]string{
	"alias_maps": "ALIASES", "alias_database": "ALIASES", "virtual_alias_maps": "FQDNALIASES",
	"content_filter": "CONTENTFILTER", "header_checks": "the file header-rules", "body_checks": "the file body-rules",
	"home_mailbox": "MAILBOX", "mail_spool_directory": "MAILBOX", "inet_interfaces": "SMTPLISTEN",
	"local_recipient_maps": "LOCALUSERS", "mailbox_size_limit": "MAILBOXQUOTA", "message_size_limit": "MAXSIZE",
	"maillog_file": "LOGFILE", "mydestination": "the file localnames", "mydomain": "no variable: write the domain where it is needed",
	"myhostname": "HOSTNAME", "mynetworks": "RELAYNETS", "myorigin": "a line of the file masquerade",
	"recipient_delimiter": "SUBADDRESS", "relay_domains": "RELAYDOMAINS", "relay_recipient_maps": "RELAYRECIPIENTMAPS",
	"relayhost": "a line of the file routes, such as . smtp!HOST", "transport_maps": "the file routes",
	"sender_canonical_maps": "MASQUERADE", "smtp_generic_maps": "MASQUERADE",
	"smtp_sasl_password_maps": "the file credentials", "smtp_tls_policy_maps": "the file tls", "smtp_tls_security_level": "the file tls",
	"smtpd_milters": "MILTERS", "milter_default_action": "MILTERTROUBLE", "smtpd_banner": "HOSTNAME, which the greeting names",
	"smtpd_client_restrictions": "rules in the file access", "smtpd_helo_restrictions": "rules in the file access",
	"smtpd_sender_restrictions": "rules in the file access", "smtpd_recipient_restrictions": "rules in the file access",
	"smtpd_relay_restrictions": "rules in the file access", "smtpd_sasl_path": "AUTH", "smtpd_sasl_type": "AUTH",
	"smtpd_sasl_auth_enable": "AUTH with SUBMISSIONLISTEN", "smtpd_sender_login_maps": "SENDERLOGIN",
	"smtpd_tls_cert_file": "TLSCERT", "smtpd_tls_chain_files": "TLSCERT", "smtpd_tls_key_file": "TLSKEY",
	"smtpd_tls_security_level": "TLSCERT, and reject tls=no in the file access", "smtpd_tls_auth_only": "AUTHPLAINTEXT",
	"virtual_gid_maps": "VIRTUALGIDMAPS", "virtual_uid_maps": "VIRTUALUIDMAPS", "virtual_mailbox_base": "VIRTUALMAILBOXBASE",
	"virtual_mailbox_domains": "VIRTUALMAILBOXDOMAINS", "virtual_mailbox_maps": "VIRTUALMAILBOXMAPS",
	"virtual_alias_domains": "VIRTUALALIASDOMAINS", "virtual_transport": "VIRTUALTRANSPORT",
	"virtual_mailbox_limit": "MAILBOXQUOTA, or quota= of a mailbox", "maximal_queue_lifetime": "expiry in scheduler.conf",
}
