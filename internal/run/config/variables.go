package config

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/xrash/smetrics"
)

// Variable is a name that zmailer.conf may set.
type Variable struct {
	Name    string
	Default string // as zmailer.conf shows it; "" if there is none
	Meaning string // one sentence for the postmaster

	check func(text string) error // nil: any text

	// by names the programs that read it. A reload does not apply it to those with a "!": the
	// value with which they were started holds until they are started again.
	by string
}

// Variables lists every name that zmailer.conf may set. The documentation and the
// default file are checked against it.
func Variables() []Variable {
	return []Variable{
		{"POSTOFFICE", DefaultPostOffice, "The directory that contains the queues; zmctl init creates it.", checkAbsolute, "zmctl! scheduler! router! smtpserver! ta-smtp! ta-mailbox! zmweb! zmotlp!"},
		{"HOSTNAME", "", "The name of this machine in Received lines, SMTP greetings and reports; the default is the name that hostname(1) prints.", checkWord, "scheduler router smtpserver ta-smtp ta-mailbox zmweb"},
		{"POSTMASTER", "postmaster", "The recipient of mail about the mail system itself: an address or a local user.", checkWord, "scheduler router"},
		{"HASHLEVELS", "0", "The number of levels of subdirectories in queue/ and transport/: 0, 1 or 2; use 1 for more than about ten thousand messages.", oneOf("0", "1", "2"), "scheduler! router! zmweb! zmotlp!"},
		{"SYNC", "normal", "normal: one fsync per accepted message; strict: also an fsync of its directories.", oneOf("normal", "strict"), "scheduler! router! smtpserver! ta-smtp"},
		{"CLUSTER", "", "The members of etcd, etcd://HOST:PORT,HOST:PORT,..., of the cluster to which this machine belongs: its programs work only while a lease is published in LEASEDIR (docs/cluster.md); without it this machine is in no cluster.", checkCluster, "scheduler! router! smtpserver! ta-smtp! ta-mailbox!"},
		{"NODE", "", "The name of this machine in the cluster; no other machine has it.", CheckNode, "scheduler! router! smtpserver! ta-smtp! ta-mailbox!"},
		{"LEASEDIR", DefaultLeaseDir, "The directory, in memory, in which the lease of this machine is published.", checkAbsolute, "scheduler! router! smtpserver! ta-smtp! ta-mailbox!"},
		{"TRUSTED", "", "Login names or numbers of users whose message files may contain external and other privileged lines; root and the daemons' user are always trusted.", nil, "router"},
		{"SENDERCHECK", "any", "The sender addresses that users outside TRUSTED may use (submit -f): any, every address; owner, only their own.", oneOf("any", "owner"), "router"},
		{"DAEMONUSER", "", "The user that the daemons switch to when root starts them, and that owns the postoffice that zmctl init creates; without it the daemons stay root (docs/privileges.md).", checkWord, "zmctl! scheduler! router! smtpserver! ta-smtp! ta-mailbox!"},
		{"CONFINE", "auto", "When Landlock restricts each daemon to its own directories: auto, if DAEMONUSER is set; yes, always; no, never.", oneOf("auto", "yes", "no"), "zmctl! scheduler! router! smtpserver! ta-smtp! ta-mailbox!"},
		{"CONFINEPATHS", "", "Directories outside the postoffice that confined daemons and lookup programs may write to.", nil, "zmctl! scheduler! router! smtpserver! ta-smtp! ta-mailbox!"},
		{"LOCALUSERS", "passwd", "The source of local users: passwd, or the path of a file with one login name per line.", checkUsers, "router ta-mailbox"},
		{"MASQUERADE", "masquerade", "Sources of the table that rewrites the addresses of local senders (docs/headers.md); the file masquerade may be missing.", nil, "router"},
		{"LOOKUPTIMEOUT", "5s", "The time limit of a lookup in a table that is not a text file; when it is exceeded, the message is deferred.", checkInterval, "router smtpserver"},
		{"LOOKUPKEEP", "5s", `How long the results of such lookups are cached, including "no such key"; 0 disables the cache.`, checkDuration, "router smtpserver"},
		{"LOOKUPPARALLEL", "32", "The maximum number of simultaneous lookups in each such table: connections to a server, or processes of a program.", checkPositive, "router"},
		{"ALIASES", "aliases", "Sources of the aliases of local names, searched in order (docs/routing.md); the file aliases may be missing.", nil, "router"},
		{"FQDNALIASES", "fqdnaliases", "Sources of the aliases of complete addresses, searched in order; the file fqdnaliases may be missing.", nil, "router"},
		{"LOCALNAMES", "localnames", "Sources of the list of local domains, searched in order; the file localnames may be missing.", nil, "router smtpserver"},
		{"ROUTES", "routes", "Sources of the routes of all other domains, searched in order; the file routes may be missing.", nil, "router"},
		{"VIRTUALALIASDOMAINS", "", "Sources of the list of virtual alias domains, whose addresses are found in FQDNALIASES and, as user@domain, in ALIASES and lists/; local users have no mail there.", nil, "router smtpserver"},
		{"VIRTUALMAILBOXDOMAINS", "", "Sources of the list of virtual mailbox domains, whose mailboxes are found in VIRTUALMAILBOXMAPS; behind a domain, words like uid=5000 hold for its mailboxes.", nil, "router smtpserver"},
		{"VIRTUALMAILBOXMAPS", "", "Sources of the table of virtual mailboxes: user@domain or @domain, the path below VIRTUALMAILBOXBASE, which is a Maildir if it ends in /, and uid=, gid=, mode=, quota= or transport=.", nil, "router"},
		{"VIRTUALMAILBOXBASE", "", "The directory of all virtual mailboxes.", checkAbsolute, "router ta-mailbox"},
		{"VIRTUALUIDMAPS", "", "Sources of the user IDs of virtual mailboxes: tables of user@domain or @domain, or a number, for all.", nil, "router"},
		{"VIRTUALGIDMAPS", "", "Sources of the group IDs of virtual mailboxes: tables of user@domain or @domain, or a number, for all.", nil, "router"},
		{"VIRTUALMINIMUMUID", "100", "The lowest user ID that may own a virtual mailbox; root never may.", checkPositive, "router ta-mailbox"},
		{"VIRTUALTRANSPORT", "virtual!", "Where mail for virtual mailboxes goes, as in the table routes: virtual!, ta-mailbox writes it; or a next hop, like lmtp!unix:/run/dovecot/lmtp.", checkWord, "router"},
		{"RELAYDOMAINS", "", "Sources of the list of domains for which mail from any client is relayed; .example.com is example.com and all domains below it.", nil, "router smtpserver"},
		{"ADDRESSVERIFY", "no", "Domains whose next hops are asked at RCPT whether they take the recipient: relay, those in RELAYDOMAINS; virtual, those in VIRTUALMAILBOXDOMAINS that a next hop has; some, only those with verify=yes; no, none.", func(text string) error {
			_, err := parseAddressVerify(strings.Fields(text))
			return err
		}, "router smtpserver"},
		{"ADDRESSVERIFYTIME", "6s", "How long a client waits for the answer of a next hop before it gets a 451 reply; the answer is there when it comes again.", checkInterval, "smtpserver"},
		{"ADDRESSVERIFYPOSITIVEEXPIRE", "31d", "How long the answer that a next hop takes a recipient counts.", checkDuration, "smtpserver"},
		{"ADDRESSVERIFYPOSITIVEREFRESH", "7d", "The age from which such an answer is asked again in the background when it is used.", checkDuration, "smtpserver"},
		{"ADDRESSVERIFYNEGATIVEEXPIRE", "3d", "How long the answer that a next hop does not take a recipient counts; 0: it is not cached.", checkDuration, "smtpserver"},
		{"ADDRESSVERIFYNEGATIVEREFRESH", "3h", "The age from which such an answer is asked again in the background when it is used.", checkDuration, "smtpserver"},
		{"ADDRESSVERIFYRATE", "300/1m", "The maximum number of such questions to one next hop in an interval; off: no limit.", checkRate, "smtpserver"},
		{"ADDRESSVERIFYENTRIES", "100000", "How many answers of next hops are kept; above that the oldest are forgotten.", checkPositive, "smtpserver"},
		{"RELAYRECIPIENTMAPS", "", "Sources of the table of recipients in RELAYDOMAINS: user@domain or @domain; without it all are accepted.", nil, "router"},
		{"POLICYSTEPS", "1000000", "The maximum number of steps of one call of router.star; a call that exceeds it fails, and the message waits in deferred/.", checkPositive, "router"},
		{"POLICYTIME", "10s", "The time limit of one call of router.star, including its lookups.", checkInterval, "router"},
		{"SUBADDRESS", "+", "Characters that separate user and tag in user+tag@domain; off: there are no tags.", nil, "router smtpserver"},
		{"PROPAGATEUNMATCHEDEXTENSIONS", "virtual", "Aliases of user that lead from user+tag to their addresses with +tag: virtual, those of fqdnaliases and virtual domains; alias, those of local names; off: none.", checkExtensions, "router"},
		{"FORWARD", "~/.forward", "The file with a user's own aliases; ~ is the user's home directory, %u the login name; off: users have no such file.", nil, "router!"},
		{"ROUTERWORKERS", "2", "The number of messages that a router process routes at the same time.", checkPositive, "router"},
		{"ROUTERPOLL", "15s", "The interval between scans of router/ when no notifications arrive.", checkInterval, "router"},
		{"ROUTERTRIES", "5", "The number of times that routing a message may crash a router or panic before the message is moved to postman/.", checkPositive, "router"},
		{"RESUBMIT", "5m,1h", "When a message in deferred/ is routed again: first after the first time, then after twice the previous wait, up to the second time; off: only when an operator runs zmctl resubmit.", checkResubmit, "router"},
		{"RESUBMITEXPIRY", "3d", "The age after which a message in deferred/ that still cannot be routed fails and its sender gets a report; 0: never.", checkDuration, "router"},
		{"ROUTERDIRS", "", "Additional directories beside router/ for mail of lower priority: router2, router3, ...; the router takes from each when those before it are empty.", nil, "router! smtpserver!"},
		{"ROUTERMODE", "closed", "closed: only the daemons can create files in router/; shared: other programs put messages there, as they do with ZMailer, and zmctl init sets the permissions.", oneOf("closed", "shared"), "zmctl"},
		{"ROUTERAGING", "1h", "A message that has waited in such a directory for this long gets every fourth turn, even if directories before it are not empty.", checkInterval, "router"},
		{"SMTPPRIORITY", "0", "The directory that smtpserver puts mail into: 0 is router/, 1 the first of ROUTERDIRS, and so on.", checkCount, "smtpserver"},
		{"POSTMANKEEP", "14d", "How long copies for the postmaster, postman/ID_REASON, are kept; 0: without limit; the only copy of a message is never removed.", checkDuration, "router"},
		{"PUBLICKEEP", "7d", "How long an unfinished file of another program stays in public/ before it is moved to quarantine/; 0: without limit.", checkDuration, "router"},
		{"POSTMANCOPY", "no", "yes: when a message has a broken header or is in a mail loop, a copy is put into postman/; the message itself is processed as usual.", checkBool, "router"},
		{"SCHEDULERPOLL", "15s", "The interval between scans of transport/ when no notifications arrive.", checkInterval, "scheduler"},
		{"REMOVEDKEEP", "3d", "How long zmctl undo can restore messages that zmctl remove moved to removed/; 0: without limit.", checkDuration, "scheduler"},
		{"ALARMS", "public=1h router=15m queue=4d deferred=1d frozen=7d progress=15m backend=10s", "Limits for alarms in zmctl status and the log: the age of mail in each state, the time for which a host with mail to deliver has started no delivery, and the time for which a server that is asked gives no answer; 0 after a name: no limit; off: no alarms.", nil, "scheduler router smtpserver"},
		{"SMTPLISTEN", "127.0.0.1:2525", "Addresses, host:port, on which smtpserver accepts mail from other hosts; off: none.", nil, "smtpserver ta-smtp"},
		{"SUBMISSIONLISTEN", "", "Addresses, host:port, on which users submit mail after STARTTLS and AUTH; the usual port is 587.", nil, "smtpserver ta-smtp"},
		{"SUBMISSIONSLISTEN", "", "Addresses, host:port, on which users submit mail after AUTH, with TLS from the start; the usual port is 465; requires TLSCERT.", nil, "smtpserver ta-smtp"},
		{"LMTPLISTEN", "", "Where other mail systems deliver by LMTP: the path of a Unix socket, which its owner and group may use, or host:port.", nil, "smtpserver"},
		{"CONTENTFILTER", "", "The content filter that all mail passes after it was accepted: CHANNEL!HOST like smtpx!127.0.0.1:10024, or Postfix's smtp:[127.0.0.1]:10024 (docs/content-filters.md).", nil, "scheduler router ta-smtp"},
		{"REINJECTLISTEN", "", "Addresses, host:port, to which the content filter gives mail back; no rule, check or filter is applied to it there.", nil, "smtpserver ta-smtp"},
		{"REINJECTNETS", "127.0.0.0/8 ::1/128", "Networks of the content filter: clients of REINJECTLISTEN.", nil, "smtpserver router"},
		{"TLSCERT", "", "Files with smtpserver's certificates and their chains, PEM; the server name that the client sends (SNI) selects one, otherwise the first is used; changed files are read again.", nil, "smtpserver"},
		{"TLSKEY", "", "Files with the private keys of these certificates, in the same order; without it, the files of TLSCERT contain the keys.", nil, "smtpserver"},
		{"TLSASKCERT", "no", "yes: smtpserver asks clients for a certificate so that access rules can identify them by it; the certificate is not verified.", checkBool, "smtpserver"},
		{"PROXYNETS", "", "Networks of proxies that begin each connection with a PROXY header (HAProxy's, version 1 or 2); a connection without it is closed.", nil, "smtpserver"},
		{"XCLIENTNETS", "", "Networks whose clients may use XCLIENT to act for other clients.", nil, "smtpserver"},
		{"XFORWARDNETS", "", "Networks whose clients may use XFORWARD to name the client that a message comes from, for the log; those of REINJECTNETS may on REINJECTLISTEN.", nil, "smtpserver"},
		{"REVERSELOOKUP", "no", "yes: smtpserver looks up the host name of a client before the greeting and records it in Received lines and the log.", checkBool, "smtpserver"},
		{"MINRATE", "100", "The minimum average rate, in bytes per second, at which a client must send a message; slower connections are closed, except those of authenticated users and of LIMITSEXEMPT; 0: no limit.", checkCount, "smtpserver"},
		{"RELAYNETS", "127.0.0.0/8 ::1/128", "Networks whose clients may send to any domain; other clients may send only to local domains.", nil, "smtpserver ta-smtp"},
		{"SENDERLOGIN", "", "Sources of a table of the authenticated users that may send from an address (docs/access.md); without it they may send from any address.", nil, "smtpserver"},
		{"RCPTCHECK", "yes", "When recipients that do not exist are rejected at RCPT: yes, in our domains, for all clients; untrusted, for clients that are neither in RELAYNETS nor authenticated; all, in other domains, too; no, never.", oneOf("yes", "untrusted", "all", "no"), "smtpserver"},
		{"RCPTCHECKTIME", "5s", "The time limit of the router's answer to this check.", checkInterval, "smtpserver"},
		{"RCPTCHECKKEEP", "10m", `How long an answer to this check is cached; "no such recipient" is cached for a tenth of that time; 0 disables the cache.`, checkDuration, "smtpserver"},
		{"RCPTCHECKTROUBLE", "defer", "What smtpserver does with recipients while the router does not answer: accept them, or defer them with a 451 reply.", oneOf("accept", "defer"), "smtpserver"},
		{"DNSBL_SITES", "", "DNS lists that are asked about clients: DOMAIN[=FILTER][*WEIGHT], like zen.example=127.0.0.[2..11]*2; a list with a negative weight vouches for clients (docs/dns-lists.md).", nil, "smtpserver"},
		{"DNSBL_THRESHOLD", "1", "The sum of the weights from which a client is refused.", checkPositive, "smtpserver"},
		{"DNSBL_ACTION", "enforce", "enforce: recipients of such a client are refused, unless a rule in the file access accepts them; ignore: only rules with dnsbl> use the sum.", oneOf("enforce", "ignore"), "smtpserver"},
		{"DNSBL_TIMEOUT", "10s", "How long a DNS list may take to answer; then the client counts as not listed there.", checkInterval, "smtpserver"},
		{"PREGREETWAIT", "0", "How long a client of another host that is not known waits for the end of the greeting, like 6s; one that speaks before is refused (docs/pregreet.md); 0: clients are not tested.", checkDuration, "smtpserver"},
		{"PREGREETACTION", "enforce", "What such a client gets: enforce, 550 for each recipient; drop, 521 and the end of the connection; ignore, only a line in the log.", oneOf("enforce", "drop", "ignore"), "smtpserver"},
		{"PREGREETKEEP", "1d", "How long a client that has waited is not tested again.", checkInterval, "smtpserver"},
		{"GREYLIST", "no", "yes: mail of unknown clients, senders and recipients is deferred first; rules: only where a rule of the file access says greylist (docs/greylisting.md).", oneOf("yes", "no", "rules"), "smtpserver"},
		{"GREYLISTDELAY", "5m", "How long such mail is deferred.", checkInterval, "smtpserver"},
		{"GREYLISTRETRY", "2d", "Within what time the client has to try again.", checkInterval, "smtpserver"},
		{"GREYLISTKEEP", "35d", "How long a client, sender and recipient are remembered after their last message.", checkInterval, "smtpserver"},
		{"GREYLISTALLOW", "5", "How many messages of a network have to come again, each an hour after the one before, until its mail is not deferred any more; 0: it always is.", checkCount, "smtpserver"},
		{"GREYLISTENTRIES", "200000", "How many clients, senders and recipients are remembered.", checkPositive, "smtpserver"},
		{"GREYLISTEXEMPT", "", "What else is not deferred: spf, mail that passes SPF; dnswl, clients with a sum below 0 in DNSBL_SITES.", nil, "smtpserver"},
		{"ETRNNETS", "127.0.0.0/8 ::1/128", "Networks whose clients may start the queue of any host with ETRN; rules in the file access can allow other clients.", nil, "smtpserver"},
		{"MAXSIZE", "200M", "The maximum size of a message, in bytes; k, M and G are powers of 1024.", checkSize, "router smtpserver"},
		{"MAXRCPT", "10000", "The maximum number of recipients of a message.", checkPositive, "smtpserver"},
		{"MAXRCPTUNAUTH", "1000", "The maximum number of recipients for clients that are not authenticated and in neither RELAYNETS nor LIMITSEXEMPT; RFC 5321 requires at least 100.", checkPositive, "smtpserver"},
		{"SMTPMEMORY", "100M", "The memory that all SMTP sessions together may use for recipients, in bytes; above it, further recipients get a 452 reply; a fifth is reserved for authenticated clients and those in LIMITSEXEMPT; 0: no limit.", checkSize, "smtpserver"},
		{"CHECKS", "", "Checks of mail from unauthenticated clients, for Authentication-Results and the access rules: some of spf, dkim and dmarc; a failed check alone rejects nothing.", nil, "smtpserver"},
		{"CHECKTIME", "20s", "The time limit of the DNS queries for each check of a message; an unfinished check gives temperror.", checkInterval, "smtpserver"},
		{"BODYRULESSIZE", "51200", "How many bytes of each part of a message the rules in body-rules are applied to (docs/headers.md).", checkSize, "router smtpserver"},
		{"RULESEXEMPT", "", "Networks whose clients' mail no rule about header and body is applied to, such as a content filter that returns mail.", nil, "smtpserver"},
		{"SRSSECRETS", "", "The file with the secrets by which senders of forwarded mail are rewritten, one a line, as postsrsd's; without it they are not (docs/srs.md).", nil, "router"},
		{"SRSDOMAIN", "", "The domain of the addresses that SRS makes; the default is HOSTNAME; any other must be a local domain.", nil, "router"},
		{"SRSEXCLUDE", "", "Domains, or .domain for all below, whose senders SRS does not rewrite; those of local domains it never does.", nil, "router"},
		{"SRSSEPARATOR", "=", "The character behind SRS0 and SRS1: =, + or -.", oneOf("=", "+", "-"), "router"},
		{"SRSHASHLENGTH", "4", "The number of letters of the hashes that SRS makes.", checkPositive, "router"},
		{"SRSHASHMIN", "4", "The number of letters that a hash must have at least.", checkPositive, "router"},
		{"HEADERFROM", "any", "The From fields that authenticated users may write: any; domain, in the domain of the envelope sender; sender, that address; login, an address that SENDERLOGIN allows them.", oneOf("any", "domain", "sender", "login"), "smtpserver"},
		{"HEADERNETS", "", "Networks whose clients' mail gets missing From, Date and Message-ID fields, as that of authenticated users does (docs/headers.md).", nil, "smtpserver"},
		{"HIDECLIENT", "no", "yes: Received lines of authenticated users' mail do not contain the client's name and address.", checkBool, "router"},
		{"MILTERS", "", "Mail filters (milters), called in order: unix:/path or inet:host:port. Options of one filter are in braces, as in Postfix: { inet:host:port, connect_timeout=10s, command_timeout=30s, content_timeout=5m, default_action=accept }.", nil, "smtpserver"},
		{"MILTERDAEMONNAME", "", "The macro {daemon_name} for filters: a name, or ROLE=NAME for the ports of one role (mx, submission, submissions, lmtp); several are separated by blanks. Without it: HOSTNAME.", nil, "smtpserver"},
		{"MILTERTIME", "30s", "The time limit of one step of a filter: to connect (connect_timeout), or to answer one command (command_timeout).", checkInterval, "smtpserver"},
		{"MILTERCONTENTTIME", "5m", "The time limit of a filter for the whole content of a message (content_timeout).", checkInterval, "smtpserver"},
		{"MILTERTROUBLE", "tempfail", "What happens to mail when a filter does not answer (default_action): tempfail or defer, the client is asked to try again later; accept, the message is accepted without the filter; reject, it is refused; quarantine, it is accepted and held in freezer/.", oneOf("tempfail", "defer", "accept", "reject", "quarantine"), "smtpserver"},
		{"AUTH", "", "The sources of user passwords and tokens for SUBMISSIONLISTEN and SUBMISSIONSLISTEN: file:PATH, dovecot:/path/to/socket, pam:SERVICE, ldap:FILE, saslauthd:/path/to/socket, oauth2:FILE (docs/auth.md); without any no one can authenticate.", nil, "smtpserver"},
		{"AUTHMX", "no", "yes: smtpserver offers AUTH on SMTPLISTEN, too.", checkBool, "smtpserver"},
		{"AUTHPLAINTEXT", "no", "yes: smtpserver offers AUTH without TLS to clients on other machines, too.", checkBool, "smtpserver"},
		{"AUTHFAILURES", "20/10m", "The maximum number of wrong passwords from one address in an interval; after that, AUTH is answered with 421; off: no limit.", checkRate, "smtpserver"},
		{"SMTPCONNECTIONS", "500", "The maximum number of simultaneous connections; further connections get a 421 reply.", checkPositive, "smtpserver"},
		{"SMTPPERADDRESS", "50", "The maximum number of simultaneous connections from one address (for IPv6, from one /64 network); 0: no limit.", checkCount, "smtpserver"},
		{"SMTPCONNECTRATE", "off", "The maximum number of connections from one address in an interval, like 60/1m; off: no limit.", checkRate, "smtpserver"},
		{"SMTPMESSAGERATE", "off", "The maximum number of messages in an interval of one user or, without a user, one address; off: no limit.", checkRate, "smtpserver"},
		{"SMTPRCPTRATE", "off", "The maximum number of recipients in an interval of one user or, without a user, one address; off: no limit.", checkRate, "smtpserver"},
		{"SMTPSENDERMESSAGERATE", "off", "The maximum number of messages in an interval with one envelope sender, from any client or user; off: no limit.", checkRate, "smtpserver"},
		{"SMTPSENDERRCPTRATE", "off", "The maximum number of recipients in an interval of messages with one envelope sender; off: no limit.", checkRate, "smtpserver"},
		{"RATELIMITS", "", "Sources of a table with other rates for single users, senders and their domains (docs/limits.md).", nil, "smtpserver"},
		{"SMTPERRORS", "20", "The maximum number of rejected commands since the last message before the connection is closed with 421; 0: no limit.", checkCount, "smtpserver"},
		{"LIMITSEXEMPT", "127.0.0.0/8 ::1/128", "Networks whose clients are exempt from the client limits; none: no network is exempt.", nil, "smtpserver"},
		{"MINFREE", "1M", "The free space, in bytes, that the postoffice's file system must keep when a message is accepted.", checkSize, "smtpserver"},
		{"MINFILES", "100", "The number of free files (inodes) that the postoffice's file system must keep when a message is accepted.", checkCount, "smtpserver"},
		{"MAXLOAD", "0", "The one-minute load average above which unauthenticated clients are asked to try again later; 0: no limit.", checkCount, "smtpserver"},
		{"SMTPBARELF", "reject", "What happens to messages from unauthenticated clients that contain LF without CR: reject or accept.", oneOf("reject", "accept"), "smtpserver"},
		{"RESOLVER", "", "host:port of the name server; the default is the name servers in /etc/resolv.conf.", checkHostPort, "scheduler smtpserver ta-smtp"},
		{"DANETRUST", "no", "yes: answers that RESOLVER marks as validated by DNSSEC are trusted although it runs on another machine; the network path to it must be secure.", checkBool, "ta-smtp"},
		{"TLSRPT", "yes", "yes: TLS successes and failures with other hosts are counted in tlsrpt/, for zmctl tlsrpt.", checkBool, "ta-smtp"},
		{"TLSRPTKEEP", "30d", "How long the file of a day is kept in tlsrpt/; 0: without limit.", checkDuration, "ta-smtp"},
		{"SMTPPORT", "25", "The port of other hosts' SMTP servers.", checkPort, "ta-smtp"},
		{"SMTPMINRATE", "500", "The minimum average rate, in bytes per second, at which another host must accept a message, measured after the first three minutes; at a lower rate the connection is closed and the message is tried again later; 0: no limit.", checkCount, "ta-smtp"},
		{"SMTPMAXTIME", "6h", "The time limit of another host for the content of a message, and before that for its replies from MAIL to DATA; 0: no limit.", checkDuration, "ta-smtp"},
		{"SIGNNETS", "", "Networks whose clients' mail is signed with the keys in the file dkim; the default is RELAYNETS; mail from this machine and from authenticated users is always signed.", nil, "ta-smtp"},
		{"DEADTIME", "15m", "How long an address of another host that did not answer is tried only after all other addresses; 0: it is tried in its usual order.", checkDuration, "ta-smtp"},
		{"MAILBOX", "/var/mail/%u", "The path of a user's mailbox: %u is the user, %h the home directory, %d the domain; a path that ends in / is a Maildir, any other an mbox file.", nil, "ta-mailbox"},
		{"MAILBOXQUOTA", "0", "The maximum size of a user's mailbox, in bytes; k, M and G are powers of 1024; 0: no limit.", checkSize, "ta-mailbox"},
		{"MAILBOXOVERQUOTA", "defer", "What happens to mail for a full mailbox: defer, it waits; fail, it is returned to the sender at once.", oneOf("defer", "fail"), "ta-mailbox"},
		{"PIPEUSER", "", "The user that runs programs named in files that root owns, such as aliases; without it they are not run.", checkWord, "ta-mailbox"},
		{"PIPENOBODY", "no", "yes: programs named in a file that other users may write are run as the user nobody; no: mail for them waits.", checkBool, "ta-mailbox"},
		{"PIPETIMEOUT", "15m", "The time limit of a program for one message; after that the program is killed, and run again later.", checkInterval, "ta-mailbox"},
		{"PIPEHEAD", "from return-path delivered-to", "The lines before the message on a program's standard input: some of from, return-path and delivered-to; or none.", nil, "ta-mailbox"},
		{"WEBLISTEN", "127.0.0.1:2580", "The address, host:port, of the pages of zmctl web; an address that other machines can reach requires WEBCERT.", checkWord, "zmweb"},
		{"WEBWRITE", "no", "yes: operators can change queued mail on the pages; no: the pages are read-only.", checkBool, "zmweb"},
		{"WEBTOKEN", "", "The file with the secret token for login on the pages, mode 0600; the default is .web.token in the postoffice; off: there is no token.", checkWord, "zmweb"},
		{"WEBACCOUNTS", "", "The accounts that may log in on the pages: a file of names and passwords written by zmctl passwd, or pam:SERVICE for the accounts of this machine.", checkWord, "zmweb"},
		{"WEBREADERS", "", "The accounts that may see the pages: names, and groups of this machine like @adm; the default with a file is all accounts in it, with PAM only WEBWRITERS.", nil, "zmweb"},
		{"WEBWRITERS", "", "The accounts that may see the pages and, if WEBWRITE=yes, change queued mail; the default with a file is all of WEBREADERS, with PAM none.", nil, "zmweb"},
		{"WEBHOSTS", "", "Additional host names under which clients may request the pages, for example behind a proxy; localhost, HOSTNAME and the address of WEBLISTEN are always allowed.", nil, "zmweb"},
		{"WEBCERT", "", "The file with the certificate of the pages and its chain, PEM.", checkWord, "zmweb"},
		{"WEBKEY", "", "The file with the private key of that certificate.", checkWord, "zmweb"},
		{"LOGFILE", "", "The file to which zmctl run and zmctl start write the log of all daemons; the default of zmctl run is standard error, that of zmctl start is the file log in the postoffice.", checkAbsolute, "zmctl!"},
		{"LOG", "auto", "The format of the log: auto (colours on a terminal, otherwise text), text, json or tint.", oneOf("auto", "text", "json", "tint"), "zmctl! scheduler! router! smtpserver! ta-smtp! ta-mailbox! zmweb! zmotlp!"},
		{"LOGFORMAT", "native", "The form of the log's lines: native, as LOG has it, or postfix, lines that programs for Postfix's log such as pflogsumm read.", oneOf("native", "postfix"), "zmctl! scheduler! router! smtpserver! ta-smtp! ta-mailbox! zmweb! zmotlp!"},
		{"LOGLEVEL", "info", "The lowest level that is logged: debug, info, warn or error.", oneOf("debug", "info", "warn", "error"), "zmctl! scheduler router smtpserver ta-smtp ta-mailbox zmweb zmotlp"},
		{"METRICS", "off", "Where Prometheus reads the metrics of smtpserver, router and scheduler: unix, one socket each in the postoffice, or words like router=127.0.0.1:9126, addresses of this machine only; off: there are no metrics.", checkMetrics, "zmctl! scheduler! router! smtpserver!"},
	}
}

// retired are names that earlier versions knew, and why they mean nothing now. They are
// reported and otherwise ignored, so that an old file still serves.
var retired = map[string]string{
	"SMTPWINDOW": "a connection carries one message at a time (docs/notes/answers.md)",
}

// lookup finds a variable by name.
func lookup(name string) (Variable, bool) {
	all := Variables()
	i := slices.IndexFunc(all, func(v Variable) bool { return v.Name == name })
	if i < 0 {
		return Variable{}, false
	}
	return all[i], true
}

// nearest returns the known name with the least edits from name.
func nearest(name string) string {
	best, least := "", len(name)+1
	for _, v := range Variables() {
		if d := distance(name, v.Name); best == "" || d < least {
			best, least = v.Name, d
		}
	}
	return best
}

// distance is the number of letters in which a name differs from a setting.
func distance(name, setting string) int {
	return smetrics.WagnerFischer(strings.ToUpper(name), setting, 1, 1, 1)
}

func oneOf(words ...string) func(string) error {
	return func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("it must be one of %s", strings.Join(words, ", "))
		}
		return nil
	}
}

func checkAbsolute(text string) error {
	if !filepath.IsAbs(text) {
		return fmt.Errorf("it must be a path from the root, like /var/spool/postoffice")
	}
	return nil
}

func checkWord(text string) error {
	if strings.ContainsAny(text, " \t") {
		return fmt.Errorf("it must be one word")
	}
	return nil
}

func checkUsers(text string) error {
	if text != "passwd" && !filepath.IsAbs(text) {
		return fmt.Errorf("it must be passwd or a path from the root")
	}
	return nil
}

func checkBool(text string) error {
	_, err := parseBool(text)
	return err
}

func checkPositive(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 1 {
		return fmt.Errorf("it must be a number above 0")
	}
	return nil
}

func checkCount(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 0 {
		return fmt.Errorf("it must be a number, 0 or more")
	}
	return nil
}

func checkExtensions(text string) error {
	for _, word := range strings.Fields(strings.ReplaceAll(text, ",", " ")) {
		if word != "virtual" && word != "alias" && text != "off" {
			return fmt.Errorf("%q is none of virtual, alias; off: no tags are passed on", word)
		}
	}
	return nil
}

func checkRate(text string) error {
	if text == "off" {
		return nil
	}
	count, per, ok := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	if d, derr := ParseDuration(per); !ok || err != nil || derr != nil || n < 1 || d <= 0 {
		return fmt.Errorf("it must be a number and a time, like 60/1m, or off")
	}
	return nil
}

func checkPort(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("it must be a port, 1 to 65535")
	}
	return nil
}

func checkHostPort(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || checkPort(port) != nil {
		return fmt.Errorf("it must be host:port, like 127.0.0.1:53 or [::1]:53")
	}
	return nil
}

func checkInterval(text string) error {
	d, err := ParseDuration(text)
	if err == nil && d <= 0 {
		err = fmt.Errorf("it must be longer than nothing")
	}
	return err
}

func checkDuration(text string) error {
	_, err := ParseDuration(text)
	return err
}

func checkSize(text string) error {
	_, err := ParseSize(text)
	return err
}
