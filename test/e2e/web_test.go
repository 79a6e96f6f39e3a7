package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
	"zmailer/test/browser"
	"zmailer/test/suite"
	"zmailer/test/wrongconf"
)

// webPage is a running zmctl web and an HTTP client.
type webPage struct {
	t    *testing.T
	base string
	cmd  *exec.Cmd
	http.Client
}

func servePage(t *testing.T, s *suite.Suite, args ...string) *webPage {
	t.Helper()
	return servePageBy(t, s, nil, args...)
}

// servePageBy has a program start it, which is given the command line.
func servePageBy(t *testing.T, s *suite.Suite, by []string, args ...string) *webPage {
	t.Helper()
	p := &webPage{t: t, cmd: s.Command("zmctl", append([]string{"web", "--listen", "127.0.0.1:0"}, args...)...)}
	if by != nil {
		cmd := exec.Command(by[0], slices.Concat(by[1:], []string{p.cmd.Path}, p.cmd.Args[1:])...)
		cmd.Env, cmd.Dir = p.cmd.Env, p.cmd.Dir
		p.cmd = cmd
	}
	out, err := p.cmd.StdoutPipe()
	assert.Must(t, err)
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	assert.Must(t, p.cmd.Start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("zmctl web: %s", &stderr)
		}
		p.cmd.Process.Kill()
	})
	lines := bufio.NewScanner(out)
	for p.base == "" && lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) == 2 && f[0] == "page" {
			p.base = strings.TrimSuffix(f[1], "/")
		}
	}
	if p.base == "" {
		t.Fatalf("zmctl web did not say where it is: %s", &stderr)
	}
	go io.Copy(io.Discard, out)
	if p.Jar, err = cookiejar.New(nil); err != nil {
		t.Fatal(err)
	}
	return p
}

// enter logs in by the token's file.
func (p *webPage) enter(s *suite.Suite) {
	p.t.Helper()
	token, err := os.ReadFile(filepath.Join(s.PostOffice(), ".web.token"))
	assert.Must(p.t, err)
	if page := p.post("/login", url.Values{"token": {string(token)}}); !strings.Contains(page, "Log out") {
		p.t.Fatalf("login:\n%s", page)
	}
}

func (p *webPage) read(r *http.Response, err error) string {
	p.t.Helper()
	assert.Must(p.t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	assert.Must(p.t, err)
	return string(b)
}

func (p *webPage) get(path string) string {
	p.t.Helper()
	r, err := p.Get(p.base + path)
	return p.read(r, err)
}

func (p *webPage) post(path string, form url.Values) string {
	p.t.Helper()
	r, err := p.PostForm(p.base+path, form)
	return p.read(r, err)
}

func (p *webPage) hidden(page, name string) string {
	p.t.Helper()
	m := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		p.t.Fatalf("no %s in\n%s", name, page)
	}
	return m[1]
}

// await reads a page until it has a text.
func (p *webPage) await(path, text string) string {
	p.t.Helper()
	page := ""
	awaitState(p.t, text+" in "+path, func() bool {
		page = p.get(path)
		return strings.Contains(page, text)
	})
	return page
}

// M41: the pages of a running system list what waits, an operation on a message and its undo take
// effect in the scheduler, and without --write no operation is offered. The page starts no other
// process.
func TestWebPageShowsAndChangesMail(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	p := servePage(t, s, "--write")
	if page := p.get("/"); strings.Contains(page, id) {
		t.Fatalf("before the login:\n%s", page)
	}
	p.enter(s)
	wantIn(t, p.await("/", "2</strong> open recipients"), "<svg")
	wantIn(t, p.get("/queue?state=waiting&to=one@*"), id, "one@sink.example", "451 4.2.1 later")
	wantIn(t, p.get("/message/"+id), "ok@sink.example", "two@sink.example")
	link := regexp.MustCompile(`href="(/thread\?channel=smtp[^"]+)"`).FindStringSubmatch(p.get("/threads"))
	if link == nil {
		t.Fatal("no link to a thread")
	}
	wantIn(t, p.get(strings.ReplaceAll(link[1], "&amp;", "&")), "one@sink.example", "two@sink.example", id)

	secret := p.hidden(p.get("/queue"), "csrf")
	form := url.Values{"csrf": {secret}, "verb": {"remove"}, "id": {id}, "sure": {"yes"}}
	s.Forget()
	done := p.post("/act", form)
	event(t, s, "removed", "id", id, "rcpts", "2")
	p.post("/undo", url.Values{"csrf": {secret}, "order": {p.hidden(done, "order")}})
	close(sink.open)
	form.Set("verb", "retry")
	p.await("/queue", id)
	p.post("/act", form)
	event(t, s, "delivered", "rcpt", "one@sink.example")
	event(t, s, "delivered", "rcpt", "two@sink.example")
	p.await("/message/"+id, "3 delivered")
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
	assert.Must(t, err)
	for _, task := range tasks {
		if text, err := os.ReadFile(task); err == nil && len(text) > 0 { // else the thread has ended
			t.Errorf("the page has started the processes %s", text)
		}
	}
	p.stop()

	p = servePage(t, s)
	p.enter(s)
	if strings.Contains(p.get("/queue"), `name="verb"`) {
		t.Error("operations are offered without --write")
	}
	p.stop()
}

// stop ends it by SIGTERM, which is exit code 0.
func (p *webPage) stop() {
	p.t.Helper()
	p.CloseIdleConnections()
	assert.Must(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("zmctl web: %v", err)
	}
}

// zmctl web passes its flags to zmweb, and exits with 71 if that is missing.
func TestZmctlWebBecomesZmweb(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	for flags, want := range map[string]int{"--token-file=off": 78, "--listen=0.0.0.0:0": 78, "--accounts=/nowhere": 78, "--accounts=pam:x": 78, "--no-such": 64} {
		exits(t, s, want, "zmctl", "web", flags)
	}
	alone := filepath.Join(t.TempDir(), "zmctl")
	program := s.Command("zmctl")
	// Not written by this process: a program that another test forks meanwhile would hold it open.
	assert.Must(t, exec.Command("cp", program.Path, alone).Run())
	cmd := exec.Command(alone, "web")
	cmd.Env = append(program.Env, "PATH=/nowhere")
	if said, code := run(t, cmd); code != 71 {
		t.Errorf("without zmweb: got %d: %s", code, said)
	}
}

// browse starts a browser that is logged in as p is. SCREENSHOTS names a directory for
// pictures.
func (p *webPage) browse() *browser.Browser {
	p.t.Helper()
	b, err := browser.Start()
	if errors.Is(err, browser.ErrMissing) {
		p.t.Skip("the pages need Debian's chromium to be drawn")
	}
	assert.Must(p.t, err)
	p.t.Cleanup(func() { b.Close() })
	to, err := url.Parse(p.base)
	assert.Must(p.t, err)
	for _, c := range p.Jar.Cookies(to) {
		assert.Must(p.t, b.Cookie(p.base, c.Name, c.Value))
	}
	assert.Must(p.t, b.Screen(1280, 900, false))
	return b
}

// drawn checks a page that the browser shows.
func drawn(t *testing.T, b *browser.Browser, name, title string, said []string, err error) string {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, text := range said {
		t.Errorf("%s: the browser reports %s", name, text)
	}
	var page []string
	assert.Must(t, b.Ask(`[document.title, document.documentElement.outerHTML]`, &page))
	if !strings.HasPrefix(page[0], title+" ") || strings.Contains(page[1], "<img") || strings.Contains(page[1], "<script") {
		t.Errorf("%s: %s", name, page)
	}
	if dir := os.Getenv("SCREENSHOTS"); dir != "" {
		if err := b.Shot(filepath.Join(dir, name+".png")); err != nil {
			t.Error(err)
		}
	}
	return page[1]
}

// A browser runs nothing of what hostile mail says, finds nothing that a page's own
// policy forbids, and takes an order and its undo through their forms; without a mouse the
// first key leads past the menu.
func TestBrowserDrawsPagesAndRunsNothing(t *testing.T) {
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	const owned = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`
	submit(t, s, "Subject: "+owned+"\n\nbody\n", "-f", "bob@mta.example", "three@sink.example")
	hostile := event(t, s, "deferred", "rcpt", "three@sink.example").Get("id")
	p := servePage(t, s, "--write")
	p.enter(s)
	p.await("/", "3</strong> open recipients")
	b := p.browse()
	for _, c := range []struct{ name, path, title string }{
		{"real-overview", "/?span=1h", "Overview"}, {"real-queue", "/queue?state=waiting", "Queue"}, {"real-threads", "/threads", "Threads"}, {"real-orders", "/orders", "Orders"},
		{"real-hostile-mail", "/message/" + hostile, "Message"}, {"real-message", "/message/" + id, "Message"},
	} {
		said, err := b.Load(t.Context(), p.base+c.path)
		drawn(t, b, c.name, c.title, said, err)
	}
	var focus string
	if err := errors.Join(b.Key("Tab"), b.Ask("document.activeElement.textContent", &focus)); err != nil || focus != "To the content" {
		t.Errorf("Tab leads to %q, %v", focus, err)
	}
	said, err := b.Follow(t.Context(), b.Click("button[value=hold]"))
	page := drawn(t, b, "flow-1-question", "Sure?", said, err)
	wantIn(t, page, "would change 2 recipients of 1 message", "It can be undone")
	said, err = b.Follow(t.Context(), b.Click(".sure button"))
	wantIn(t, drawn(t, b, "flow-2-done", "Order", said, err), "held", "Undo")
	said, err = b.Follow(t.Context(), b.Click("form[action='/undo'] button"))
	wantIn(t, drawn(t, b, "flow-3-undone", "Order", said, err), "undone for 1 message")
	said, err = b.Follow(t.Context(), b.Click(".logout button"))
	wantIn(t, drawn(t, b, "logged-out", "Log in", said, err), "Token")
	p.stop()
}

// M41: names and passwords of this machine, by PAM itself in a service of the test's own,
// which a mount of this process alone puts below /etc/pam.d; who may do what by name and
// group.
func TestWebPageTakesPasswordsOfPAM(t *testing.T) {
	needRoot(t)
	found, err := filepath.Glob("/lib/*/libpam.so.0")
	if err != nil || len(found) == 0 {
		t.Skip("libpam.so.0 is not installed")
	}
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	dir := t.TempDir()
	script := filepath.Join(dir, "check.sh")
	for name, text := range map[string]string{
		"check.sh": "#!/bin/sh\nread -r p || [ -n \"$p\" ]\n[ \"$p:$PAM_RHOST\" = \"secret-of-$PAM_USER:127.0.0.1\" ]\n",
		"zmweb":    "auth required pam_exec.so expose_authtok quiet " + script + "\naccount required pam_permit.so\n",
	} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	conf, err := os.OpenFile(s.Config(), os.O_APPEND|os.O_WRONLY, 0)
	assert.Must(t, err)
	_, err = conf.WriteString("WEBREADERS=@daemon\nWEBWRITERS=games\nWEBWRITE=yes\n")
	assert.Must(t, errors.Join(err, conf.Close()))
	p := servePageBy(t, s, []string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/pam.d && exec "$@"`, dir}, "--accounts", "pam:zmweb", "--token-file", "off")
	enter := func(user, password string) string {
		return p.post("/login", url.Values{"user": {user}, "password": {password}})
	}
	if page := enter("root", "secret-of-root"); strings.Contains(page, "Log out") || strings.Contains(page, "Token") {
		t.Errorf("root has no right here:\n%s", page)
	}
	if page := enter("games", "secret-of-root"); strings.Contains(page, "Log out") {
		t.Errorf("a wrong password:\n%s", page)
	}
	if page := enter("daemon", "secret-of-daemon"); !strings.Contains(page, "web:daemon, reading") {
		t.Errorf("a reader by his group:\n%s", page)
	}
	form := url.Values{"csrf": {p.hidden(p.get("/queue"), "csrf")}, "verb": {"hold"}, "id": {id}, "sure": {"yes"}}
	wantIn(t, p.post("/act", form), "You may read here")
	if page := enter("games", "secret-of-games"); !strings.Contains(page, "web:games<") {
		t.Errorf("a writer:\n%s", page)
	}
	form.Set("csrf", p.hidden(p.get("/queue"), "csrf"))
	wantIn(t, p.post("/act", form), "web:games/", "Undo")
	p.stop()
}

// Op11: SIGHUP has zmweb and zmotlp go by the new zmailer.conf: who may write, the certificate, the
// address; those who are logged in stay so. Settings that cannot be used leave the pages as they
// were, with an alarm until they are mended, and keep no daemon from starting. check-config names
// their lines.
func TestOp11PagesFollowZmailerConf(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	p := servePage(t, s)
	p.enter(s)
	good := read(t, s.Config())
	hang := func(pid int, conf string) {
		t.Helper()
		configure(t, s, "zmailer.conf", good+conf)
		assert.Must(t, syscall.Kill(pid, syscall.SIGHUP))
	}
	web := p.cmd.Process.Pid
	alarms := func() int {
		said, _ := call(t, s, "zmctl", "status", "--json")
		return strings.Count(said, strconv.Quote(s.Config()))
	}
	message := func() bool { return strings.Contains(p.get("/message/"+id), `name="csrf"`) }
	writes := func() bool { return strings.Contains(p.get("/message/"+id), `action="/act"`) }
	if !message() || writes() {
		t.Fatalf("before: %s", p.get("/message/"+id))
	}
	hang(web, "WEBWRITE=yes\n")
	awaitState(t, "orders are taken, in the same session", writes)

	hang(web, "WEBWRITE=yes\nWEBACCOUNTS=nofile\n")
	awaitState(t, "an alarm", func() bool { return alarms() == 1 })
	if !writes() {
		t.Error("refused settings changed the pages")
	}
	line := fmt.Sprintf("%s:%d", s.Config(), strings.Count(good, "\n")+2)
	wantIn(t, exits(t, s, config.ExitConfig, "zmctl", "check-config"), line, "WEBACCOUNTS", "nofile")
	exits(t, s, 0, "zmctl", "check-config", "--start")
	hang(web, "")
	awaitState(t, "orders are refused", func() bool { return !writes() })
	assert.Equal(t, alarms(), 0, "alarms")

	texts := wrongconf.MakeTexts(t)
	dir := filepath.Dir(s.Config())
	texts.Write(t, dir, "web.pem", "CERT")
	texts.Write(t, dir, "web.key", "KEY")
	serial := func(address string) string {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return ""
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	address := strings.TrimPrefix(p.base, "http://")
	hang(web, "WEBCERT=web.pem\nWEBKEY=web.key\n")
	first := ""
	awaitState(t, "TLS", func() bool { first = serial(address); return first != "" })
	awaitState(t, "no pages in the clear", func() bool { // connections from before are closed
		r, err := p.Get(p.base + "/login")
		if err == nil {
			r.Body.Close()
		}
		return err != nil || r.StatusCode != http.StatusOK
	})
	texts.Write(t, dir, "web.pem", "OTHERCERT")
	texts.Write(t, dir, "web.key", "OTHERKEY")
	awaitState(t, "the renewed certificate", func() bool { now := serial(address); return now != "" && now != first })

	// Without --listen the address is that of WEBLISTEN.
	begin, next := freeAddr(t), freeAddr(t)
	configure(t, s, "zmailer.conf", good+"WEBLISTEN="+begin+"\n")
	other := s.Command("zmctl", "web")
	assert.Must(t, other.Start())
	t.Cleanup(func() { other.Process.Kill() })
	answers := func(address string) bool {
		r, err := http.Get("http://" + address + "/login")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	}
	awaitState(t, "the first address", func() bool { return answers(begin) })
	hang(other.Process.Pid, "WEBLISTEN="+next+"\n")
	awaitState(t, "the second address", func() bool { return answers(next) && !answers(begin) })
	// Addresses that overlap with the one in use; one of another program is refused.
	_, port, _ := net.SplitHostPort(next)
	hang(other.Process.Pid, "WEBLISTEN=localhost:"+port+"\nWEBHOSTS=one.example\n")
	named := func(host string) bool {
		q := assert.Get(http.NewRequest(http.MethodGet, "http://"+next+"/login", nil))(t)
		q.Host = host
		r, err := http.DefaultClient.Do(q)
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	}
	awaitState(t, "the same address in another form", func() bool { return named("one.example") })
	hang(other.Process.Pid, "WEBLISTEN=:"+port+"\nWEBCERT=web.pem\nWEBKEY=web.key\n")
	awaitState(t, "all addresses", func() bool { return serial(next) != "" && serial("127.0.0.2:"+port) != "" })
	hang(other.Process.Pid, "WEBLISTEN="+next+"\n")
	awaitState(t, "one address", func() bool { return answers(next) && !answers("127.0.0.2:"+port) })
	taken := assert.Get(net.Listen("tcp", begin))(t)
	hang(other.Process.Pid, "WEBLISTEN="+begin+"\n")
	awaitState(t, "an alarm for the address of another program", func() bool { return alarms() == 1 })
	assert.Equal(t, answers(next), true, "the address before")
	assert.Must(t, taken.Close())
	hang(other.Process.Pid, "WEBLISTEN="+next+"\n")
	awaitState(t, "no alarm", func() bool { return alarms() == 0 })

	traces := s.Command("zmctl", "export", "otlp", "--endpoint", "http://"+begin+"/v1/traces")
	var said logtest.Buffer
	traces.Stderr = &said
	assert.Must(t, traces.Start())
	t.Cleanup(func() { traces.Process.Kill() })
	awaitState(t, "zmotlp", func() bool { return said.Count("started") == 1 })
	hang(traces.Process.Pid, "MAXRCPT=many\n")
	awaitState(t, "it refuses a wrong file", func() bool { return said.Count("conf-refused") == 1 && alarms() == 1 })
	hang(traces.Process.Pid, "LOGLEVEL=debug\n")
	awaitState(t, "it reads a right one", func() bool { return said.Count("conf-read") == 1 && said.Count("LOGLEVEL") == 1 && alarms() == 0 })
	hang(traces.Process.Pid, "MAXRCPT=many\n")
	awaitState(t, "it refuses a wrong file again", func() bool { return alarms() == 1 })
	assert.Must(t, traces.Process.Signal(syscall.SIGTERM), traces.Wait())
	assert.Equal(t, alarms(), 0, "alarms of a program that has ended")
}
