package lookups

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

// limit ends a wait that should never take long.
const limit = time.Minute

// server is a real server that a test starts, stops and stops from answering.
type server struct {
	t       testing.TB
	argv    []string
	user    *syscall.Credential // nil: ours
	network string
	address string
	end     syscall.Signal // ends it with all its processes
	ready   func() bool    // nil: it is once it accepts connections
	cmd     *exec.Cmd
	ended   chan struct{}
	proxy   *peer.Proxy // that is the server to a client; nil: none
}

// start starts the server and waits until it accepts connections.
func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.argv[0], s.argv[1:]...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user, Pdeathsig: syscall.SIGKILL}
	log := assert.Get(os.CreateTemp(s.t.TempDir(), "log"))(s.t)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	assert.Must(s.t, s.cmd.Start())
	s.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(s.cmd, s.ended)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(limit); ; {
		c, err := net.Dial(s.network, s.address)
		if err == nil {
			c.Close()
			if s.ready == nil || s.ready() {
				return
			}
		}
		select {
		case <-tick.C:
			continue
		case <-s.ended:
		case <-deadline:
		}
		text, _ := os.ReadFile(log.Name())
		s.t.Fatalf("%s does not accept connections: %v\n%s", s.argv[0], err, text)
	}
}

// pause stops the server's processes from running until resume.
func (s *server) pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP, func(state string) bool { return state == "T" })
}

func (s *server) resume() {
	s.t.Helper()
	s.signal(syscall.SIGCONT, func(state string) bool { return state != "T" })
}

// signal sends a signal to the server's processes, the first one last, and waits until it
// has its effect.
func (s *server) signal(sig syscall.Signal, done func(state string) bool) {
	s.t.Helper()
	pid := s.cmd.Process.Pid
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, each := range append(strings.Fields(string(children)), strconv.Itoa(pid)) {
		n, _ := strconv.Atoi(each)
		_ = syscall.Kill(n, sig)
		for deadline := time.Now().Add(limit); ; runtime.Gosched() {
			stat, err := os.ReadFile("/proc/" + each + "/stat")
			_, after, _ := strings.Cut(string(stat), ") ")
			if err != nil || done(after[:min(1, len(after))]) {
				break
			}
			if time.Now().After(deadline) {
				s.t.Fatalf("process %s does not take signal %v", each, sig)
			}
		}
	}
}

// stop ends the server.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Signal(s.end)
	<-s.ended
}

// find returns the path of a program; the test is skipped if it is not installed.
func find(t testing.TB, pattern, pkg string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a real server")
	}
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Skipf("%s is not there: apt-get install %s", pattern, pkg)
	}
	return found[len(found)-1]
}

// as returns the user that a server runs as, since some refuse to run as root.
func as(t testing.TB, name string, dirs ...string) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u := assert.Get(user.Lookup(name))(t)
	uid, gid := assert.Get(strconv.Atoi(u.Uid))(t), assert.Get(strconv.Atoi(u.Gid))(t)
	for _, dir := range dirs {
		assert.Must(t, os.Chown(dir, uid, gid))
		for up := filepath.Dir(dir); strings.HasPrefix(up, os.TempDir()+"/"); up = filepath.Dir(up) {
			assert.Must(t, os.Chmod(up, 0o755))
		}
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// run runs a program to its end.
func run(t testing.TB, who *syscall.Credential, stdin string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}

// postgres starts PostgreSQL with an empty database.
func postgres(t testing.TB) *server {
	initdb := find(t, "/usr/lib/postgresql/*/bin/initdb", "postgresql")
	dir := rig.ShortDir(t)
	who := as(t, "postgres", dir)
	run(t, who, "", initdb, "-D", dir+"/data", "-U", "mail", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	s := &server{t: t, user: who, end: syscall.SIGQUIT, network: "unix", address: dir + "/.s.PGSQL.5432", argv: []string{
		filepath.Join(filepath.Dir(initdb), "postgres"), "-D", dir + "/data", "-k", dir,
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "autovacuum=off", "-c", "max_connections=50",
	}}
	s.ready = func() bool {
		return exec.Command(filepath.Join(filepath.Dir(initdb), "pg_isready"), "-q", "-h", dir).Run() == nil
	}
	s.start()
	t.Cleanup(s.stop)
	return s
}

// psql runs statements in it.
func (s *server) psql(statements string) string {
	s.t.Helper()
	return run(s.t, nil, statements, find(s.t, "/usr/lib/postgresql/*/bin/psql", "postgresql"),
		"-h", filepath.Dir(s.address), "-U", "mail", "-d", "postgres", "-qAtX", "-v", "ON_ERROR_STOP=1")
}

// mariadb starts MariaDB with an empty database.
func mariadb(t testing.TB) *server {
	daemon := find(t, "/usr/sbin/mariadbd", "mariadb-server")
	dir := rig.ShortDir(t)
	who := as(t, "mysql", dir)
	run(t, who, "", "/usr/bin/mariadb-install-db", "--no-defaults", "--datadir="+dir+"/data", "--skip-test-db",
		"--auth-root-authentication-method=normal", "--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=4M")
	s := &server{t: t, user: who, end: syscall.SIGTERM, network: "unix", address: dir + "/s", argv: []string{
		daemon, "--no-defaults", "--datadir=" + dir + "/data", "--socket=" + dir + "/s", "--skip-networking",
		"--pid-file=" + dir + "/pid", "--innodb-buffer-pool-size=8M", "--innodb-flush-log-at-trx-commit=0", "--character-set-server=utf8mb4",
	}}
	s.start()
	t.Cleanup(s.stop)
	s.mysql("CREATE DATABASE mail; CREATE USER mail@localhost IDENTIFIED BY 'pass word'; GRANT ALL ON mail.* TO mail@localhost;")
	return s
}

// mysql runs statements in it.
func (s *server) mysql(statements string) string {
	s.t.Helper()
	return run(s.t, nil, statements, "/usr/bin/mariadb", "--no-defaults", "-S", s.address, "-u", "root", "-N", "--binary-mode", "--default-character-set=utf8mb4")
}

// redis starts Redis, empty.
func redis(t testing.TB) *server {
	daemon := find(t, "/usr/bin/redis-server", "redis-server")
	dir := rig.ShortDir(t)
	s := &server{t: t, end: syscall.SIGTERM, network: "unix", address: dir + "/s", argv: []string{
		daemon, "--port", "0", "--unixsocket", dir + "/s", "--save", "", "--appendonly", "no", "--dir", dir,
	}}
	s.start()
	t.Cleanup(s.stop)
	return s
}

// slapd starts a directory with an entry for each row: its key is an octet string, which is
// compared byte by byte.
func slapd(t testing.TB, rows map[string]string) *server {
	daemon := find(t, "/usr/sbin/slapd", "slapd")
	dir := t.TempDir()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	l.Close()
	var ldif strings.Builder
	ldif.WriteString("dn: dc=x\nobjectClass: dcObject\nobjectClass: organization\no: x\ndc: x\n\n")
	n := 0
	for key, value := range rows {
		fmt.Fprintf(&ldif, "dn: cn=n%d,dc=x\nobjectClass: person\ncn: n%d\nsn: x\nuserPassword:: %s\ndescription: %s\n\n",
			n, n, base64.StdEncoding.EncodeToString([]byte(key)), value)
		n++
	}
	conf := fmt.Sprintf("include /etc/ldap/schema/core.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\ndatabase mdb\nsuffix dc=x\ndirectory %s/db\naccess to * by * read\n", dir)
	for name, text := range map[string]string{"slapd.conf": conf, "rows.ldif": ldif.String()} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	assert.Must(t, os.Mkdir(filepath.Join(dir, "db"), 0o700))
	run(t, nil, "", daemon, "-T", "add", "-q", "-f", dir+"/slapd.conf", "-l", dir+"/rows.ldif")
	s := &server{t: t, end: syscall.SIGTERM, network: "tcp", address: l.Addr().String(), argv: []string{
		daemon, "-d", "0", "-f", dir + "/slapd.conf", "-h", "ldap://" + l.Addr().String() + "/",
	}}
	s.start()
	t.Cleanup(s.stop)
	return s
}

// write writes a file of settings for a source and returns the source.
func write(t testing.TB, scheme, format string, args ...any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), scheme)
	assert.Must(t, os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o600))
	return scheme + ":" + path
}
