package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"zmailer/test/suite"
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
	must(t, err)
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	must(t, p.cmd.Start())
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
	must(p.t, err)
	if page := p.post("/login", url.Values{"token": {string(token)}}); !strings.Contains(page, "Log out") {
		p.t.Fatalf("login:\n%s", page)
	}
}

func (p *webPage) read(r *http.Response, err error) string {
	p.t.Helper()
	must(p.t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must(p.t, err)
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
	must(t, err)
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
	must(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("zmctl web: %v", err)
	}
}

// zmctl web passes its flags to zmweb, and exits with 71 if that is missing.
func TestZmctlWebBecomesZmweb(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	for flags, want := range map[string]int{"--token-file=off": 64, "--listen=0.0.0.0:0": 78, "--accounts=/nowhere": 78, "--accounts=pam:x": 78, "--no-such": 64} {
		exits(t, s, want, "zmctl", "web", flags)
	}
	alone := filepath.Join(t.TempDir(), "zmctl")
	program := s.Command("zmctl")
	// Not written by this process: a program that another test forks meanwhile would hold it open.
	must(t, exec.Command("cp", program.Path, alone).Run())
	cmd := exec.Command(alone, "web")
	cmd.Env = append(program.Env, "PATH=/nowhere")
	if said, code := run(t, cmd); code != 71 {
		t.Errorf("without zmweb: got %d: %s", code, said)
	}
}
