package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/lookup/passwd"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// patience is how long an event may take on a loaded machine.
const patience = 60 * time.Second

// Accounts of the system that nothing else uses in these tests.
const (
	attackerName = "games"
	aliceName    = "news" // users whose mail is to be delivered
	bobName      = "uucp"
	daemonName   = "daemon"
)

// secret is in all mail of the other users, and in the files that only root may read.
const secret = "not-for-the-attacker"

// Modes in which the daemons run.
const (
	asRoot   = "root"
	asDaemon = "DAEMONUSER"
	shared   = "ROUTERMODE=shared"
)

func modes() []string { return []string{asRoot, asDaemon, shared} }

// eachMode runs a test against a system in each mode.
func eachMode(t *testing.T, test func(w *world)) {
	t.Helper()
	need(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			test(begin(t, mode, nil))
		})
	}
}

// world is a system that is attacked.
type world struct {
	*testing.T
	mode        string
	s           *suite.Suite
	sink        *peer.Sink
	later       atomic.Bool // the sink defers all mail
	maildirs    bool        // mailboxes are Maildirs
	a           *attacker
	alice, bob  account
	daemon      account // whom the postoffice belongs to
	canaries    map[string]canary
	sent        []letter
	rounds      int
	launch      func(*exec.Cmd) error  // starts submit; nil: Start
	mayNotWrite func(path string) bool // nil: see checkAccess
}

type account struct {
	name     string
	uid, gid int
}

func (w *world) account(name string) account {
	w.Helper()
	a, ok := lookup(name)
	if !ok {
		w.Skipf("this system has no user %s", name)
	}
	return a
}

func lookup(name string) (a account, ok bool) {
	u, err := user.Lookup(name)
	if err != nil {
		return a, false
	}
	uid, uerr := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	return account{name, uid, gid}, errors.Join(uerr, gerr) == nil
}

// letter is a message of another user's, which must arrive once.
type letter struct {
	token string
	from  string // the user who submits it, "" for SMTP
	to    string
	// report: it fails, and a report is to come.
	report bool
}

// canary is a file that no attack may change.
type canary struct {
	content string
	mode    fs.FileMode
	uid     uint32
	time    time.Time
}

const schedulerConf = `PARAM global-report-interval=1s
*/*
	interval=1s retries="1 1 2 3" expiry=1h maxta=20 maxring=50 maxthr=20
smtp/*
	command="ta-smtp --slots=8 $channel"
local/*
file/*
	command="ta-mailbox --slots=4 $channel"
pipe/*
	command="ta-mailbox --slots=2 $channel"
`

// prepare makes a system without starting it.
func prepare(t *testing.T, mode string, change func(w *world)) *world {
	t.Helper()
	need(t)
	dir := t.TempDir()
	openUp(t, dir)
	return prepareIn(t, dir, mode, change)
}

// crowded has a system that is prepared offer submission to alice, and exempt one address alone from
// the limits. It returns where users submit.
func (w *world) crowded() (submission string) {
	w.Helper()
	submission, err := peer.FreeAddr()
	w.must(err)
	users, _, err := passwd.Change{User: aliceName, Password: "secret", SCRAM: true}.Apply(nil)
	w.must(err)
	file := filepath.Join(w.s.Dir, "passwords")
	w.must(os.WriteFile(file, users, 0o600))
	w.must(os.Chown(file, w.account(daemonName).uid, w.account(daemonName).gid))
	w.s.Settings["SUBMISSIONLISTEN"], w.s.Settings["AUTH"] = submission, "file:"+file
	w.s.Settings["LIMITSEXEMPT"], w.s.Settings["RELAYNETS"] = exemptAddr+"/32", "192.0.2.0/24"
	return submission
}

// prepareIn is prepare in a directory that other users can enter.
func prepareIn(t *testing.T, dir, mode string, change func(w *world)) *world {
	t.Helper()
	w := &world{T: t, mode: mode}
	w.sink = &peer.Sink{Rcpt: func(address string, _ int) string {
		switch {
		case strings.HasPrefix(address, "no."):
			return "550 5.1.1 no such user"
		case w.later.Load():
			return "451 4.2.1 later"
		}
		return ""
	}}
	assert.Must(t, w.sink.Start())
	t.Cleanup(w.sink.Close)
	w.alice, w.bob, w.daemon = w.account(aliceName), w.account(bobName), account{"root", 0, 0}
	games := w.account(attackerName)
	w.s = &suite.Suite{
		Bin: bin, Dir: dir,
		Settings: map[string]string{
			"LOCALUSERS": "passwd", "MAILBOX": filepath.Join(dir, "mail") + "/%u",
			"FORWARD": filepath.Join(dir, "forward") + "/%u/forward", "ROUTERPOLL": "1s", "RCPTCHECK": "no",
		},
		Files: map[string]string{"scheduler.conf": schedulerConf, "routes": ". smtp!" + w.sink.RouteHost() + "\n"},
	}
	switch mode {
	case asDaemon:
		w.daemon = w.account(daemonName)
		w.s.Settings["DAEMONUSER"] = daemonName
	case shared:
		w.s.Settings["ROUTERMODE"] = "shared"
	}
	if change != nil {
		change(w)
	}
	w.must(w.s.Init())
	w.must(os.Chmod(filepath.Join(dir, "mail"), 0o777|fs.ModeSticky))
	w.must(os.MkdirAll(filepath.Join(dir, "forward"), 0o755))
	w.plantCanaries()
	w.a = newAttacker(t, games.uid, games.gid)
	w.must(os.Mkdir(filepath.Join(dir, "tmp"), 0o777))
	w.must(os.Chmod(filepath.Join(dir, "tmp"), 0o777|fs.ModeSticky))
	return w
}

// openUp has other users enter a test's directory.
func openUp(t *testing.T, dir string) {
	t.Helper()
	assert.Must(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
}

// begin is prepare and start.
func begin(t *testing.T, mode string, change func(w *world)) *world {
	t.Helper()
	w := prepare(t, mode, change)
	w.start()
	return w
}

func (w *world) start() {
	w.Helper()
	w.Cleanup(func() {
		if w.Failed() {
			log := w.s.Log()
			w.Logf("the end of the log:\n%s", log[max(0, len(log)-4000):])
		}
		w.s.Kill()
	})
	w.must(w.s.Start())
	w.s.AwaitDaemons(patience)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// po returns a path in the postoffice.
func (w *world) po(name string) string { return filepath.Join(w.s.PostOffice(), name) }

// routerDir returns the directory that the routers take mail from.
func (w *world) routerDir() string {
	if w.mode == shared {
		return "router0"
	}
	return "router"
}

// open returns the directories that the attacker can write to.
func (w *world) open() []string {
	dirs := []string{w.po("public")}
	if w.mode == shared {
		dirs = append(dirs, w.po("router"))
	}
	return dirs
}

// root returns the path of the canary that only root may read.
func (w *world) root() string { return filepath.Join(w.s.Dir, "canary", "root") }

// keys returns the path of a canary that alice may write and everybody read.
func (w *world) keys() string { return filepath.Join(w.s.Dir, "canary", "keys") }

// theirs returns the path of a canary of the daemons' user.
func (w *world) theirs() string { return filepath.Join(w.s.Dir, "canary", "daemon") }

func (w *world) plantCanaries() {
	w.Helper()
	w.must(os.Mkdir(filepath.Dir(w.root()), 0o755))
	// The daemons' file looks like one of their messages.
	message := "from <x@far.example>\nto <far@sink.example>\nenv-end\nSubject: x\n\n" + secret + " canary\n"
	for path, is := range map[string]struct {
		text string
		mode fs.FileMode
		who  account
	}{
		w.root():   {message, 0o700, account{}},
		w.keys():   {"ssh-ed25519 alice's\n", 0o644, w.alice},
		w.theirs(): {message, 0o700, w.daemon},
	} {
		w.must(os.WriteFile(path, []byte(is.text), 0o600))
		w.must(os.Chmod(path, is.mode))
		w.must(os.Chown(path, is.who.uid, is.who.gid))
	}
	w.canaries = map[string]canary{}
	for _, path := range []string{w.root(), w.keys(), w.theirs()} {
		w.canaries[path] = w.look(path)
	}
}

func (w *world) look(path string) canary {
	w.Helper()
	b, err := os.ReadFile(path)
	w.must(err)
	info, err := os.Stat(path)
	w.must(err)
	return canary{string(b), info.Mode(), info.Sys().(*syscall.Stat_t).Uid, info.ModTime()}
}

// command returns a program of the system as a user.
func (w *world) command(as account, program string, args ...string) *exec.Cmd {
	cmd := w.s.Command(program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}}
	return cmd
}

// zmctl is zmctl of root, which must end in time; what it prints and its exit code.
func (w *world) zmctl(args ...string) (said string, code int) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	cmd := w.s.Command("zmctl", args...)
	run := exec.CommandContext(ctx, cmd.Path, args...)
	run.Env = cmd.Env
	out, err := run.CombinedOutput()
	if ctx.Err() != nil {
		w.Errorf("zmctl %q hangs", args)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatal(err)
	}
	return string(out), run.ProcessState.ExitCode()
}

// token makes a word that occurs in one message alone.
func (w *world) token() string {
	w.rounds++
	return fmt.Sprintf("t%dx", w.rounds)
}

func text(token string) string {
	return "Subject: mail " + token + "\n\n" + secret + " " + token + "\n"
}

// submit has a user submit a message that must be accepted.
func (w *world) submit(as account, to string) letter {
	w.Helper()
	l := letter{token: w.token(), from: as.name, to: to}
	if to == "fails" {
		l.to, l.report = "no."+l.token+"@sink.example", true
	}
	cmd := w.command(as, "submit", "-i", l.to)
	cmd.Stdin = strings.NewReader(text(l.token))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	start := cmd.Start
	if w.launch != nil {
		start = func() error { return w.launch(cmd) }
	}
	err := start()
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		w.Errorf("submit of %s is refused: %v\n%s", as.name, err, &out)
		return l
	}
	w.sent = append(w.sent, l)
	return l
}

// smtp has a client on the network send a message that must be accepted at once.
func (w *world) smtp(to string) letter {
	w.Helper()
	l := letter{token: w.token(), to: to}
	src := peer.Source{Addr: w.s.SMTPAddr, Connections: 1, Messages: 1, From: "x@far.example",
		To: func(int) string { return to }, Body: func(int) []byte { return []byte(strings.ReplaceAll(text(l.token), "\n", "\r\n")) }}
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	if err := src.Run(ctx); err != nil {
		w.Errorf("SMTP mail is refused: %v", err)
		return l
	}
	w.sent = append(w.sent, l)
	return l
}

// send has the other users' mail come in each way.
func (w *world) send() {
	w.Helper()
	w.submit(w.alice, w.bob.name+"@mta.example")
	w.smtp(w.alice.name + "@mta.example")
	w.smtp("far@sink.example")
	w.submit(w.bob, "fails")
}

// arrived counts how often a message has come to where it belongs.
func (w *world) arrived(l letter) int {
	mbox := func(name string) []byte {
		if w.maildirs {
			mail, err := suite.Mail(filepath.Join(w.s.Dir, "mail", name))
			w.must(err)
			return append([]byte("\n"), bytes.Join(mail, []byte("\n"))...)
		}
		b, err := os.ReadFile(filepath.Join(w.s.Dir, "mail", name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EISDIR) && !errors.Is(err, syscall.ELOOP) {
			w.Fatal(err)
		}
		return b
	}
	name, local := strings.CutSuffix(l.to, "@mta.example")
	switch {
	case l.report:
		return bytes.Count(mbox(l.from), []byte("\nFinal-Recipient: rfc822; "+l.to))
	case local:
		return bytes.Count(mbox(name), []byte("\n"+secret+" "+l.token+"\n"))
	}
	n := 0
	for _, m := range w.sink.Messages() {
		n += bytes.Count(m.Data, []byte(secret+" "+l.token+"\r\n"))
	}
	return n
}

// delivered waits until all mail of the other users has arrived.
func (w *world) delivered() {
	w.Helper()
	for _, l := range w.sent {
		w.await(fmt.Sprintf("message %s from %q to %s", l.token, l.from, l.to), func() bool { return w.arrived(l) > 0 })
	}
}

// await looks at a state of another process, which gives no event.
func (w *world) await(what string, ok func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			left, _ := w.s.Left()
			w.Fatalf("no %s after %v; the postoffice holds %q", what, patience, left[:min(len(left), 20)])
		}
	}
}

// event waits for a log line.
func (w *world) event(word string, pairs ...string) suite.Event {
	w.Helper()
	e, err := w.s.Wait(patience, word+" "+strings.Join(pairs, " "), func(e suite.Event) bool { return e.Is(word, pairs...) })
	w.must(err)
	return e
}

// check sends mail, waits for it, and asserts what must hold after every attack.
func (w *world) check() {
	w.Helper()
	w.send()
	w.delivered()
	w.unharmed()
}

// unharmed asserts what must hold at every moment.
func (w *world) unharmed() {
	w.Helper()
	for _, l := range w.sent {
		if n := w.arrived(l); n > 1 {
			w.Errorf("message %s to %s arrived %d times", l.token, l.to, n)
		}
	}
	for path, was := range w.canaries {
		if is := w.look(path); is != was {
			w.Errorf("%s is %+v now, was %+v", path, is, was)
		}
	}
	w.checkOwners()
	w.checkAccess()
	for _, level := range []string{"WARN", "ERROR"} {
		if n := w.s.Count("daemon-ended", "level", level); n > 0 {
			w.Errorf("%d daemons ended by themselves", n)
		}
	}
}

// names lists every name below the system's directory, as root sees it.
func (w *world) names(visit func(path string, info fs.FileInfo)) {
	w.Helper()
	err := filepath.WalkDir(w.s.Dir, func(path string, d fs.DirEntry, err error) error {
		// In a race a name vanishes, or a directory becomes a file, while it is read.
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil {
			visit(path, info)
		}
		return nil
	})
	w.must(err)
}

// checkOwners wants no file of the attacker's where the daemons believe what they find.
func (w *world) checkOwners() {
	w.Helper()
	bad := 0
	may := append(w.open(), w.po("quarantine"), filepath.Join(w.s.Dir, "mail"), filepath.Join(w.s.Dir, "tmp"))
	w.names(func(path string, info fs.FileInfo) {
		st := info.Sys().(*syscall.Stat_t)
		if int(st.Uid) == w.a.uid && !slices.ContainsFunc(may, func(dir string) bool { return strings.HasPrefix(path, dir+"/") }) {
			if bad++; bad < 10 {
				w.Errorf("the attacker owns %s, mode %v", path, info.Mode())
			}
		}
	})
}

// checkAccess has the attacker open every name: none has another user's mail, and only
// his own can be written.
func (w *world) checkAccess() {
	w.Helper()
	o := op{Do: "probe", Data: []byte(secret)}
	own := map[string]bool{}
	w.names(func(path string, info fs.FileInfo) {
		st := info.Sys().(*syscall.Stat_t)
		own[path] = int(st.Uid) == w.a.uid
		o.Paths = append(o.Paths, path)
	})
	r := w.a.do(o)
	if len(r.Data) > 0 {
		w.Errorf("the attacker reads other users' bytes in\n%s", r.Data)
	}
	for _, path := range r.Names {
		if !own[path] && (w.mayNotWrite == nil || w.mayNotWrite(path)) {
			w.Errorf("the attacker can write to %s", path)
		}
	}
	if held := w.a.do(op{Do: "held"}).Data; bytes.Contains(held, []byte(secret)) {
		w.Error("a file that the attacker holds open has other users' bytes")
	}
}
