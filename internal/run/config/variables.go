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
	Default string // as it would stand in the file; "" if there is none
	Meaning string // one sentence for a postmaster

	check func(text string) error // nil: any text
}

// Variables lists every name that zmailer.conf may set. The documentation and the
// default file are checked against it.
func Variables() []Variable {
	return []Variable{
		{"POSTOFFICE", DefaultPostOffice, "The directory of the queues; zmctl init makes one.", checkAbsolute},
		{"HOSTNAME", "", "This machine's name in Received lines, greetings and reports; without it, what the system says.", checkWord},
		{"POSTMASTER", "postmaster", "Who gets what concerns the mail system; an address or a local user.", checkWord},
		{"HASHLEVELS", "0", "Levels of directories in queue/ and transport/: 0, 1 or 2; 1 serves above some ten thousand messages.", oneOf("0", "1", "2")},
		{"SYNC", "normal", "normal: one fsync per accepted message; strict: its directories too.", oneOf("normal", "strict")},
		{"TRUSTED", "", "Login names or numbers of users whose message files are believed in external and other privileged lines; root and the user of the daemons always are.", nil},
		{"SENDERCHECK", "any", "Which sender users who are not in TRUSTED may give their mail (submit -f): any; or owner, their own address alone.", oneOf("any", "owner")},
		{"DAEMONUSER", "", "The user that the daemons become when root starts them, and whose postoffice zmctl init makes; without it they stay root (docs/privileges.md).", checkWord},
		{"CONFINE", "auto", "Whether the kernel holds each daemon to its own directories (Landlock): auto, with DAEMONUSER; yes, always; no, never.", oneOf("auto", "yes", "no")},
		{"CONFINEPATHS", "", "Directories outside of the postoffice that confined daemons and the programs of tables may write to.", nil},
		{"LOCALUSERS", "passwd", "Where local users are looked up: passwd, or the path of a file with one login name a line.", checkUsers},
		{"MASQUERADE", "masquerade", "Sources of the addresses that local senders appear under, as docs/headers.md has them; the file masquerade may be missing.", nil},
		{"LOOKUPTIMEOUT", "5s", "How long a lookup in a table that is no text file may take before its mail is deferred.", checkInterval},
		{"LOOKUPKEEP", "5s", "How long what such a table said is remembered, also that it has no such key; 0: not at all.", checkDuration},
		{"LOOKUPPARALLEL", "32", "How many lookups each such source is asked for at the same time: connections to a server, children of a program.", checkPositive},
		{"ALIASES", "aliases", "Sources of the aliases of local names, asked in their order, as docs/routing.md has them; the file aliases may be missing.", nil},
		{"FQDNALIASES", "fqdnaliases", "The same for aliases of whole addresses.", nil},
		{"LOCALNAMES", "localnames", "The same for the domains that are ours.", nil},
		{"ROUTES", "routes", "The same for the routes of all other domains.", nil},
		{"POLICYSTEPS", "1000000", "How many steps a call of router.star may take; more is an error, and the message waits in deferred/.", checkPositive},
		{"POLICYTIME", "10s", "The same for its time, lookups included.", checkInterval},
		{"SUBADDRESS", "+", "Characters of which one parts user and tag in an address; off: none.", nil},
		{"FORWARD", "~/.forward", "A user's own aliases: a path with ~ for his home or %u for his login; off: none.", nil},
		{"ROUTERWORKERS", "2", "Messages that one router process routes at the same time.", checkPositive},
		{"ROUTERPOLL", "15s", "How often router/ is looked at when no notification comes.", checkInterval},
		{"ROUTERTRIES", "5", "How many routers a message may end, by their death or a panic, before it is put into postman/.", checkPositive},
		{"RESUBMIT", "5m,1h", "When a message that waits in deferred/ is routed again: after the first of these times, then after twice as long each time, and at most the second; off: when somebody resubmits it.", checkResubmit},
		{"RESUBMITEXPIRY", "3d", "How old such a message may get before its sender is told that it was given up; 0: for ever.", checkDuration},
		{"ROUTERDIRS", "", "Further directories beside router/, for mail that may wait: router2, router3, ...; each is looked into when those before it are empty.", nil},
		{"ROUTERMODE", "closed", "closed: only the daemons can put files into router/. shared: other programs put messages there, as into ZMailer's; zmctl init opens it.", oneOf("closed", "shared")},
		{"ROUTERAGING", "1h", "A message that has waited so long in such a directory gets each fourth turn, however much is before it.", checkInterval},
		{"SMTPPRIORITY", "0", "Where smtpserver puts mail: 0 is router/, 1 the first of ROUTERDIRS, and so on.", checkCount},
		{"POSTMANKEEP", "14d", "How long a copy for the postmaster, postman/I_why, is kept; 0: for ever. An only copy is never removed.", checkDuration},
		{"PUBLICKEEP", "7d", "How long another program's unfinished file stays in public/ before it goes to quarantine/; 0: for ever.", checkDuration},
		{"POSTMANCOPY", "no", "yes: of a message whose header is broken or that has gone in circles a copy is left in postman/; the message itself goes on.", checkBool},
		{"SCHEDULERPOLL", "15s", "How often transport/ is looked at when no notification comes.", checkInterval},
		{"REMOVEDKEEP", "3d", "How long messages that zmctl remove took out stay in removed/, for zmctl undo; 0: for ever.", checkDuration},
		{"ALARMS", "public=1h router=15m queue=4d deferred=1d frozen=7d progress=15m", "How long mail may stand in a state, and a host that could take some get none, before zmctl status and the log tell; 0 after a name: for ever, off: nothing is told.", nil},
		{"SMTPLISTEN", "127.0.0.1:2525", "Addresses that smtpserver listens on for other hosts, host:port; off: none.", nil},
		{"SUBMISSIONLISTEN", "", "Addresses for our own users' mail, host:port, by custom port 587; they log in, after STARTTLS.", nil},
		{"SUBMISSIONSLISTEN", "", "The same in TLS from the start, by custom port 465; needs TLSCERT.", nil},
		{"LMTPLISTEN", "", "Where other mail systems hand mail over by LMTP: the path of a Unix socket, which its owner and group may use, or host:port.", nil},
		{"TLSCERT", "", "Files with smtpserver's certificates and their chains, PEM; the client's wish (SNI) decides between several, else the first is shown. They are read again when they change.", nil},
		{"TLSKEY", "", "Files with their keys, in the same order; without it, the keys stand in the files of TLSCERT.", nil},
		{"TLSASKCERT", "no", "yes: clients are asked for a certificate, so that rules may know them by it; it is not verified.", checkBool},
		{"PROXYNETS", "", "Networks of proxies that begin each connection with a PROXY header (HAProxy's, version 1 or 2); one without it is closed.", nil},
		{"XCLIENTNETS", "", "Networks whose clients may say, by XCLIENT, for whom they speak.", nil},
		{"REVERSELOOKUP", "no", "yes: clients' host names are looked up before the greeting and stand in Received lines and the log.", checkBool},
		{"MINRATE", "100", "Bytes a second that a client must send of a message on average; one that is slower is cut off. 0: no limit.", checkCount},
		{"RELAYNETS", "127.0.0.0/8 ::1/128", "Networks whose clients may send anywhere; others may send to local domains only.", nil},
		{"SENDERLOGIN", "", "Sources of a table that says which authenticated users may send from an address, as docs/access.md has it; without it they send from any.", nil},
		{"RCPTCHECK", "yes", "Whether a recipient that the router knows nobody for is refused before its mail is taken: yes, where another host's client names one of our domains; all, whoever the client is; no, never.", oneOf("yes", "all", "no")},
		{"RCPTCHECKTIME", "5s", "How long the router may take to tell that.", checkInterval},
		{"RCPTCHECKKEEP", "10m", "How long its answer is remembered; that there is nobody, a tenth of it; 0: not at all.", checkDuration},
		{"RCPTCHECKTROUBLE", "accept", "While it cannot tell, recipients are taken (accept) or put off with a 451 (defer).", oneOf("accept", "defer")},
		{"ETRNNETS", "127.0.0.0/8 ::1/128", "Networks whose clients may start the queue of any host with ETRN; rules in the file access name others.", nil},
		{"MAXSIZE", "200M", "Largest message accepted, in bytes; k, M and G are powers of 1024.", checkSize},
		{"MAXRCPT", "10000", "Most recipients of one message.", checkPositive},
		{"MAXRCPTUNAUTH", "1000", "The same for clients that have not authenticated and are neither in RELAYNETS nor in LIMITSEXEMPT; RFC 5321 asks for 100 at least.", checkPositive},
		{"CHECKS", "", "What is found out about mail from strangers, for Authentication-Results and the rules in access: some of spf, dkim and dmarc; none by itself refuses anything.", nil},
		{"CHECKTIME", "20s", "How long the name server may take for each check of a message; what is not known then is temperror.", checkInterval},
		{"MILTERS", "", "Mail filters that are asked in their order: unix:/path or inet:host:port.", nil},
		{"MILTERTIME", "30s", "How long a filter may take for one step: to connect, a recipient, one of its answers.", checkInterval},
		{"MILTERCONTENTTIME", "5m", "How long it may take for all of one message's content.", checkInterval},
		{"MILTERTROUBLE", "defer", "What becomes of mail while a filter does not answer: defer, the client is to try again; accept, it is taken unseen.", oneOf("defer", "accept")},
		{"AUTH", "", "Who knows the users of SUBMISSIONLISTEN and SUBMISSIONSLISTEN: file:PATH, dovecot:/path/to/socket or pam:SERVICE; without it nobody can authenticate.", checkWord},
		{"AUTHPLAINTEXT", "no", "yes: AUTH is offered without TLS to clients of other machines, too.", checkBool},
		{"AUTHFAILURES", "20/10m", "Wrong passwords from one address in a time before its AUTH is answered 421; off: no limit.", checkRate},
		{"SMTPCONNECTIONS", "500", "Connections at once; more are answered 421.", checkPositive},
		{"SMTPPERADDRESS", "50", "The same for one address (of IPv6: /64); 0: no limit.", checkCount},
		{"SMTPCONNECTRATE", "off", "Connections of one address in a time, like 60/1m; off: no limit.", checkRate},
		{"SMTPMESSAGERATE", "off", "Messages of one user, or of one address without a user, in a time.", checkRate},
		{"SMTPRCPTRATE", "off", "The same for recipients.", checkRate},
		{"SMTPERRORS", "20", "Refused commands since the last message before a connection is closed with 421; 0: no limit.", checkCount},
		{"LIMITSEXEMPT", "127.0.0.0/8 ::1/128", "Networks whose clients are not counted; none: all are.", nil},
		{"MINFREE", "1M", "Bytes that have to be left in the postoffice's file system before a message is begun.", checkSize},
		{"MINFILES", "100", "The same for files.", checkCount},
		{"MAXLOAD", "0", "Load average of a minute above which strangers are told to come later; 0: no limit.", checkCount},
		{"SMTPBARELF", "reject", "What becomes of messages of strangers that have LF without CR: reject or accept.", oneOf("reject", "accept")},
		{"RESOLVER", "", "host:port of the name server; without it, those of /etc/resolv.conf.", checkHostPort},
		{"DANETRUST", "no", "yes: what RESOLVER calls validated by DNSSEC is believed though it is not on this machine; the way to it must be safe.", checkBool},
		{"TLSRPT", "yes", "yes: what became of TLS towards other hosts is counted in tlsrpt/, for zmctl tlsrpt.", checkBool},
		{"TLSRPTKEEP", "30d", "How long a day's file in tlsrpt/ is kept; 0: for ever.", checkDuration},
		{"SMTPPORT", "25", "The port that other hosts' SMTP servers are asked on.", checkPort},
		{"SMTPMINRATE", "500", "How many bytes of a message another host must take in a second, on average, after the first three minutes, or the connection is closed and the message tried again later; 0: any rate.", checkCount},
		{"SMTPMAXTIME", "6h", "How long another host may take for the content of one message, and before it for the answers from MAIL to DATA; 0: any time.", checkDuration},
		{"SIGNNETS", "", "Networks whose clients' mail is ours, so that the keys in the file dkim sign it; without it, RELAYNETS. Mail of this machine and of users who have logged in always is.", nil},
		{"DEADTIME", "15m", "How long an address of another host that did not answer is tried last, when all others have failed; 0: it keeps its turn.", checkDuration},
		{"MAILBOX", "/var/mail/%u", "Where local mail goes: %u user, %h home directory, %d domain; with / at the end a Maildir, else an mbox file.", nil},
		{"MAILBOXQUOTA", "0", "How many bytes a user's mailbox may hold; k, M and G are powers of 1024. 0: any amount.", checkSize},
		{"MAILBOXOVERQUOTA", "defer", "What becomes of mail for a mailbox that is full: defer, it waits; fail, its sender is told at once.", oneOf("defer", "fail")},
		{"PIPEUSER", "", "The user that runs programs which root's files name, as aliases often is; without it they are not run.", checkWord},
		{"PIPENOBODY", "no", "yes: programs that a file names which others may write are run, as nobody; else their mail waits.", checkBool},
		{"PIPETIMEOUT", "15m", "How long a program may take for one message before it is killed, and run again later.", checkInterval},
		{"PIPEHEAD", "from return-path delivered-to", "The lines on top of what a program reads, some of from, return-path and delivered-to; or none.", nil},
		{"WEBLISTEN", "127.0.0.1:2580", "Where zmctl web serves its pages, host:port; one that other machines reach needs WEBCERT.", checkWord},
		{"WEBWRITE", "no", "yes: the pages take orders about queued mail; else they are for reading alone.", checkBool},
		{"WEBTOKEN", "", "The file of the secret that lets people in, mode 0600; without it, .web.token in the postoffice; off: there is none.", checkWord},
		{"WEBACCOUNTS", "", "A file of names and passwords, as zmctl passwd writes it, of those who may log in on the pages; or pam:SERVICE, then they are those of this machine.", checkWord},
		{"WEBREADERS", "", "Who of them may see the pages: names, and groups of this machine like @adm. Without it, with a file all that are in it, with PAM nobody but WEBWRITERS.", nil},
		{"WEBWRITERS", "", "Who of them may give orders, if WEBWRITE=yes; they may read, too. Without it, with a file all that may read, with PAM nobody.", nil},
		{"WEBHOSTS", "", "Further names that the pages may be asked by, as behind a proxy; else localhost, HOSTNAME and the address of WEBLISTEN.", nil},
		{"WEBCERT", "", "The file of the pages' certificate with its chain, PEM.", checkWord},
		{"WEBKEY", "", "The file of its key.", checkWord},
		{"LOGFILE", "", "The file that zmctl run and zmctl start write the log of all daemons to, instead of standard error; without it zmctl start takes the file log in the postoffice.", checkAbsolute},
		{"LOG", "auto", "Format of the log: auto, text, json or tint.", oneOf("auto", "text", "json", "tint")},
		{"LOGLEVEL", "info", "Least level that is logged: debug, info, warn or error.", oneOf("debug", "info", "warn", "error")},
		{"METRICS", "off", "Where Prometheus reads what smtpserver, router and scheduler count: unix, for each a socket in the postoffice, or words like router=127.0.0.1:9126, of this machine alone; off: nothing is counted.", checkMetrics},
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

// nearest is the known name with the least edits from name.
func nearest(name string) string {
	best, least := "", len(name)+1
	for _, v := range Variables() {
		if d := smetrics.WagnerFischer(strings.ToUpper(name), v.Name, 1, 1, 1); best == "" || d < least {
			best, least = v.Name, d
		}
	}
	return best
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
