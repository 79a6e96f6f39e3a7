package web

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/mailq"
	"zmailer/test/browser"
)

// busy is a Source with a queue as it may be: ten thousand messages of every state and age.
type busy struct{ pretended }

func newBusy(now time.Time, n int) *busy {
	hosts := []string{"mx1.shop.example", "mail.a-rather-long-name-of-a-host.department.university.example", "[192.0.2.7]", "relay.example", "b.example"}
	states := []string{"waiting", "waiting", "waiting", "held", "frozen", "delivering", "unserved"}
	s := &busy{}
	s.text = "451 4.7.1 Greylisted, please try again in 300 seconds"
	next := now.Add(12 * time.Minute)
	for i := range n {
		age := time.Duration(i*i%200000) * time.Second
		m := &view.Message{ID: postID(now.Add(-age), i), Name: fmt.Sprintf("%d-4711", 9977858+i), State: "queued", Since: now.Add(-age), AgeSeconds: int64(age / time.Second), Size: 2150,
			Sender: fmt.Sprintf("news-%d@lists.example", i), HasSender: true, Files: []string{"queue/9977858-4711", "transport/9977858-4711"}}
		for j := range 1 + i%3 {
			m.Recipients = append(m.Recipients, view.Recipient{Address: fmt.Sprintf("user%d.%d@%s", i, j, "customers.example"), Channel: "smtp", Host: hosts[(i*7+j)%len(hosts)%(1+i%5)],
				State: states[(i+j)%len(states)], Attempts: 3, Next: &next, Last: s.text})
		}
		s.messages = append(s.messages, m)
	}
	return s
}

// gallery returns a page with a past: counts of a day, with three hours in which nothing was
// counted.
func gallery(t *testing.T, source Source, c Config) *visitor {
	t.Helper()
	now := time.Now()
	samples, err := NewSamples(nil)
	assert.Must(t, err)
	for i := range 24 * 60 {
		if i > 90 && i < 270 {
			continue
		}
		m := samples.at(now.Add(-time.Duration(i) * time.Minute).UnixMilli())
		wave := int64(40 + 30*(i/60%5) + i%7)
		m.accepted, m.delivered, m.failed, m.waiting = wave, wave+wave/3, wave/20, 9000+int64(i%300)
		m.took[3+i/60%4], m.took[8], m.took[12] = wave, wave/4, 2
	}
	c.Source, c.Samples, c.Hostname = source, samples, "mail.example.org"
	return visitorTo(t, c)
}

func postID(at time.Time, i int) string {
	return postoffice.SpoolID{Ino: uint64(9977858 + i), MTime: at.UnixNano()}.String()
}

// Thread and Threads have hosts in every state.
func (s *busy) Threads(context.Context) ([]mailq.ThreadInfo, error) {
	var list []mailq.ThreadInfo
	for i, state := range []string{"trouble", "throttled", "probing", "waiting", "active", "held"} {
		list = append(list, mailq.ThreadInfo{Channel: "smtp", Host: []string{"mx1.shop.example", "mail.a-rather-long-name-of-a-host.department.university.example", "[192.0.2.7]:2525"}[i%3],
			State: state, Messages: 1000 * (i + 1), Recipients: 1500 * (i + 1), Running: i, Limit: 20, Attempts: uint64(40 * i), WaitSeconds: int64(700 * i), OldestSeconds: int64(90000 >> i),
			Trouble: []string{"connect to 192.0.2.7:25: connection refused", "", s.text}[i%3], Clause: "smtp/*"})
	}
	return list, nil
}

func (s *busy) Thread(context.Context, string, string) (*Thread, error) {
	list, _ := s.Threads(context.Background())
	t := &Thread{Info: list[0], State: "in trouble; the host is tried again in 12m", More: 700}
	for i := range 30 {
		t.Waiting = append(t.Waiting, mailq.WaitingInfo{ID: s.messages[i].ID, Rcpt: s.messages[i].Recipients[0].Address, State: "waiting", Attempts: i, Next: noon, Answer: s.text})
	}
	return t, nil
}

// Survey has alarms and directories, too.
func (s *busy) Survey(ctx context.Context) (*Survey, error) {
	v, err := s.pretended.Survey(ctx)
	v.Status = &Status{Overview: &view.Overview{Directories: []view.Directory{{Name: "router", States: []view.StateCount{{State: "to route", Files: 12, OldestSeconds: 3}}},
		{Name: "queue", States: []view.StateCount{{State: "queued", Files: len(s.messages), OldestSeconds: 200000}}},
		{Name: "deferred", States: []view.StateCount{{State: "deferred", Files: 2, OldestSeconds: 18000}}}, {Name: "postman", Problem: "open postman: permission denied"}},
		Owners: []view.Owner{{Says: "router pid 4711 since 2d", Alive: true}, {Says: "scheduler pid 4712 since 2d", Alive: true}, {Says: "smtpserver pid 4713, dead since 12m"}}},
		Alarms: []alarm.Alarm{{Kind: "host", Subject: "smtp/mx1.shop.example", Since: time.Now().Add(-5 * time.Hour), Text: "1000 messages wait; connect to 192.0.2.7:25: connection refused"}}}
	if len(s.messages) == 0 {
		v.Status.Alarms, v.Status.Owners[2] = nil, view.Owner{Says: "smtpserver pid 4713 since 2d", Alive: true}
	}
	return v, err
}

func (s *busy) Look(_ context.Context, id postoffice.SpoolID) (*Look, error) {
	l := &Look{ID: id.String(), State: "queued", Message: s.messages[0], Why: []string{"<user1@customers.example> waits for host mx1.shop.example, which answered:", s.text, "It is tried again in 12m, at 2026-11-22 12:12:30."},
		Header: []view.HeaderField{{Name: "From", Value: "News <news@lists.example>"}, {Name: "To", Value: "user1@customers.example"}, {Name: "Subject", Value: "Eine Nachricht — über die Warteschlange, with a subject that is rather long and goes on and on"}, {Name: "Date", Value: "Sun, 22 Nov 2026 12:00:30 +0000"}}}
	for i, word := range []string{"accepted", "deferred", "deferred", "held", "released", "delivered", "failed"} {
		l.Steps = append(l.Steps, view.Step{Time: noon.Add(time.Duration(i) * time.Hour), Event: word, Text: "<user1@customers.example> attempt=" + fmt.Sprint(i) + " status=4.7.1 host=192.0.2.7 " + s.text})
	}
	return l, nil
}

func (s *busy) Suspensions(context.Context) ([]view.Suspension, error) {
	if len(s.messages) == 0 {
		return nil, nil
	}
	until := noon.Add(4 * time.Hour)
	return []view.Suspension{{Order: "20261122-072000-suspend-4711", Subject: "channel smtp, host mail.a-rather-long-name-of-a-host.department.university.example", By: "web:anna/zmailer", Since: noon, Until: &until, Reason: "their maintenance"},
		{Order: "20261122-072100-drain-4711", Subject: "new mail", Accepting: true, By: "root", Since: noon}}, nil
}

func (s *busy) Orders(context.Context, int) ([]Order, error) {
	o := Order{Undo: "releases what is still held", Operation: act.Operation{ID: "20261121-031502-hold-4711", Time: noon, Who: "web:anna/zmailer", Verb: "hold", Selector: `channel "smtp" and host "mx1.shop.example" and older 1h`, Reason: "asked Joe, who mends it until Monday", Until: "2h", Messages: 1200}}
	undone := o
	undone.ID, undone.Undone = "20261121-031402-remove-4711", "2026-11-21 03:20:00 by web:anna"
	return []Order{o, undone}, nil
}

func (s *busy) Order(ctx context.Context, id postoffice.OperationID) (*Order, error) {
	list, _ := s.Orders(ctx, 1)
	list[0].IDs = []string{s.messages[0].ID, s.messages[1].ID}
	return &list[0], nil
}

// Pages are looked at in a browser: nothing that their policy forbids or that a script
// could have run, on wide screens, on a telephone's and in the dark; what makes them hard to
// read is found by testdata/look.js. SCREENSHOTS names a directory to keep the pictures in.
func TestPagesCanBeReadByEverybody(t *testing.T) {
	b, err := browser.Start()
	if errors.Is(err, browser.ErrMissing) {
		t.Skip("the pages need Debian's chromium to be drawn")
	}
	assert.Must(t, err)
	t.Cleanup(func() { b.Close() })
	look, err := os.ReadFile("testdata/look.js")
	assert.Must(t, err)
	full := newBusy(time.Now(), 10000)
	id := full.messages[0].ID
	act := &noted{text: "would change 1200 recipients of 1000 messages; nothing was changed"}
	busyPage := gallery(t, full, Config{Orders: act, Login: func(context.Context, string, string, string) (string, error) { return "", ErrRefused }})
	for name, c := range map[string]struct {
		page *visitor
		path string
		out  bool // without a login
	}{
		"login": {page: busyPage, path: "/login", out: true}, "overview": {page: busyPage, path: "/?span=6h"}, "queue-10000": {page: busyPage, path: "/queue?host=*"}, "message": {page: busyPage, path: "/message/" + id},
		"threads": {page: busyPage, path: "/threads"}, "thread": {page: busyPage, path: "/thread?channel=smtp&host=mx1.shop.example"}, "orders": {page: busyPage, path: "/orders"},
		"suspensions": {page: busyPage, path: "/suspensions?channel=smtp&host=mx1.shop.example"}, "search": {page: busyPage, path: "/search?word=user1@customers.example"},
		"empty-search": {page: visitorTo(t, Config{Source: &busy{}}), path: "/search?word=user1@customers.example"}, "empty-suspensions": {page: visitorTo(t, Config{Source: &busy{}, Orders: act}), path: "/suspensions"},
		"search-form": {page: busyPage, path: "/search"}, "bad-search": {page: busyPage, path: "/search?word=x@y.example&since=never"},
		"hostile-search": {page: visitorTo(t, Config{Source: hostile(), Orders: act}), path: "/search?word=" + url.QueryEscape(nasty)}, "hostile-suspensions": {page: visitorTo(t, Config{Source: hostile(), Orders: act}), path: "/suspensions?host=" + url.QueryEscape(nasty)},
		"order": {page: busyPage, path: "/order/20261121-031502-hold-4711"}, "not-found": {page: busyPage, path: "/message/S1A1"}, "bad-filter": {page: busyPage, path: "/queue?where=host+("},
		"empty-overview": {page: visitorTo(t, Config{Source: &busy{}}), path: "/"}, "empty-queue": {page: visitorTo(t, Config{Source: &busy{}}), path: "/queue"},
		"hostile-message": {page: visitorTo(t, Config{Source: hostile(), Orders: act}), path: "/message/" + someID}, "hostile-queue": {page: visitorTo(t, Config{Source: hostile(), Orders: act}), path: "/queue"},
		"hostile-overview": {page: visitorTo(t, Config{Source: hostile(), Orders: act}), path: "/"},
	} {
		assert.Must(t, b.Forget())
		if !c.out {
			c.page.enter()
			at, _ := url.Parse(c.page.server.URL)
			for _, k := range c.page.Jar.Cookies(at) {
				assert.Must(t, b.Cookie(c.page.server.URL, k.Name, k.Value))
			}
		}
		for _, screen := range []struct {
			name   string
			width  int
			height int
			dark   bool
		}{{"wide", 1280, 900, false}, {"narrow", 390, 800, false}, {"dark", 1280, 900, true}} {
			assert.Must(t, b.Screen(screen.width, screen.height, screen.dark))
			said, err := b.Load(t.Context(), c.page.server.URL+c.path)
			assert.Must(t, err)
			for _, text := range said {
				if !strings.Contains(text, "404") && !strings.Contains(text, "400") || strings.Contains(text, "Refused") {
					t.Errorf("%s: the browser says %s", name, text)
				}
			}
			var wrong []string
			assert.Must(t, b.Ask(string(look), &wrong))
			for _, text := range wrong {
				t.Errorf("%s, %s: %s", name, screen.name, text)
			}
			if dir := os.Getenv("SCREENSHOTS"); dir != "" {
				assert.NoError(t, b.Shot(filepath.Join(dir, name+"-"+screen.name+".png")))
			}
		}
	}
}
