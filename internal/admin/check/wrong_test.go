package check

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/setup"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/lookup/passwd"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/peer"
)

// outcome is what a start makes of a wrong configuration.
type outcome string

const (
	refused outcome = "refused" // it does not start
	held    outcome = "held"    // it starts with the copy of what the file had before
	warned  outcome = "warned"  // it starts
	serves  outcome = "serves"  // it starts, and mail that needs it waits
)

// wrong is a configuration with one error. Lines 1 and 2 of zmailer.conf are right; conf begins
// in line 3.
type wrong struct {
	name string
	conf string // lines of zmailer.conf
	file string // another file; "": the error is in zmailer.conf
	good string // its content before
	bad  string // and now; "-": it is not there
	line int    // where the error is: of file, or, if 0, line 3 of zmailer.conf
	want outcome
}

// settingsThatAreWrong are single lines of zmailer.conf.
var settingsThatAreWrong = []string{
	"MAXSIZE 5", "MAXSIZES=5", "MAX SIZE=5", `MAILBOX="/x`, `MAILBOX="/x" y`, "MAILBOX=${NOPE}/x", "MAILBOX=${X", "MAXSIZE=5\x01",
	"HASHLEVELS=3", "SYNC=fast", "SENDERCHECK=none", "CONFINE=maybe", "LOCALUSERS=users", "LOCALUSERS=/nonexistent/users",
	"LOOKUPTIMEOUT=soon", "LOOKUPTIMEOUT=0", "LOOKUPKEEP=x", "LOOKUPPARALLEL=0", "POLICYSTEPS=-1", "POLICYTIME=x",
	"ROUTERWORKERS=0", "ROUTERWORKERS=two", "ROUTERPOLL=0s", "ROUTERTRIES=0", "RESUBMIT=5m", "RESUBMIT=1h,5m", "RESUBMITEXPIRY=long",
	"ROUTERDIRS=../x", "ROUTERMODE=open", "ROUTERAGING=0", "SMTPPRIORITY=-1", "POSTMANKEEP=x", "PUBLICKEEP=1y", "POSTMANCOPY=perhaps",
	"SCHEDULERPOLL=0", "REMOVEDKEEP=x", "ALARMS=rooter=5m", "ALARMS=router=soon",
	"SMTPLISTEN=25", "SMTPLISTEN=example", "SMTPLISTEN=192.0.2.77:2525", "SMTPLISTEN='127.0.0.1:2525 127.0.0.1:2525'", "SUBMISSIONLISTEN=587", "SUBMISSIONSLISTEN=127.0.0.1:4650", "LMTPLISTEN=lmtp",
	"CONTENTFILTER=smtpx!127.0.0.1:10024", "REINJECTLISTEN=10025", "REINJECTNETS=x",
	"TLSCERT=none.pem", "TLSKEY=none.key", "TLSASKCERT=x", "PROXYNETS=10.0.0.0/33", "XCLIENTNETS=x", "REVERSELOOKUP=x", "MINRATE=x",
	"RELAYNETS=192.0.2.0/33", "RELAYNETS=example.net", "RELAYNETS=2001:db8::/129", "SENDERLOGIN=nofile", "SENDERLOGIN=foo:bar",
	"RCPTCHECK=some", "RCPTCHECKTIME=0", "RCPTCHECKKEEP=x", "RCPTCHECKTROUBLE=x", "ETRNNETS=x", "MAXSIZE=big", "MAXRCPT=0", "MAXRCPTUNAUTH=x", "SMTPMEMORY=x",
	"CHECKS=spf,dnsbl", "CHECKTIME=0", "MILTERS=unix:rel", "MILTERS=tcp:1", "MILTERTIME=0", "MILTERCONTENTTIME=x", "MILTERTROUBLE=x",
	"AUTH=file", "AUTH=dovecot:rel", "AUTH=pam:no-such-service-here", "AUTH=file:nofile", "AUTHPLAINTEXT=x", "AUTHFAILURES=5",
	"SMTPCONNECTIONS=0", "SMTPPERADDRESS=-1", "SMTPCONNECTRATE=60", "SMTPMESSAGERATE=x/1m", "SMTPRCPTRATE=1/0", "SMTPERRORS=x", "LIMITSEXEMPT=x",
	"MINFREE=x", "MINFILES=x", "MAXLOAD=x", "SMTPBARELF=x", "RESOLVER=127.0.0.1", "DANETRUST=x", "TLSRPT=x", "TLSRPTKEEP=x", "SMTPPORT=0", "SMTPPORT=smtp",
	"SMTPMINRATE=x", "SMTPMAXTIME=x", "SIGNNETS=x", "DEADTIME=x", "MAILBOX=rel/%u", "MAILBOXQUOTA=x", "MAILBOXOVERQUOTA=x",
	"PIPEUSER=root", "PIPEUSER=no-such-user", "PIPENOBODY=x", "PIPETIMEOUT=0", "PIPEHEAD=x", "LOGFILE=rel", "LOG=xml", "LOGLEVEL=all", "METRICS=x",
	"HOSTNAME=a..b", "POSTMASTER=a@b..c", "FORWARD=x", "SUBADDRESS=@", "ALIASES=nofile", "ALIASES=foo:x", "ALIASES='exec:'", `LOCALNAMES="'x"`, "LOCALNAMES=socket:x",
	"MASQUERADE=foo:x", "MASQUERADE=nofile", "ROUTES=ldap:nofile", "POSTOFFICE=rel", "DAEMONUSER=no-such-user", "DAEMONUSER=root",
}

// filesThatAreWrong are files beside zmailer.conf.
var filesThatAreWrong = []wrong{
	{"an alias without a colon", "", "aliases", "a: postmaster\n", "a: postmaster\nb postmaster\n", 2, held},
	{"an alias that no one can read", "", "aliases", "a: postmaster\n", "a: postmaster\nb: a,, c\n", 2, held},
	{"an alias twice", "", "aliases", "a: postmaster\n", "a: postmaster\nA: root\n", 2, warned},
	{"an address in aliases of addresses", "", "fqdnaliases", "a@b.example: c\n", "a@b.example: c\nx: y\n", 2, held},
	{"a route without a channel", "", "routes", "a.example smtp!\n", "a.example smtp!\nb.example\n", 2, held},
	{"a route for no domain", "", "routes", "a.example smtp!\n", "b..example smtp!\n", 1, held},
	{"a route twice", "", "routes", "a.example smtp!\n", "a.example smtp!\n\na.example smtp!x\n", 3, warned},
	{"a route to a channel that no clause serves", "", "routes", "a.example smtp!\n", "a.example uucp!x\n", 1, warned},
	{"a local domain that is none", "", "localnames", "a.example\n", "a.example\n-\n", 2, held},
	{"masquerade without a colon", "", "masquerade", "@a.example: @b.example\n", "@a.example @b.example\n", 1, held},
	{"an access rule without an action", "", "access", "reject helo=x\n", "reject helo=x\nallow client=192.0.2.1\n", 2, held},
	{"an access rule with a bad network", "", "access", "reject helo=x\n", "reject client=192.0.2.0/33\n", 1, held},
	{"a relay for everybody", "", "access", "reject helo=x\n", "\nrelay\n", 2, held},
	{"a header rule without a field", "", "header-rules", "all remove X-Foo\n", "all remove X-Foo\nall remove\n", 2, held},
	{"a program with a syntax error", "", "router.star", "def message(m): pass\n", "def message(m): pass\nx = )\n", 2, held},
	{"a program without functions", "", "router.star", "def message(m): pass\n", "x = 1\n", 0, held},
	{"a password file with a bad hash", "AUTH=file:users", "users", "HASH", "jane\n", 1, held},
	{"a password file that is not there", "AUTH=file:users", "users", "HASH", "-", 0, held},
	{"senders without a user", "SENDERLOGIN=senders", "senders", "a@b.example jane\n", "a@b.example jane\nb@b.example\n", 2, held},
	{"a sender twice", "SENDERLOGIN=senders", "senders", "a@b.example jane\n", "a@b.example jane\na@b.example joe\n", 2, warned},
	{"senders that are not there", "SENDERLOGIN=senders", "senders", "a@b.example jane\n", "-", 0, held},
	{"a reply rule without an action", "", "replies", "smtp/* defer /x/\n", "smtp/* wait /x/\n", 1, held},
	{"a keyword that is none", "", "discard-ehlo-keywords", "192.0.2.1 dsn\n", "192.0.2.1 dns\n", 1, held},
	{"a TLS policy that is none", "", "tls", "a.example encrypt\n", "a.example encrypt\nb.example crypt\n", 2, held},
	{"a login without a password", "", "credentials", "a.example u p\n", "a.example u p\nb.example u\n", 2, held},
	{"a line of keys without a key", "", "dkim", "# none\n", "a.example s1\n", 1, held},
	{"a key that is not there", "", "dkim", "# none\n", "a.example s1 none.pem\n", 1, serves},
	{"an unknown setting of a clause", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "*/*\n\tcomand=\"/bin/true\"\n", 2, refused},
	{"a clause with a bad number", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "*/*\n\tmaxthr=x command=\"/bin/true\"\n", 2, refused},
	{"a clause with a bad pattern", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "smtp/[a\n\tcommand=\"/bin/true\"\n", 1, refused},
	{"a clause that matches no host", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "smtp/.example.com\n\tmaxthr=1\n*/*\n\tcommand=\"/bin/true\"\n", 1, warned},
	{"a clause for a network", "", "scheduler.conf", "*/*\n\tcommand=\"/bin/true\"\n", "smtp/192.0.2.0/24\n\tmaxthr=1\n*/*\n\tcommand=\"/bin/true\"\n", 1, warned},
	{"a damaged certificate", "TLSCERT=mx.pem\nTLSKEY=mx.key", "mx.pem", "CERT", "nonsense", 0, held},
	{"a certificate that is not there", "TLSCERT=mx.pem\nTLSKEY=mx.key", "mx.pem", "CERT", "-", 0, held},
	{"a key of another certificate", "TLSCERT=mx.pem\nTLSKEY=mx.key", "mx.key", "KEY", "OTHERKEY", 0, held},
	{"a certificate that ends soon", "TLSCERT=mx.pem\nTLSKEY=mx.key", "mx.pem", "CERT", "CERT-ENDS", 0, warned},
}

// rig is a directory with a configuration and its postoffice.
type rig struct {
	dir, po string
	text    map[string]string // CERT and the like
}

func (r *rig) write(t *testing.T, name, text string) {
	path := filepath.Join(r.dir, name)
	if text == "-" {
		assert.Must(t, os.Remove(path))
		return
	}
	if pem, ok := r.text[text]; ok {
		text = pem
	}
	assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

func (r *rig) load(t *testing.T) (*config.Config, error) {
	t.Helper()
	c, err := config.Load(filepath.Join(r.dir, "zmailer.conf"))
	if c == nil {
		t.Fatal(err)
	}
	return c, err
}

// start loads all files as the daemons do, with their copies.
func (r *rig) start(t *testing.T) (errs error) {
	t.Helper()
	c, err := r.load(t)
	if err != nil {
		return err
	}
	found := []error{}
	for _, l := range Loaders() {
		store := assert.Get(lastgood.Open(r.po, l.Program, slog.New(slog.DiscardHandler)))(t)
		c.SetKeeper(store)
		bad, _ := config.Sort(l.Start(c))
		found = append(found, config.Errors(bad)...)
		c.SetKeeper(nil)
	}
	if len(found) > 0 {
		return found[0]
	}
	return nil
}

func (r *rig) alarms(t *testing.T) (subjects []string) {
	t.Helper()
	po := assert.Get(postoffice.OpenDir(r.po, 0, false))(t)
	for _, a := range po.ConfigAlarms(time.Now()) {
		subjects = append(subjects, a.Subject)
	}
	return subjects
}

// Op1, Op4: each of these configurations is named with its line by check-config; a start refuses
// it, or goes on with the copy of what could be used before, with an alarm.
func TestOp1EveryWrongConfigurationIsNamedAndStrandsNobody(t *testing.T) {
	ca := peer.NewCA(t, "test")
	texts := map[string]string{}
	pems := t.TempDir()
	for name, end := range map[string]time.Time{"": time.Now().AddDate(1, 0, 0), "OTHER": time.Now().AddDate(1, 0, 0), "ENDS": time.Now().Add(5 * 24 * time.Hour)} {
		cert, key := filepath.Join(pems, name+"c"), filepath.Join(pems, name+"k")
		ca.Write(cert, key, ca.IssueUntil(end, "mx.example.org"))
		texts[name+"CERT"], texts[name+"KEY"] = string(assert.Get(os.ReadFile(cert))(t)), string(assert.Get(os.ReadFile(key))(t))
	}
	hash, _, err := passwd.Change{User: "jane", Password: "x"}.Apply(nil)
	assert.Must(t, err)
	cases := slices.Clone(filesThatAreWrong)
	for _, line := range settingsThatAreWrong {
		w := wrong{name: line, conf: line, want: refused}
		if line == "PIPEUSER=no-such-user" {
			w.want = serves
		}
		cases = append(cases, w)
	}
	if len(cases) < 120 {
		t.Errorf("%d cases, want 120", len(cases))
	}
	for _, w := range cases {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := &rig{dir: t.TempDir(), text: map[string]string{"CERT": texts["CERT"], "KEY": texts["KEY"], "OTHERKEY": texts["OTHERKEY"], "CERT-ENDS": texts["ENDSCERT"], "HASH": string(hash)}}
			r.po = filepath.Join(r.dir, "po")
			assert.Must(t, setup.Make(r.po))
			r.write(t, "scheduler.conf", "{smtp,local}/*\n\tcommand=\"/bin/true\"\n")
			if strings.Contains(w.conf, "mx.pem") {
				r.write(t, "mx.pem", "CERT")
				r.write(t, "mx.key", "KEY")
			}
			conf := fmt.Sprintf("POSTOFFICE=%s\nHOSTNAME=mx.example.org\n", r.po)
			if w.file != "" {
				r.write(t, "zmailer.conf", conf+w.conf+"\n")
				r.write(t, w.file, w.good)
				if err := r.start(t); err != nil {
					t.Fatalf("before: %v", err)
				}
				if w.name == "a certificate that ends soon" {
					r.write(t, "mx.key", texts["ENDSKEY"])
				}
				r.write(t, w.file, w.bad)
			} else {
				r.write(t, "zmailer.conf", conf+w.conf+"\n")
			}
			file, line := filepath.Join(r.dir, "zmailer.conf"), 3
			if w.line > 0 || w.name == "a program without functions" {
				file, line = filepath.Join(r.dir, w.file), w.line
			}
			c, parse := r.load(t)
			found := Config(c, parse, Everything)
			named := slices.ContainsFunc(found.Lines, func(l ConfigLine) bool {
				return l.File == file && l.Line == line && l.Cause != "" && l.Wrong == (w.want != warned) && l.Warning == (w.want == warned)
			})
			if !named || found.Usable != (w.want == warned) {
				t.Errorf("check-config: usable %v, want an error of %s:%d in %+v", found.Usable, file, line, found.Lines)
			}
			started := Config(c, parse, Start)
			if started.Usable != (w.want != refused) {
				t.Errorf("check-config --start: usable %v, want it %s: %+v", started.Usable, w.want, started.Lines)
			}
			if err := r.start(t); (err != nil) != (w.want == refused) {
				t.Errorf("start: %v, want it %s", err, w.want)
			}
			if w.want != held {
				return
			}
			if list := r.alarms(t); len(list) == 0 {
				t.Error("no alarm")
			}
			r.write(t, w.file, w.good)
			if err := r.start(t); err != nil || len(r.alarms(t)) != 0 {
				t.Errorf("mended: %v, alarms %v", err, r.alarms(t))
			}
		})
	}
}
