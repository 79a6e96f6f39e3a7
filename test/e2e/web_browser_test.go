package e2e

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/browser"
)

// browse starts a browser that is logged in as p is. SCREENSHOTS names a directory for
// pictures.
func (p *webPage) browse() *browser.Browser {
	p.t.Helper()
	b, err := browser.Start()
	if errors.Is(err, browser.ErrMissing) {
		p.t.Skip("the pages need Debian's chromium to be drawn")
	}
	must(p.t, err)
	p.t.Cleanup(func() { b.Close() })
	to, err := url.Parse(p.base)
	must(p.t, err)
	for _, c := range p.Jar.Cookies(to) {
		must(p.t, b.Cookie(p.base, c.Name, c.Value))
	}
	must(p.t, b.Screen(1280, 900, false))
	return b
}

// drawn checks what the browser says of a page that it shows.
func drawn(t *testing.T, b *browser.Browser, name, title string, said []string, err error) string {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, text := range said {
		t.Errorf("%s: the browser says %s", name, text)
	}
	var page []string
	must(t, b.Ask(`[document.title, document.documentElement.outerHTML]`, &page))
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
