package main

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"zmailer/test/peer"
)

// figure is one thing that a scenario measures.
type figure struct {
	Key, Title, Unit string
	More             bool // is better
	Plot             bool
}

// values are what one run of one system gave, by the keys of figures; a growth has several
// of each.
type values map[string][]float64

// scenario is one way to load a system.
type scenario struct {
	name, title string
	what        string // in words
	figures     []figure
	once        bool // it repeats by itself
	run         func(o options, s system) (values, error)
}

func scenarios() []scenario {
	return []scenario{
		{name: "rate", title: "Rate", what: "%[1]d messages of 4 kB on %[2]d connections, one message on each", run: rate, figures: []figure{
			{"delivered", "delivered", "/s", true, true}, {"accepted", "accepted", "/s", true, false},
			{"cpu", "CPU per 1,000 messages", "s", false, true}, {"p50", "250 to arrival, p50", "ms", false, false}, {"p99", "the same, p99", "ms", false, false},
			{"fsyncs", "fsyncs per message", "", false, false}, {"written", "written per message", "kB", false, false},
			{"peak", "largest process", "MB", false, false}, {"driver", "CPU of generator and sink per 1,000 messages", "s", false, false}}},
		{name: "latency", title: "Latency", what: "%[3]d messages of 4 kB, each when the last has arrived; from the 250 to the sink's final dot", run: latency, figures: []figure{
			{"p50", "p50", "ms", false, true}, {"p99", "p99", "ms", false, true}}},
		{name: "fanout", title: "Fan-out to one host", what: "one message to %[4]d recipients at one host, after a first message to one", run: fanOne, figures: []figure{
			{"took", "MAIL to the last recipient's arrival", "s", false, true}, {"after", "250 to the last recipient's arrival", "s", false, true}}},
		{name: "hosts", title: "Fan-out to many hosts", what: "one message to %[5]d recipients at as many hosts, after a first message to one", run: fanMany, figures: []figure{
			{"took", "MAIL to the last recipient's arrival", "s", false, true}, {"after", "250 to the last recipient's arrival", "s", false, true}}},
		{name: "large", title: "Large messages", what: "20 messages of %[6]d MB, four at once", run: large, figures: []figure{
			{"rate", "delivered", "MB/s", true, true}, {"peak", "largest process", "MB", false, true}}},
		{name: "backlog", title: "Backlog", what: "%[7]d messages to a host that refuses connections; then it is back, and all is tried again by command", run: backlog, figures: []figure{
			{"private", "private memory of all processes", "MB", false, true}, {"each", "memory per message beyond that of none", "bytes", false, false},
			{"peak", "largest process", "MB", false, false}, {"disk", "disk per message", "kB", false, false},
			{"accepted", "accepted while they fail", "/s", true, false}, {"drain", "drain", "/s", true, true}}},
		{name: "growth", title: "Growth", what: "delivered/s of bursts as in Rate while others wait for a dead host", once: true, run: growth, figures: []figure{
			{"at0", "none waits", "/s", true, true}, {"at1", "%[8]d wait", "/s", true, true}, {"at2", "%[9]d wait", "/s", true, true}}},
	}
}

// sizes returns the numbers of the scenarios, as in their texts.
func (o options) sizes() []any {
	return []any{o.messages, o.connections, o.scaled(300), o.scaled(5000), o.scaled(1000), o.scaled(20), o.scaled(20000), o.scaled(10000), o.scaled(100000)}
}

func (o options) scaled(n int) int { return max(1, int(float64(n)*o.scale)) }

// many is so many messages, or the part of them that a slow system gets.
func (o options) many(n int) int { return max(1, int(float64(n)*o.share)) }

func single(v float64) []float64 { return []float64{v} }

func ms(d time.Duration) []float64 { return single(d.Seconds() * 1000) }

func mb(bytes int64) []float64 { return single(float64(bytes) / (1 << 20)) }

func rate(o options, s system) (values, error) {
	w, err := open(o, s, nil)
	if err != nil {
		return nil, err
	}
	messages := o.many(o.messages)
	t, err := w.burst(messages, o.connections, o.size)
	u, err := w.close(err)
	if err != nil {
		return nil, err
	}
	n := float64(messages)
	return values{
		"delivered": single(t.delivered), "accepted": single(t.accepted), "cpu": single(u.cpu.Seconds() * 1000 / n),
		"p50": ms(part(t.took, 50)), "p99": ms(part(t.took, 99)), "written": single(float64(u.written) / 1024 / n),
		"peak": mb(u.peak), "driver": single(t.driver.Seconds() * 1000 / n),
	}, nil
}

// submission is rate for messages that come by sendmail.
func submission(o options, s system) (values, error) {
	w, err := open(o, s, nil)
	if err != nil {
		return nil, err
	}
	t, err := w.submit(o.messages, o.connections, o.size)
	u, err := w.close(err)
	if err != nil {
		return nil, err
	}
	n := float64(o.messages)
	return values{
		"delivered": single(t.delivered), "accepted": single(t.accepted), "cpu": single(u.cpu.Seconds() * 1000 / n),
		"p50": ms(part(t.took, 50)), "p99": ms(part(t.took, 99)), "written": single(float64(u.written) / 1024 / n),
		"peak": mb(u.peak), "driver": single(t.driver.Seconds() * 1000 / n),
	}, nil
}

func latency(o options, s system) (values, error) {
	w, err := open(o, s, nil)
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for range max(20, o.many(o.scaled(300))) {
		var t traffic
		if t, err = w.burst(1, 1, o.size); err != nil {
			break
		}
		took = append(took, t.took[0])
	}
	if _, err = w.close(err); err != nil {
		return nil, err
	}
	slices.Sort(took)
	return values{"p50": ms(part(took, 50)), "p99": ms(part(took, 99))}, nil
}

func fanOne(o options, s system) (values, error) { return fan(o, s, o.scaled(5000), nil) }

// fanMany has a sink for each of many hosts, at an address of its own.
func fanMany(o options, s system) (values, error) {
	hosts := o.scaled(1000)
	return fan(o, s, hosts, func(w *world) (map[string]string, func(), error) {
		var sinks []*peer.Sink
		shut := func() {
			for _, s := range sinks {
				s.Close()
			}
		}
		routes := map[string]string{}
		for i := range hosts {
			sink := &peer.Sink{Discard: true, OnMessage: w.take, Listen: fmt.Sprintf("127.10.%d.%d:0", i/250, i%250+1)}
			if err := sink.Start(); err != nil {
				shut()
				return nil, nil, err
			}
			sinks = append(sinks, sink)
			routes[fmt.Sprintf("h%d.example", i)] = sink.RouteHost()
		}
		return routes, shut, nil
	})
}

// fan sends one message to n recipients; hosts gives each of them a host.
func fan(o options, s system, n int, hosts func(w *world) (map[string]string, func(), error)) (values, error) {
	w := &world{}
	var routes map[string]string
	domain := func(int) string { return "sink.example" }
	if hosts != nil {
		found, shut, err := hosts(w)
		if err != nil {
			return nil, err
		}
		defer shut()
		routes = found
		domain = func(i int) string { return fmt.Sprintf("h%d.example", i) }
	}
	if err := w.open(o, s, routes); err != nil {
		return nil, err
	}
	// What a life's first message costs, starting an agent for one, is not this scenario's.
	if _, err := w.burst(1, 1, o.size); err != nil {
		_, err = w.close(err)
		return nil, err
	}
	w.settle(5 * time.Second)
	w.expect(n)
	src := w.source(1, 1, o.size, "")
	src.ToAll = func(int) []string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("n%d@%s", i, domain(i)))
		}
		return list
	}
	var accepted, last time.Time
	src.OnAccepted = func(_ int, _ string, at time.Time) { accepted = at }
	begin := time.Now()
	err := src.Run(context.Background())
	if err == nil {
		last, err = w.await(2 * time.Minute)
	}
	if _, err = w.close(err); err != nil {
		return nil, err
	}
	return values{"took": single(last.Sub(begin).Seconds()), "after": single(max(0, last.Sub(accepted).Seconds()))}, nil
}

func large(o options, s system) (values, error) {
	w, err := open(o, s, nil)
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	looked := make(chan struct{})
	go func() { // an agent of others lives for a message alone
		defer close(looked)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-over:
				tick.Stop()
				return
			case <-tick.C:
				w.look()
			}
		}
	}()
	size := o.scaled(20) << 20
	t, err := w.burst(20, 4, size)
	close(over)
	<-looked
	u, err := w.close(err)
	if err != nil {
		return nil, err
	}
	return values{"rate": single(t.delivered * float64(size) / (1 << 20)), "peak": mb(u.peak)}, nil
}

// plant has n messages wait for the dead host, and waits until each was tried.
func (w *world) plant(n int) (accepted float64, err error) {
	src := w.source(n, w.connections, w.size, "dead.example")
	begin := time.Now()
	err = src.Run(context.Background())
	accepted = float64(n) / time.Since(begin).Seconds()
	w.settle(2 * time.Minute)
	return accepted, err
}

func backlog(o options, s system) (values, error) {
	n := o.many(o.scaled(20000))
	w, err := open(o, s, nil)
	if err != nil {
		return nil, err
	}
	w.settle(10 * time.Second)
	emptyMemory, emptyDisk := w.private(), disk(w.dir)
	accepted, err := w.plant(n)
	memory, used := w.private(), disk(w.dir)-emptyDisk
	back := &peer.Sink{Discard: true, OnMessage: w.take, Listen: w.dead}
	if err == nil {
		err = back.Start()
	}
	v := values{"private": mb(memory), "each": single(float64(memory-emptyMemory) / float64(n)), "disk": single(float64(used) / 1024 / float64(n)),
		"accepted": single(accepted)}
	if err == nil {
		defer back.Close()
		drain, derr := w.drain(n)
		if v["drain"] = single(drain); derr != nil && s.name() != "zmailer" {
			fmt.Printf("  %s does not drain: %v\n", s.name(), derr)
			delete(v, "drain")
			derr = nil
		}
		err = derr
	}
	u, err := w.close(err)
	v["peak"] = mb(u.peak)
	return v, err
}

// drain tries all that waits and gives how many arrived a second.
func (w *world) drain(n int) (float64, error) {
	w.expect(n)
	begin := time.Now()
	flush := w.system.flush()
	if err := w.begin(flush); err != nil {
		return 0, err
	}
	last, err := w.await(2 * time.Minute)
	_ = flush.Process.Kill() // it may have ended
	_ = flush.Wait()         // what matters has arrived or not
	return float64(n) / last.Sub(begin).Seconds(), err
}

// disk returns what the files below a directory take.
func disk(dir string) (bytes int64) {
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == filepath.Join(dir, "log") {
			return nil // it was removed meanwhile
		}
		var st syscall.Stat_t
		if syscall.Lstat(path, &st) == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes
}

func growth(o options, s system) (values, error) {
	w, err := open(o, s, nil)
	if err != nil {
		return nil, err
	}
	// The first burst of a life is slower than all others: it is not counted.
	_, err = w.burst(o.many(o.messages), o.connections, o.size)
	v, waiting := values{}, 0
	for i, n := range []int{0, o.many(o.scaled(10000)), o.many(o.scaled(100000))} {
		if err == nil && n > waiting {
			_, err = w.plant(n - waiting)
			waiting = n
		}
		key := fmt.Sprintf("at%d", i)
		for n := 0; n < o.runs && err == nil; n++ {
			var t traffic
			if t, err = w.burst(o.many(o.messages), o.connections, o.size); err == nil {
				v[key] = append(v[key], t.delivered)
			}
		}
	}
	if _, err = w.close(err); err != nil {
		return nil, err
	}
	return v, nil
}
