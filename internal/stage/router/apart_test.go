package router

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
	"zmailer/internal/wire/socketmap"
)

var seed = flag.Uint64("seed", 0, "of tests that use random numbers; 0: another one each time")

// random returns a generator whose seed a failing test shows.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", s)
	return rand.New(rand.NewPCG(s, s))
}

// slowServer is a real socketmap server. Each answer waits for what before does.
type slowServer struct {
	source string
	before func(key string)
	answer func(key string) socketmap.Reply

	mu     sync.Mutex
	change *sync.Cond
	now    int // under way
	most   int // that were at the same time
	asked  int
}

func newSlowServer(t *testing.T, before func(key string), answer func(key string) socketmap.Reply) *slowServer {
	t.Helper()
	s := &slowServer{before: before, answer: answer}
	s.change = sync.NewCond(&s.mu)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	assert.Must(t, err)
	t.Cleanup(func() { l.Close() })
	s.source = "socket:unix:" + path
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = socketmap.Serve(c, c, func(_, key string) socketmap.Reply { return s.serve(key) })
			}()
		}
	}()
	return s
}

func (s *slowServer) serve(key string) socketmap.Reply {
	s.mu.Lock()
	s.asked++
	s.now++
	s.most = max(s.most, s.now)
	s.change.Broadcast()
	s.mu.Unlock()
	s.before(key)
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
	return s.answer(key)
}

// await waits until it was asked more often than before.
func (s *slowServer) await(before int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.asked <= before {
		s.change.Wait()
	}
}

func (s *slowServer) counts() (asked, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.most
}

// aliases has a router ask the server for aliases, however long that takes.
func (s *slowServer) aliases(c *Config) {
	c.Poll = time.Hour
	c.Rules.Sources = map[text.Kind][]string{text.Aliases: {s.source}}
	c.Rules.Source = table.Options{Timeout: time.Hour}
}

// elsewhere returns the answer that key's mail goes to another host.
func elsewhere(key string) socketmap.Reply {
	return socketmap.Reply{Status: socketmap.OK, Text: key + "@elsewhere.example"}
}

// toMany returns a message to name0, name1, … in our domain.
func toMany(name string, n int) string {
	var b strings.Builder
	b.WriteString("from <q@example.net>\n")
	for i := range n {
		fmt.Fprintf(&b, "to <%s%d@example.org>\n", name, i)
	}
	b.WriteString("env-end\nSubject: x\n\nx\n")
	return b.String()
}

// Del4
func TestDel4OtherMailIsRoutedWhileLookupsStandStill(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	s := newSlowServer(t, func(string) { <-goOn }, elsewhere)
	o := newOffice(t, nil, s.aliases)
	o.start(t, o.r)
	const slow, others = slowSlots + 5, 50
	for i := range slow {
		o.submit(toMany(fmt.Sprintf("m%d-", i), 20))
	}
	s.await(0)
	for i := range others {
		o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
	}
	o.log.AwaitCount(t, others, "msg=routed", "rcpts=1 ")
	o.logged(0, "msg=routed", "rcpts=20 ")
	// There is no place for some of them.
	o.log.AwaitCount(t, 5, "msg=given-back")
	o.submit(plain("late@example.net"))
	o.log.AwaitCount(t, others+1, "msg=routed", "rcpts=1 ")
	close(goOn)
	o.log.AwaitCount(t, slow, "msg=routed", "rcpts=20 ")
	o.expect("in the end", map[string]int{"queue": slow + others + 1, "transport": slow + others + 1})
	o.logged(0, "level=ERROR")
	o.logged(0, "level=WARN")
}

// rounds is a clock of a server: lookups of m0, m1, … are answered together, as many as the
// router asks for before it has an answer. Each round is the time that one lookup takes.
type rounds struct {
	size int // lookups that the router makes at the same time
	keys int

	mu       sync.Mutex
	n        int          // rounds
	here     map[int]bool // under way
	answered map[int]bool
	lowest   int // that is not answered
	ready    chan struct{}
}

func newRounds(size, keys int) *rounds {
	return &rounds{size: size, keys: keys, here: map[int]bool{}, answered: map[int]bool{}, ready: make(chan struct{})}
}

func (r *rounds) wait(key string) {
	i, err := strconv.Atoi(strings.TrimPrefix(key, "m"))
	if err != nil {
		panic(err)
	}
	r.mu.Lock()
	ready := r.ready
	r.here[i] = true
	if len(r.here) >= r.size || r.isAll() {
		for i := range r.here {
			r.answered[i] = true
		}
		for r.answered[r.lowest] {
			r.lowest++
		}
		clear(r.here)
		r.n++
		r.ready = make(chan struct{})
		close(ready)
	}
	r.mu.Unlock()
	<-ready
}

// isAll reports whether the router asks nothing more before it has an answer: it waits for
// that of the lowest key, and looks no further ahead than its window.
func (r *rounds) isAll() bool {
	for i := r.lowest; i < min(r.lowest+table.Window, r.keys); i++ {
		if !r.answered[i] && !r.here[i] {
			return false
		}
	}
	return true
}

// Del4: at 20 ms a lookup 10,000 recipients take 500 rounds of 20 ms at most, 10 s.
func TestDel4RecipientsAreLookedUpInParallel(t *testing.T) {
	t.Parallel()
	const size = table.DefaultParallel * 3 / 4
	members := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "q@m%d\n", i)
		}
		return b.String()
	}
	envelope := func(n int) string {
		return "from <q@example.net>\nto <" + strings.ReplaceAll(strings.TrimSpace(members(n)), "\n", ">\nto <") + ">\nenv-end\nSubject: x\n\nx\n"
	}
	for name, tt := range map[string]struct {
		message string
		list    string
		n       int
	}{
		"an envelope": {envelope(10_000), "", 10_000},
		"a list":      {plain("list@mx.example.org"), members(5000), 5000},
		"a long list": {plain("list@mx.example.org"), members(10_000), 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRounds(size, tt.n)
			s := newSlowServer(t, r.wait, func(string) socketmap.Reply { return socketmap.Reply{Status: socketmap.NotFound} })
			o := newOffice(t, nil)
			if tt.list != "" {
				assert.Must(t, os.MkdirAll(filepath.Join(o.conf, "lists"), 0o755))
				o.table("lists/list", tt.list)
			}
			o.r = o.router(func(c *Config) {
				c.Rules.Sources = map[text.Kind][]string{text.LocalNames: {s.source}}
				c.Rules.Source = table.Options{Timeout: time.Hour}
			})
			m := o.one(tt.message)
			got := m.recipients()
			for i := range tt.n {
				want := fmt.Sprintf("smtp m%d q@m%d", i, i)
				// The first ones are sorted by host.
				if i > maxSorted && got[i] != want {
					t.Fatalf("recipient %d: got %s, want %s", i, got[i], want)
				}
			}
			assert.Equal(t, len(got), tt.n, "recipients")
			asked, most := s.counts()
			if r.n > tt.n/20 || most > table.DefaultParallel {
				t.Errorf("%d lookups in %d rounds, %d at the same time; want %d rounds, and %d at the same time, at most", asked, r.n, most, tt.n/20, table.DefaultParallel)
			}
		})
	}
}

// Del4: a stop gives the message back, and that is no try; the next router has it.
func TestDel4StopGivesBackWhatWaitsForALookup(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	s := newSlowServer(t, func(string) { <-goOn }, elsewhere)
	o := newOffice(t, nil)
	a := o.submit(toMany("m", 20))
	for range postoffice.DefaultTries + 1 {
		before, _ := s.counts()
		stop := o.start(t, o.router(s.aliases))
		s.await(before)
		stopped := make(chan struct{})
		go func() {
			stop()
			close(stopped)
		}()
		select {
		case <-stopped:
		case <-time.After(20 * time.Second):
			t.Fatal("the router waits for the table")
		}
		if got, want := o.names(postoffice.Router), []string{fmt.Sprint(a.ID.Ino)}; !slices.Equal(got, want) {
			t.Fatalf("router/: got %q, want %q", got, want)
		}
	}
	o.logged(postoffice.DefaultTries+1, "msg=given-back", "id="+a.ID.String())
	o.logged(0, "level=ERROR")
	close(goOn)
	o.start(t, o.router(s.aliases))
	o.log.Await(t, "msg=routed", "id="+a.ID.String())
	o.expect("in the end", map[string]int{"queue": 1, "transport": 1})
}

// Del4: a message that has crashed routers has all others wait, but not for its lookups.
func TestDel4MessageThatHasEndedRoutersWaitsForLookupsBesideOthers(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	s := newSlowServer(t, func(string) { <-goOn }, elsewhere)
	o := newOffice(t, nil, s.aliases)
	hints := newScripted()
	d := newDispatcher(o.r, hints)
	bad := o.submit(toMany("m", 20))
	d.suspects.add(job{name: filepath.Base(bad.Name), since: time.Now()}, d.now())
	d.wake = alarm{}
	o.started(t, d)
	s.await(0)
	for i := range 10 {
		a := o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
		hints.c <- watch.Hint{Dir: "router", Name: filepath.Base(a.Name)}
	}
	o.log.AwaitCount(t, 10, "msg=routed", "rcpts=1 ")
	close(goOn)
	o.log.Await(t, "msg=routed", "rcpts=20 ")
}

// started has a dispatcher run until the test ends.
func (o *office) started(t *testing.T, d *dispatcher) {
	ended := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(ended)
		d.run(ctx)
	}()
	t.Cleanup(func() { <-ended })
}

var loopText = regexp.MustCompile(`^error loop:\S+ `)

// Del4: whatever the order of the answers, recipients come as if each was asked for alone.
func TestDel4OrderAndDuplicatesAreThoseOfOneAfterTheOther(t *testing.T) {
	t.Parallel()
	rnd := random(t)
	aliases := map[string]string{}
	name := func() string { return fmt.Sprintf("n%d", rnd.IntN(60)) }
	for i := range 60 {
		var values []string
		for range rnd.IntN(4) {
			switch rnd.IntN(3) {
			case 0:
				values = append(values, name()) // may lead back
			default:
				values = append(values, name()+"@elsewhere.example")
			}
		}
		if len(values) > 0 {
			aliases[fmt.Sprintf("n%d", i)] = strings.Join(values, ", ")
		}
	}
	var message, file strings.Builder
	message.WriteString("from <q@example.net>\n")
	for range 300 {
		fmt.Fprintf(&message, "to <%s@example.org>\n", name())
	}
	message.WriteString("env-end\nSubject: x\n\nx\n")
	for key, text := range aliases {
		file.WriteString(key + ": " + text + "\n")
	}
	var mu sync.Mutex
	s := newSlowServer(t, func(string) {
		mu.Lock()
		turns := rnd.IntN(1000)
		mu.Unlock()
		for range turns {
			runtime.Gosched() // others are answered before
		}
	}, func(key string) socketmap.Reply {
		if text, ok := aliases[key]; ok {
			return socketmap.Reply{Status: socketmap.OK, Text: text}
		}
		return socketmap.Reply{Status: socketmap.NotFound}
	})
	plainOne := newOffice(t, map[string]string{"aliases": file.String()}).one(message.String())
	asked := newOffice(t, nil, s.aliases).one(message.String())
	recipients := func(m *routed) []string {
		list := m.recipients()
		for i, r := range list {
			// The error of a loop names the table.
			list[i] = loopText.ReplaceAllString(r, "error loop ")
		}
		return list
	}
	if got, want := recipients(&asked), recipients(&plainOne); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
