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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/test/suite"
)

// webPage is a running zmctl web and somebody who is logged in.
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
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		p.t.Fatal(err)
	}
	if page := p.post("/login", url.Values{"token": {string(token)}}); !strings.Contains(page, "Log out") {
		p.t.Fatalf("login:\n%s", page)
	}
}

func (p *webPage) read(r *http.Response, err error) string {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Fatal(err)
	}
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
	limit := time.Now().Add(patience)
	for {
		page := p.get(path)
		if strings.Contains(page, text) {
			return page
		}
		if time.Now().After(limit) {
			p.t.Fatalf("%s: no %q in\n%s", path, text, page)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// M41: the page of a running system: what waits and why, what came, an order that the
// scheduler follows, its undo, and what the next process still knows.
func TestWebPageShowsAndOrders(t *testing.T) {
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	p := servePage(t, s, "--write")
	if page := p.get("/"); strings.Contains(page, id) || !strings.Contains(page, "Token") {
		t.Fatalf("before the login:\n%s", page)
	}
	p.enter(s)
	wantIn(t, p.await("/", "recipients delivered"), "1</strong> message waits", "2</strong> open recipients", "smtp/", "router pid", "<svg")
	wantIn(t, p.get("/queue?state=waiting&to=one@*"), id, "one@sink.example", "451 4.2.1 later", "1 message with 1 recipient matches")
	wantIn(t, p.get("/message/"+id), "wait for host", "ok@sink.example", "delivered", "two@sink.example", "Subject", "attempt 1")
	threads := p.get("/threads")
	wantIn(t, threads, "/thread?channel=smtp")
	link := regexp.MustCompile(`href="(/thread\?[^"]+)"`).FindStringSubmatch(threads)
	if link == nil {
		t.Fatal("no link to a thread")
	}
	wantIn(t, p.get(strings.ReplaceAll(link[1], "&amp;", "&")), "one@sink.example", "two@sink.example", id)

	secret := p.hidden(p.get("/queue"), "csrf")
	form := url.Values{"csrf": {secret}, "verb": {"remove"}, "id": {id}}
	wantIn(t, p.post("/act", form), "2 recipients of 1 message; nothing was changed")
	form.Set("sure", "yes")
	s.Forget()
	done := p.post("/act", form)
	wantIn(t, done, "one@sink.example", "two@sink.example", "web/", "Undo")
	event(t, s, "removed", "id", id, "rcpts", "2")
	wantIn(t, p.get("/queue"), "Nothing waits")
	undone := p.post("/undo", url.Values{"csrf": {secret}, "order": {p.hidden(done, "order")}})
	wantIn(t, undone, "is queued again", "undone for 1 message")
	close(sink.open)
	form.Set("verb", "retry")
	p.await("/queue", id)
	wantIn(t, p.post("/act", form), "due now")
	event(t, s, "delivered", "rcpt", "one@sink.example")
	event(t, s, "delivered", "rcpt", "two@sink.example")
	p.await("/queue", "Nothing waits")
	wantIn(t, p.await("/message/"+id, "done with"), "3 delivered")
	p.stop()

	p = servePage(t, s)
	p.enter(s)
	page := p.get("/?span=1h")
	wantIn(t, page, "0 failed a minute", "half within")
	if strings.Contains(p.get("/queue"), `name="verb"`) {
		t.Error("orders are offered without --write")
	}
	p.stop()
}

// stop ends it by SIGTERM, which is exit code 0.
func (p *webPage) stop() {
	p.t.Helper()
	p.CloseIdleConnections()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("zmctl web: %v", err)
	}
}

// children are the processes that a process has started.
func children(t *testing.T, pid int) []int {
	t.Helper()
	var list []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(word); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

// The page reads and changes the postoffice in one process.
func TestWebPageStartsNoOtherProgram(t *testing.T) {
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	p := servePage(t, s)
	p.enter(s)
	wantIn(t, p.get("/queue"), id)
	if list := children(t, p.cmd.Process.Pid); len(list) > 0 {
		t.Errorf("it has started %v", list)
	}
	p.stop()
}

// zmctl web hands its flags on to zmweb, and says so if that is missing.
func TestZmctlWebBecomesZmweb(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	for flags, want := range map[string]int{"--token-file=off": 64, "--listen=0.0.0.0:0": 78, "--accounts=/nowhere": 78, "--accounts=pam:x": 78, "--no-such": 64} {
		if said, code := call(t, s, "zmctl", "web", flags); code != want {
			t.Errorf("%s: got %d, want %d: %s", flags, code, want, said)
		}
	}
	alone := filepath.Join(t.TempDir(), "zmctl")
	program := s.Command("zmctl")
	// Not written by this process: a program that another test forks meanwhile would hold it open.
	if said, code := run(t, exec.Command("cp", program.Path, alone)); code != 0 {
		t.Fatalf("cp: exit code %d, %s", code, said)
	}
	cmd := exec.Command(alone, "web")
	cmd.Env = append(program.Env, "PATH=/nowhere")
	if said, code := run(t, cmd); code != 71 || !strings.Contains(said, "zmweb") {
		t.Errorf("without zmweb: got %d: %s", code, said)
	}
}
