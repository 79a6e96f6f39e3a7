package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

func onlyAnna(_ context.Context, name, password, _ string) (string, error) {
	if name != "anna" || password != "correct horse" {
		return "", ErrRefused
	}
	return name, nil
}

// A client that sends half of a login keeps no other client out.
func TestHalfSentLoginsKeepNobodyOut(t *testing.T) {
	v := visitorTo(t, Config{Source: hostile(), Login: onlyAnna})
	at := strings.TrimPrefix(v.server.URL, "http://")
	for range checksAtOnce {
		c, err := net.Dial("tcp", at)
		assert.Must(t, err)
		defer c.Close()
		fmt.Fprintf(c, "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
		// Said when the form begins to be read.
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
			t.Fatalf("got %q, %v", line, err)
		}
		fmt.Fprint(c, "user=anna")
	}
	v.Timeout = 20 * time.Second
	if code, _ := v.post("/login", url.Values{"user": {"anna"}, "password": {"correct horse"}}); code != http.StatusOK {
		t.Errorf("got %d", code)
	}
}

// All of a machine have one loopback address: guesses there do not keep the owner out.
func TestRightTokenNeverWaits(t *testing.T) {
	v := visitorTo(t, Config{Source: hostile()})
	for range triesFree {
		v.post("/login", url.Values{"token": {"a guess"}})
	}
	if code, _ := v.post("/login", url.Values{"token": {"a guess"}}); code != http.StatusTooManyRequests {
		t.Errorf("a guess: got %d", code)
	}
	v.enter()
}

func TestFailuresAreCountedByNetwork(t *testing.T) {
	for from, want := range map[string]string{"2001:db8:1:2:3::4": "2001:db8:1:2::/64", "192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "fe80::1%eth0": "fe80::/64", "@": "@"} {
		assert.Equal(t, origin(from), want, "%s", from)
	}
	now := time.Now()
	tr := &tries{now: func() time.Time { return now }}
	for i := range triesFree {
		tr.count(fmt.Sprintf("2001:db8::%d", i), "ann", false)
	}
	if tr.wait("2001:db8::ffff") <= 0 {
		t.Error("a new address of a network need not wait")
	}
	// Others that fail do not have it forgotten, but the first of them.
	for i := range maxClients - 1 {
		now = now.Add(time.Millisecond)
		tr.count(fmt.Sprintf("192.0.%d.%d", i/200, i%200), "ann", false)
	}
	tr.count("2001:db8::1", "ann", false)
	tr.count("198.51.100.1", "ann", false)
	if len(tr.failed) != maxClients || tr.wait("2001:db8::1") <= 0 || tr.failed["192.0.0.0"] != nil {
		t.Errorf("%d clients are known, that with failures waits %v", len(tr.failed), tr.wait("2001:db8::1"))
	}
	now = now.Add(triesForget + time.Second)
	tr.count("198.51.100.2", "ann", false)
	assert.Equal(t, len(tr.failed), 1, "clients")
}

// A user who logs in very often loses his own logins, the oldest first, and no one else's.
func TestManyLoginsEndTheOldestOfTheirName(t *testing.T) {
	now := time.Now()
	s := &sessions{now: func() time.Time { return now }}
	joe := s.begin(&session{name: "joe"})
	var all []string
	for range nameSessions + 1 {
		now = now.Add(time.Second)
		all = append(all, s.begin(&session{name: "anna"}))
	}
	if s.find(joe) == nil || s.find(all[0]) != nil || s.find(all[1]) == nil {
		t.Error("the wrong session has ended")
	}
	for i := range maxSessions - nameSessions {
		now = now.Add(time.Millisecond)
		s.begin(&session{name: fmt.Sprint(i)})
	}
	if len(s.list) != maxSessions || s.find(joe) == nil {
		t.Errorf("%d sessions, that of who came just now among them: %v", len(s.list), s.find(joe) != nil)
	}
}

// A session ends with its account; while the account cannot be looked up, it waits.
func TestSessionEndsWithItsAccount(t *testing.T) {
	account, unknown := "first", error(nil)
	v := visitorTo(t, Config{Source: hostile(), Login: onlyAnna, Account: func(string) (string, error) { return account, unknown }})
	enter := func() {
		t.Helper()
		v.post("/login", url.Values{"user": {"anna"}, "password": {"correct horse"}})
	}
	inside := func() bool { _, page := v.get("/queue"); return strings.Contains(page, "Log out") }
	enter()
	unknown = errors.New("the file cannot be read")
	if inside() {
		t.Error("lookup fails: got in")
	}
	if unknown = nil; !inside() {
		t.Error("the same account: not inside")
	}
	if account = "second"; inside() {
		t.Error("another password: inside")
	}
	if account = "first"; inside() {
		t.Error("an ended session is back")
	}
	enter()
	if account = ""; inside() {
		t.Error("who was taken out is inside")
	}
}

// With a file, the passwords of users without rights are checked as well, so that the time
// reveals nothing.
func TestRefusalDoesNotRevealWhoHasRights(t *testing.T) {
	for _, machine := range []bool{false, true} {
		asked := ""
		v := visitorTo(t, Config{Source: hostile(), Machine: machine, Right: func(string) Right { return NoRight },
			Login: func(_ context.Context, name, _, _ string) (string, error) { asked = name; return name, nil }})
		if code, _ := v.post("/login", url.Values{"user": {"joe"}, "password": {"x"}}); code != http.StatusUnauthorized || (asked == "joe") == machine {
			t.Errorf("machine %v: got %d, asked about %q", machine, code, asked)
		}
	}
}

// lasting is an Orderer whose orders end when their context does, or at once if it is done.
type lasting struct {
	noted
	began chan context.Context
	end   chan struct{}
}

func (l *lasting) Give(ctx context.Context, who string, c Command) (*Given, error) {
	l.began <- ctx
	<-l.end
	return nil, context.DeadlineExceeded
}

func (l *lasting) Undo(ctx context.Context, _ string, _ postoffice.OperationID) (string, error) {
	_, err := l.Give(ctx, "", Command{})
	return "", err
}

// An order has its own time, and its browser's end is not its own.
func TestOrderOutlivesItsBrowser(t *testing.T) {
	l := &lasting{began: make(chan context.Context, 1), end: make(chan struct{})}
	v := visitorTo(t, Config{Source: hostile(), Orders: l}).enter()
	csrf := v.csrf()
	for path, form := range map[string]url.Values{"/act": {"verb": {"hold"}, "id": {someID}, "sure": {"yes"}}, "/undo": {"order": {"20261121-031502-hold-4711"}}} {
		form.Set("csrf", csrf)
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, v.server.URL+path, strings.NewReader(form.Encode()))
		assert.Must(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if answer, err := v.Do(r); err == nil {
				answer.Body.Close()
			}
		}()
		order := <-l.began
		if at, ok := order.Deadline(); !ok || time.Until(at) < OrderTime {
			t.Errorf("%s: it may take until %v", path, at)
		}
		cancel()
		<-gone
		if err := order.Err(); err != nil {
			t.Errorf("%s: got %v", path, err)
		}
		l.end <- struct{}{}
	}
	close(l.end)
	_, page := v.post("/act", url.Values{"csrf": {csrf}, "verb": {"hold"}, "id": {someID}, "sure": {"yes"}})
	assert.Contains(t, page, "look at Orders before you repeat it")
}

// What turns text round is shown as its code, in names of threads too; what is right-to-left
// by its letters turns nothing round beside it.
func TestNamesTurnNothingRound(t *testing.T) {
	const turned, hebrew = "a\u202eb@x", "שלום.example"
	v := visitorTo(t, Config{Source: &pretended{text: turned, messages: hostile().messages}, Orders: &noted{text: turned}}).enter()
	for _, path := range pagesOf()[:9] {
		_, page := v.get(path)
		text := regexp.MustCompile(`(?:href|value|class)="[^"]*"`).ReplaceAllString(page, "")
		if strings.Contains(text, "\u202e") {
			t.Errorf("%s has it in\n%s", path, text)
		}
	}
	s := &pretended{text: hebrew, messages: hostile().messages}
	s.messages[0].Sender, s.messages[0].Recipients[0].Address = "x@"+hebrew, "y@"+hebrew
	v = visitorTo(t, Config{Source: s, Orders: &noted{}}).enter()
	for path, want := range map[string][]string{
		"/threads": {"smtp/" + hebrew}, "/thread?channel=smtp&host=x": {"smtp/" + hebrew, hebrew}, "/": {hebrew},
		"/message/" + someID: {hebrew, "&lt;x@" + hebrew + "&gt;", "y@" + hebrew}, "/queue": {"&lt;x@" + hebrew + "&gt;", "y@" + hebrew},
		"/orders": {hebrew},
	} {
		_, page := v.get(path)
		for _, text := range want {
			assert.Contains(t, page, "<bdi>"+text+"</bdi>", path)
		}
	}
}

// Who may log in does not buy guesses at another's password by it; who mistypes the own one starts
// anew when it is right, and so do all of an address after a while.
func TestLoginClearsNoGuessesAtOthers(t *testing.T) {
	now := time.Now()
	tr := &tries{now: func() time.Time { return now }}
	const from = "192.0.2.1"
	for range 3 * triesFree {
		if tr.wait(from) > 0 {
			break
		}
		tr.count(from, "boss", false)
		tr.count(from, "reader", true)
	}
	if tr.wait(from) <= 0 {
		t.Errorf("%d guesses, between logins, without a pause", 3*triesFree)
	}
	now = now.Add(triesForget + time.Second)
	for range 3 * triesFree {
		tr.count(from, "boss", false)
		tr.count(from, "boss", true)
	}
	assert.Equal(t, tr.wait(from) <= 0, true, "own mistakes do not add up")
}
