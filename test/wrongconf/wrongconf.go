// Package wrongconf has configurations that an operator gets wrong, each with one error, and what
// is to become of it. Tests of the loaders and of the real daemons use it.
package wrongconf

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/lookup/passwd"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
)

// Outcome is what a start makes of a wrong configuration.
type Outcome string

// Outcomes.
const (
	Refused Outcome = "refused" // it does not start
	Held    Outcome = "held"    // it starts with the copy of what the file had before
	Warned  Outcome = "warned"  // it starts
	Serves  Outcome = "serves"  // it starts, and mail that needs it waits
)

// Case is a configuration with one error. Lines 1 and 2 of zmailer.conf are right; Conf begins
// in line 3.
type Case struct {
	Name string
	Conf string // lines of zmailer.conf
	File string // another file; "": the error is in zmailer.conf
	Good string // its content before
	Bad  string // and now; "-": it is not there
	Line int    // where the error is: of file, or, if 0, line 3 of zmailer.conf
	Want Outcome
}

// noPAM starts: clients get 454 until the service is there.
const noPAM = "AUTH=pam:no-such-service-here"

// settings are single lines of zmailer.conf.
var settings = []string{
	"MAXSIZE 5", "MAXSIZES=5", "MAX SIZE=5", `MAILBOX="/x`, `MAILBOX="/x" y`, "MAILBOX=${NOPE}/x", "MAILBOX=${X", "MAXSIZE=5\x01",
	"HASHLEVELS=3", "SYNC=fast", "SENDERCHECK=none", "CONFINE=maybe", "LOCALUSERS=users", "LOCALUSERS=/nonexistent/users",
	"LOOKUPTIMEOUT=soon", "LOOKUPTIMEOUT=0", "LOOKUPKEEP=x", "LOOKUPPARALLEL=0", "POLICYSTEPS=-1", "POLICYTIME=x",
	"ROUTERWORKERS=0", "ROUTERWORKERS=two", "ROUTERPOLL=0s", "ROUTERTRIES=0", "RESUBMIT=5m", "RESUBMIT=1h,5m", "RESUBMITEXPIRY=long",
	"ROUTERDIRS=../x", "ROUTERMODE=open", "ROUTERAGING=0", "SMTPPRIORITY=-1", "POSTMANKEEP=x", "PUBLICKEEP=1y", "POSTMANCOPY=perhaps",
	"SCHEDULERPOLL=0", "REMOVEDKEEP=x", "ALARMS=rooter=5m", "ALARMS=router=soon",
	"SMTPLISTEN=25", "SMTPLISTEN=example", "SMTPLISTEN=192.0.2.77:2525", "SMTPLISTEN='127.0.0.1:2525 127.0.0.1:2525'", "SUBMISSIONLISTEN=587", "SUBMISSIONSLISTEN=127.0.0.1:4650", "LMTPLISTEN=lmtp",
	"CONTENTFILTER=smtpx!127.0.0.1:10024", "CONTENTFILTER=smtp:", "CONTENTFILTER=smtp:x,y", "REINJECTLISTEN=10025", "REINJECTNETS=x",
	"TLSCERT=none.pem", "TLSKEY=none.key", "TLSASKCERT=x", "PROXYNETS=10.0.0.0/33", "XCLIENTNETS=x", "XFORWARDNETS=x", "REVERSELOOKUP=x", "MINRATE=x",
	"RELAYNETS=192.0.2.0/33", "RELAYNETS=example.net", "RELAYNETS=2001:db8::/129", "SENDERLOGIN=nofile", "SENDERLOGIN=foo:bar",
	"RCPTCHECK=some", "RCPTCHECKTIME=0", "RCPTCHECKKEEP=x", "RCPTCHECKTROUBLE=x", "ETRNNETS=x", "MAXSIZE=big", "MAXRCPT=0", "MAXRCPTUNAUTH=x", "SMTPMEMORY=x",
	"CHECKS=spf,dnsbl", "CHECKTIME=0", "MILTERS=unix:rel", "MILTERS=tcp:1", "MILTERS='{ inet:127.0.0.1:1, timeout=5s }'",
	"MILTERS='{ inet:127.0.0.1:1, default_action=drop }'", "MILTERS='{ inet:127.0.0.1:1, command_timeout=0 }'", "MILTERS='{ inet:127.0.0.1:1'", "MILTERS='{ }'",
	"MILTERTIME=0", "MILTERCONTENTTIME=x", "MILTERTROUBLE=x",
	"AUTH=file", "AUTH=dovecot:rel", noPAM, "AUTH=file:nofile", "AUTHPLAINTEXT=x", "AUTHFAILURES=5",
	"SMTPCONNECTIONS=0", "SMTPPERADDRESS=-1", "SMTPCONNECTRATE=60", "SMTPMESSAGERATE=x/1m", "SMTPRCPTRATE=1/0", "SMTPERRORS=x", "LIMITSEXEMPT=x",
	"MINFREE=x", "MINFILES=x", "MAXLOAD=x", "SMTPBARELF=x", "RESOLVER=127.0.0.1", "DANETRUST=x", "TLSRPT=x", "TLSRPTKEEP=x", "SMTPPORT=0", "SMTPPORT=smtp",
	"SMTPMINRATE=x", "SMTPMAXTIME=x", "SIGNNETS=x", "DEADTIME=x", "MAILBOX=rel/%u", "MAILBOXQUOTA=x", "MAILBOXOVERQUOTA=x",
	"PIPEUSER=root", "PIPEUSER=no-such-user", "PIPENOBODY=x", "PIPETIMEOUT=0", "PIPEHEAD=x", "LOGFILE=rel", "LOGFILE=/etc/passwd/log", "LOGFILE=/etc", "LOGFILE=/no/such/dir/log", "LOG=xml", "LOGLEVEL=all", "METRICS=x",
	"HOSTNAME=a..b", "POSTMASTER=a@b..c", "FORWARD=x", "SUBADDRESS=@", "PROPAGATEUNMATCHEDEXTENSIONS=canonicals", "ALIASES=nofile", "ALIASES=foo:x", "ALIASES='exec:'", `LOCALNAMES="'x"`, "LOCALNAMES=socket:x",
	"WEBLISTEN=2580", "WEBLISTEN=0.0.0.0:2580", "WEBLISTEN=192.0.2.77:2580", "WEBTOKEN=off", "WEBCERT=none.pem", "WEBKEY=none.key", "WEBACCOUNTS=nofile", "WEBACCOUNTS=pam:no-such-service", "WEBWRITE=perhaps",
	"MASQUERADE=foo:x", "MASQUERADE=nofile", "ROUTES=ldap:nofile", "POSTOFFICE=rel", "DAEMONUSER=no-such-user", "DAEMONUSER=root",
}

// files are files beside zmailer.conf.
var files = []Case{
	{"an alias without a colon", "", "aliases", "a: postmaster\n", "a: postmaster\nb postmaster\n", 2, Held},
	{"an alias that no one can read", "", "aliases", "a: postmaster\n", "a: postmaster\nb: a,, c\n", 2, Held},
	{"an alias twice", "", "aliases", "a: postmaster\n", "a: postmaster\nA: root\n", 2, Warned},
	{"an address in aliases of addresses", "", "fqdnaliases", "a@b.example: c\n", "a@b.example: c\nx: y\n", 2, Held},
	{"a domain in two classes", "VIRTUALALIASDOMAINS=domains\nRELAYDOMAINS=domains", "domains", "# none\n", "a.example\n", 1, Held},
	{"a route without a channel", "", "routes", "a.example smtp!\n", "a.example smtp!\nb.example\n", 2, Held},
	{"a route with an open bracket", "", "routes", "a.example smtp!\n", "a.example smtp![192.0.2.1\n", 1, Held},
	{"a route for no domain", "", "routes", "a.example smtp!\n", "b..example smtp!\n", 1, Held},
	{"a route twice", "", "routes", "a.example smtp!\n", "a.example smtp!\n\na.example smtp!x\n", 3, Warned},
	{"a route to a channel that no clause serves", "", "routes", "a.example smtp!\n", "a.example uucp!x\n", 1, Warned},
	{"a local domain that is none", "", "localnames", "a.example\n", "a.example\n-\n", 2, Held},
	{"masquerade without a colon", "", "masquerade", "@a.example: @b.example\n", "@a.example @b.example\n", 1, Held},
	{"an access rule without an action", "", "access", "reject helo=x\n", "reject helo=x\nallow client=192.0.2.1\n", 2, Held},
	{"an access rule with a bad network", "", "access", "reject helo=x\n", "reject client=192.0.2.0/33\n", 1, Held},
	{"a relay for everybody", "", "access", "reject helo=x\n", "\nrelay\n", 2, Held},
	{"a header rule without a field", "", "header-rules", "all remove X-Foo\n", "all remove X-Foo\nall remove\n", 2, Held},
	{"a program with a syntax error", "", "router.star", "def message(m): pass\n", "def message(m): pass\nx = )\n", 2, Held},
	{"a program without functions", "", "router.star", "def message(m): pass\n", "x = 1\n", 0, Held},
	{"a password file with a bad hash", "AUTH=file:users", "users", "HASH", "jane\n", 1, Held},
	{"a password file that is not there", "AUTH=file:users", "users", "HASH", "-", 0, Held},
	{"senders without a user", "SENDERLOGIN=senders", "senders", "a@b.example jane\n", "a@b.example jane\nb@b.example\n", 2, Held},
	{"a sender twice", "SENDERLOGIN=senders", "senders", "a@b.example jane\n", "a@b.example jane\na@b.example joe\n", 2, Warned},
	{"senders that are not there", "SENDERLOGIN=senders", "senders", "a@b.example jane\n", "-", 0, Held},
	{"a reply rule without an action", "", "replies", "smtp/* defer /x/\n", "smtp/* wait /x/\n", 1, Held},
	{"a keyword that is none", "", "discard-ehlo-keywords", "192.0.2.1 dsn\n", "192.0.2.1 dns\n", 1, Held},
	{"a TLS policy that is none", "", "tls", "a.example encrypt\n", "a.example encrypt\nb.example crypt\n", 2, Held},
	{"a login without a password", "", "credentials", "a.example u p\n", "a.example u p\nb.example u\n", 2, Held},
	{"a line of keys without a key", "", "dkim", "# none\n", "a.example s1\n", 1, Held},
	{"a key that is not there", "", "dkim", "# none\n", "a.example s1 none.pem\n", 1, Serves},
	{"an unknown setting of a clause", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "*/*\n\tcomand=\"/bin/true\"\n", 2, Refused},
	{"a clause with a bad number", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "*/*\n\tmaxthr=x command=\"/bin/true\"\n", 2, Refused},
	{"a clause with a bad pattern", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "smtp/[a\n\tcommand=\"/bin/true\"\n", 1, Refused},
	{"a clause that matches no host", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "smtp/.example.com\n\tmaxthr=1\n*/*\n\tcommand=\"/bin/true\"\n", 1, Warned},
	{"a clause for a network", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "smtp/192.0.2.0/24\n\tmaxthr=1\n*/*\n\tcommand=\"/bin/true\"\n", 1, Warned},
	{"a damaged certificate", "TLSCERT=mx.pem\nTLSKEY=mx.key", "mx.pem", "CERT", "nonsense", 0, Held},
	{"a certificate that is not there", "TLSCERT=mx.pem\nTLSKEY=mx.key", "mx.pem", "CERT", "-", 0, Held},
	{"a key of another certificate", "TLSCERT=mx.pem\nTLSKEY=mx.key", "mx.key", "KEY", "OTHERKEY", 0, Held},
	{"a damaged certificate of the pages", "WEBCERT=mx.pem\nWEBKEY=mx.key", "mx.pem", "CERT", "nonsense", 0, Serves},
	{"an account of the pages without a hash", "WEBACCOUNTS=accounts", "accounts", "HASH", "jane\n", 1, Serves},
	{"a certificate that ends soon", "TLSCERT=mx.pem\nTLSKEY=mx.key", "mx.pem", "CERT", "CERT-ENDS", 0, Warned},
}

// Cases returns all of them.
func Cases() []Case {
	list := slices.Clone(files)
	for _, line := range settings {
		c := Case{Name: line, Conf: line, Want: Refused}
		if line == "PIPEUSER=no-such-user" || line == noPAM || strings.HasPrefix(line, "WEB") && line != "WEBWRITE=perhaps" {
			c.Want = Serves
		}
		list = append(list, c)
	}
	return list
}

// Texts are the contents that a Case names by a word.
type Texts map[string]string

// MakeTexts makes certificates and a password file.
func MakeTexts(t testing.TB) Texts {
	t.Helper()
	ca := peer.NewCA(t, "test")
	texts := Texts{}
	pems := t.TempDir()
	for name, end := range map[string]time.Time{"": time.Now().AddDate(1, 0, 0), "OTHER": time.Now().AddDate(1, 0, 0), "ENDS": time.Now().Add(5 * 24 * time.Hour)} {
		cert, key := filepath.Join(pems, name+"c"), filepath.Join(pems, name+"k")
		ca.Write(cert, key, ca.IssueUntil(end, "mx.example.org"))
		texts[name+"CERT"], texts[name+"KEY"] = string(assert.Get(os.ReadFile(cert))(t)), string(assert.Get(os.ReadFile(key))(t))
	}
	texts["CERT-ENDS"] = texts["ENDSCERT"]
	hash, _, err := passwd.Change{User: "jane", Password: "x"}.Apply(nil)
	assert.Must(t, err)
	texts["HASH"] = string(hash)
	return texts
}

// Write writes a file of a Case in a directory; "-" removes it.
func (x Texts) Write(t testing.TB, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if text == "-" {
		assert.Must(t, os.Remove(path))
		return
	}
	if made, ok := x[text]; ok {
		text = made
	}
	assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
	assert.Must(t, os.Chmod(path, 0o600)) // it may have been there
}
