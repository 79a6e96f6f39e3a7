package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/smtp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// letsEncrypt is a directory as certbot makes it: root alone may enter live/ and archive/.
type letsEncrypt struct {
	t   *testing.T
	dir string
	ca  *peer.CA
}

// renew replaces the links in live/NAME, as certbot does.
func (l *letsEncrypt) renew(name, version string, end time.Time) {
	l.t.Helper()
	live, archive := filepath.Join(l.dir, "live", name), filepath.Join(l.dir, "archive", name)
	for _, dir := range []string{live, archive} {
		assert.Must(l.t, os.MkdirAll(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o700))
	}
	l.ca.Write(filepath.Join(archive, "fullchain"+version+".pem"), filepath.Join(archive, "privkey"+version+".pem"), l.ca.IssueUntil(end, name))
	for _, file := range []string{"fullchain", "privkey"} {
		link := filepath.Join(live, file+".pem")
		assert.Must(l.t, os.Symlink("../../archive/"+name+"/"+file+version+".pem", link+".new"), os.Rename(link+".new", link))
	}
}

func (l *letsEncrypt) file(name, file string) string {
	return filepath.Join(l.dir, "live", name, file+".pem")
}

// end returns when the certificate that the server presents for a name ends.
func (l *letsEncrypt) end(s *suite.Suite, name string) (end time.Time, err error) {
	c, err := smtp.Dial(s.SMTPAddr)
	if err != nil {
		return end, err
	}
	defer c.Close()
	err = c.StartTLS(&tls.Config{ServerName: name, RootCAs: l.ca.Pool(), VerifyConnection: func(st tls.ConnectionState) error {
		end = st.PeerCertificates[0].NotAfter
		return nil
	}})
	return end, err
}

func (l *letsEncrypt) await(s *suite.Suite, name string, end time.Time) {
	l.t.Helper()
	await(l.t, s, "the new certificate of "+name, func() (bool, error) {
		got, err := l.end(s, name)
		return got.Equal(end), err
	})
}

// Op2: certbot's keys and keys of DKIM, which root alone can read, are used by daemons that are not
// root: from the start on, when they are renewed, and when a reload names others. check-config
// reports them so; a key that is not handed over is an error there, and the start is refused.
func TestOp2KeysOfRootAloneWork(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	l := &letsEncrypt{t: t, ca: peer.NewCA(t, "ca")}
	began := time.Now().Truncate(time.Second).UTC()
	in := func(hours int) time.Time { return began.Add(time.Duration(hours) * time.Hour) }
	certs := func(names ...string) string {
		var certs, keys []string
		for _, name := range names {
			certs, keys = append(certs, l.file(name, "fullchain")), append(keys, l.file(name, "privkey"))
		}
		return "TLSCERT=\"" + strings.Join(certs, " ") + "\"\nTLSKEY=\"" + strings.Join(keys, " ") + "\"\n"
	}
	s := confined(t, sink, func(s *suite.Suite) {
		delete(s.Settings, "METRICS")
		l.dir = filepath.Join(s.Dir, "letsencrypt")
	})
	for i, name := range []string{"mx.mta.example", "mail.mta.example", "new.mta.example"} {
		l.renew(name, "1", in(20+i))
	}
	newkey(t, s, "mta.example", "r1", "ed25519")
	signing := filepath.Join(filepath.Dir(s.Config()), "dkim")
	signingKey := filepath.Join(filepath.Dir(s.Config()), strings.Fields(read(t, signing))[2])
	assert.Must(t, os.Chown(filepath.Dir(signingKey), 0, 0), os.Chown(signingKey, 0, 0), os.Chmod(signingKey, 0o600))
	plain := read(t, s.Config())
	configure(t, s, "zmailer.conf", plain+certs("mx.mta.example", "mail.mta.example"))

	said := zmctl(t, s, "check-config")
	wantIn(t, said, l.file("mx.mta.example", "privkey")+": readable by root only: handed over", l.file("mail.mta.example", "privkey")+": readable by root only: handed over",
		signingKey+": readable by root only: handed over")
	begin(t, s)
	event(t, s, "confined", "program", "smtpserver")
	l.await(s, "mx.mta.example", in(20))
	l.await(s, "mail.mta.example", in(21))
	submitAs(t, s, "From: alice@mta.example\nSubject: signed\n\n", "far@sink.example")
	assert.Must(t, sink.Wait(1, patience))
	if m := sink.Messages()[0]; !strings.Contains(string(m.Data), "s=r1") {
		t.Errorf("not signed:\n%s", m.Data)
	}

	// A renewal, with no hook and no reload.
	l.renew("mail.mta.example", "2", in(40))
	l.await(s, "mail.mta.example", in(40))
	configure(t, s, "zmailer.conf", plain+certs("mx.mta.example", "mail.mta.example", "new.mta.example"))
	zmctl(t, s, "reload")
	l.await(s, "new.mta.example", in(22))

	// One that the daemons' user could replace is refused, and what runs stays.
	daemon, _ := idsOf(t, daemonUser)
	key := filepath.Join(l.dir, "archive", "new.mta.example", "privkey1.pem")
	assert.Must(t, os.Chown(filepath.Dir(key), daemon, -1))
	wantIn(t, exits(t, s, 78, "zmctl", "check-config"), filepath.Dir(key)+" belongs to uid")
	exits(t, s, 78, "zmctl", "reload")
	l.await(s, "mx.mta.example", in(20))
	assert.Must(t, os.Chown(filepath.Dir(key), 0, -1))
	stop(t, s)
	if left := processes(t, s); len(left) > 0 {
		t.Errorf("after the stop there are %v", left)
	}
}

// Op4: a key that cannot be used is an alarm as long as a line of the file dkim names it.
func TestOp4AlarmAboutAKeyGoesWithItsLine(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := prepare(t, sink, nil)
	newkey(t, s, "mta.example", "r1", "ed25519")
	begin(t, s)
	submitAs(t, s, "From: alice@mta.example\nSubject: one\n\n", "far@sink.example")
	assert.Must(t, sink.Wait(1, patience))
	table := filepath.Join(filepath.Dir(s.Config()), "dkim")
	key := filepath.Join(filepath.Dir(s.Config()), strings.Fields(read(t, table))[2])
	write(t, key, "damaged\n")
	await(t, s, "an agent that reads the key", func() (bool, error) {
		submitAs(t, s, "From: alice@mta.example\nSubject: more\n\n", "far@sink.example")
		notes, err := filepath.Glob(path(s, "lastgood/ta-smtp/*.bad"))
		return len(notes) == 1, err
	})
	said, _ := call(t, s, "zmctl", "status")
	wantIn(t, said, key)
	configure(t, s, "dkim", "# none\n")
	zmctl(t, s, "reload")
	if notes := assert.Get(filepath.Glob(path(s, "lastgood/ta-smtp/*.bad")))(t); len(notes) != 0 {
		t.Errorf("notes stay: %v", notes)
	}
	if said, _ := call(t, s, "zmctl", "status"); strings.Contains(said, key) {
		t.Errorf("the alarm stays: %s", said)
	}
}

// Op2: as a unit of systemd runs them, as the user of the daemons with the right to read as an
// ambient capability: check-config opens keys by it, and reads nothing else with it.
func TestOp2UnitsRightToReadIsForKeysAlone(t *testing.T) {
	t.Parallel()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("skipped: no setpriv")
	}
	l := &letsEncrypt{t: t, ca: peer.NewCA(t, "ca")}
	s := confined(t, nil, func(s *suite.Suite) {
		delete(s.Settings, "METRICS")
		l.dir = filepath.Join(s.Dir, "letsencrypt")
		s.Settings["TLSCERT"], s.Settings["TLSKEY"] = l.file("mx.mta.example", "fullchain"), l.file("mx.mta.example", "privkey")
		l.renew("mx.mta.example", "1", time.Now().Add(20*time.Hour))
		s.Files["aliases"] = "a: b@example.net\n"
	})
	unit := func(args ...string) (string, int) {
		cmd := s.Command(args[0], args[1:]...)
		cmd.Args = append([]string{"setpriv", "--reuid", daemonUser, "--regid", daemonUser, "--clear-groups",
			"--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search", "--bounding-set", "-all,+dac_read_search", cmd.Path}, cmd.Args[1:]...)
		cmd.Path = setpriv
		return run(t, cmd)
	}
	said, code := unit("zmctl", "check-config", "--start")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, said)
	}
	wantIn(t, said, l.file("mx.mta.example", "privkey")+": readable by root only: handed over")
	// A table that the daemons could not read is not read with that right either.
	assert.Must(t, os.Chmod(filepath.Join(filepath.Dir(s.Config()), "aliases"), 0o600))
	if said, code = unit("zmctl", "check-config", "--start"); code != 78 {
		t.Errorf("exit code %d\n%s", code, said)
	}
}

// Op11: a reload opens and closes addresses of an smtpserver that is not root any more, also one
// below 1024 and one that takes the place of an address that root has opened. It names what it has applied.
func TestOp11ReloadOpensAddressesOfRoot(t *testing.T) {
	t.Parallel()
	s := confined(t, nil, func(s *suite.Suite) { delete(s.Settings, "METRICS") })
	begin(t, s)
	event(t, s, "confined", "program", "smtpserver")
	pid := oneOf(t, s, "smtpserver").Pid
	var low net.Listener
	for port := 1000; low == nil && port > 600; port-- {
		low, _ = net.Listen("tcp", fmt.Sprintf("127.0.0.7:%d", port)) // the next one if it is taken
	}
	if low == nil {
		t.Skip("skipped: no free port below 1024")
	}
	assert.Must(t, low.Close())
	_, port, _ := net.SplitHostPort(s.SMTPAddr)
	plain := read(t, s.Config())
	reload := func(addrs string) {
		t.Helper()
		configure(t, s, "zmailer.conf", plain+"SMTPLISTEN=\""+addrs+"\"\n")
		line := lineOf(t, zmctl(t, s, "reload"), "smtpserver")
		if strings.Contains(line, "restart") {
			t.Errorf("%s: %s", addrs, line)
		}
	}
	open := connect(t, s.SMTPAddr)
	reload(s.SMTPAddr + " " + low.Addr().String())
	connect(t, low.Addr().String()).say("QUIT", "221")
	reload(":" + port)
	connect(t, "127.0.0.7:"+port).say("QUIT", "221")
	if c, err := net.Dial("tcp", low.Addr().String()); err == nil {
		c.Close()
		t.Error("an address that is no longer named is open")
	}
	reload(s.SMTPAddr)
	open.say("MAIL FROM:<a@client.example>", "250")
	open.say("QUIT", "221")
	connect(t, s.SMTPAddr).say("QUIT", "221")
	assert.Equal(t, oneOf(t, s, "smtpserver").Pid, pid)
	stop(t, s)
}

// Op2: the secrets of SRS, and a table on a server with its password, are files that root alone can read:
// the router, the router that smtpserver asks about recipients, and the program lookup use them at the
// start and after a reload that names others. check-config reports them so, and refuses one that the
// daemons could replace.
func TestOp2PasswordsOfRootAloneWork(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	users := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch name := strings.TrimPrefix(r.URL.Path, "/"); {
		case r.Header.Get("Authorization") != "Bearer "+name:
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Query().Get("k") != name:
			w.WriteHeader(http.StatusNoContent)
		default:
			fmt.Fprintln(w, "far@sink.example")
		}
	}))
	t.Cleanup(users.Close)
	s := confined(t, sink, func(s *suite.Suite) {
		delete(s.Settings, "METRICS")
		s.Settings["SRSSECRETS"], s.Settings["ALIASES"], s.Settings["LOOKUPKEEP"] = "srs.secrets", "aliases http:sales.cf", "0"
		s.Settings["RCPTCHECKKEEP"] = "0"
		s.Files["aliases"] = "other: other@sink.example\n"
	})
	dir := filepath.Dir(s.Config())
	hide := func(name, text string) {
		t.Helper()
		write(t, filepath.Join(dir, name), text)
		assert.Must(t, os.Chown(filepath.Join(dir, name), 0, 0), os.Chmod(filepath.Join(dir, name), 0o600))
	}
	// Each map has one key, its name, and a password of its own.
	for _, name := range []string{"sales", "info"} {
		hide(name+".cf", "url = "+users.URL+"/"+name+"?k=%u\nformat = text\nauthorization_file = "+name+".secret\n")
		hide(name+".secret", "Bearer "+name+"\n")
	}
	hide("srs.secrets", "a secret that no daemon can read\n")

	said := zmctl(t, s, "check-config")
	wantIn(t, said, filepath.Join(dir, "srs.secrets")+": readable by root only: handed over", filepath.Join(dir, "sales.cf")+": readable by root only: handed over",
		filepath.Join(dir, "sales.secret")+": readable by root only: handed over")
	begin(t, s)
	event(t, s, "confined", "program", "router")
	sent := 0
	passes := func(to string) {
		t.Helper()
		sendSMTP(t, s, "bob@client.example", to+"@mta.example", "Subject: x\n\n")
		sent++
		assert.Must(t, sink.Wait(sent, patience))
		if from := sink.Messages()[sent-1].From; !strings.HasPrefix(from, "SRS0=") || !strings.HasSuffix(from, "=client.example=bob@mta.example") {
			t.Errorf("the sender of forwarded mail is %s", from)
		}
	}
	passes("sales")
	// The verifier knows the secrets, too: it takes a bounce to the sender that was rewritten, and no forged one.
	made := sink.Messages()[0].From
	k := connect(t, s.SMTPAddr)
	k.say("MAIL FROM:<>", "250")
	k.say("RCPT TO:<"+made+">", "250")
	k.say("RCPT TO:<SRS0=0000"+made[len("SRS0=0000"):]+">", "550")
	k.say("RCPT TO:<info@mta.example>", "550")
	k.say("QUIT", "221")

	plain := read(t, s.Config())
	configure(t, s, "zmailer.conf", strings.Replace(plain, "http:sales.cf", "http:info.cf", 1))
	zmctl(t, s, "reload")
	passes("info")

	daemon, _ := idsOf(t, daemonUser)
	assert.Must(t, os.Chown(filepath.Join(dir, "info.secret"), daemon, -1), os.Chmod(filepath.Join(dir, "info.secret"), 0o200))
	wantIn(t, exits(t, s, 78, "zmctl", "check-config"), "info.secret belongs to uid")
	exits(t, s, 78, "zmctl", "reload")
	stop(t, s)
	if left := processes(t, s); len(left) > 0 {
		t.Errorf("after the stop there are %v", left)
	}
}
