package tasmtp

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/agent"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/wire/taproto"
)

var (
	hopRounds = flag.Int("rounds", envInt("HOP_ROUNDS", 300), "rounds of TestDel1RandomNextHop; HOP_ROUNDS sets it, too")
	hopSeed   = flag.Int64("seed", int64(envInt("HOP_SEED", 0)), "its seed, 0: a new one; HOP_SEED sets it, too")
)

func envInt(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return usual
}

// Del1: whatever a next hop answers, and whenever, what we record is what became of the
// message. A recipient has at most one copy that no doubt is on record for; one that is
// recorded as delivered was taken; none gets the content of another message.
func TestDel1RandomNextHop(t *testing.T) {
	seed := *hopSeed
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("seed %d; repeat with -seed or HOP_SEED", seed)
	spool := NewSpool(t)
	owner, err := spool.PostOffice.Owners.Take("test")
	assert.Must(t, err)
	defer func() {
		assert.NoError(t, owner.Release())
	}()
	a := &agent.Agent{PostOffice: spool.PostOffice, Owner: owner, Name: "smtp"}
	rounds, failed := *hopRounds, 0
	if testing.Short() {
		rounds = min(rounds, 50)
	}
	sum := map[string]int{}
	for i := range rounds {
		r := &hopRound{Spool: spool, agent: a, hop: newNextHop(rand.New(rand.NewPCG(uint64(seed), uint64(i))))}
		synctest.Test(t, func(t *testing.T) {
			r.t = t
			r.run(sum)
		})
		if len(r.wrong) == 0 {
			continue
		}
		if failed++; failed <= 3 {
			t.Errorf("seed %d, round %d:\n%s\n%s", seed, i, strings.Join(r.wrong, "\n"), strings.Join(r.hop.log, "\n"))
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d rounds went wrong", failed, rounds)
	}
	t.Logf("%d rounds: %v", rounds, sum)
	if rounds >= 100 && (sum["delivered"] == 0 || sum["failed"] == 0 || sum["deferred"] == 0 || sum["in doubt"] == 0) {
		t.Errorf("an outcome never came: %v", sum)
	}
}

// hopRound is some messages that are delivered to one next hop.
type hopRound struct {
	*Spool
	t     *testing.T
	agent *agent.Agent
	hop   *nextHop
	relay *Relay

	mu    sync.Mutex
	said  map[string]*account
	wrong []string
}

// account is what was recorded of one recipient.
type account struct{ delivered, failed, deferred, doubts int }

func (r *hopRound) run(sum map[string]int) {
	rng := r.hop.rng // until the first connection
	cfg := Config{Hostname: "here.test", Resolver: "127.0.0.1:1", Limits: Limits{Slots: 4, Connections: 1 + rng.IntN(3), Idle: time.Minute}}
	var err error
	if r.relay, err = NewRelay(cfg); err != nil {
		r.t.Fatal(err)
	}
	r.relay.dialWith = func(*net.Dialer, context.Context, string, string) (net.Conn, error) { return r.hop.start(), nil }
	r.said = map[string]*account{}
	channel, host := "smtp", "[127.0.0.1]"
	if r.hop.lmtp {
		channel = "lmtp"
	}
	var names []string
	for i := range 1 + rng.IntN(4) {
		names = append(names, r.message(rng, i, channel, host))
	}
	waits := make([]time.Duration, 3*len(names))
	for i := range waits {
		waits[i] = []time.Duration{0, time.Millisecond, time.Second, 30 * time.Second, 2 * time.Minute}[rng.IntN(5)]
	}
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			for attempt := range 3 {
				<-time.After(waits[3*i+attempt])
				if r.attempt(name, host) {
					return
				}
			}
		})
	}
	all.Wait()
	r.relay.Close()
	r.hop.all.Wait()
	for _, name := range names {
		for _, dir := range []string{"queue", "transport"} {
			assert.NoError(r.t, os.Remove(filepath.Join(r.Dir, dir, name)))
		}
	}
	r.compare(sum)
}

// message queues a message whose sender and recipients bear its number.
func (r *hopRound) message(rng *rand.Rand, i int, channel, host string) string {
	m := Message{Sender: fmt.Sprintf("m%d@here.test", i), Header: fmt.Sprintf("Subject: %d\n", i), Stored: "\n"}
	for range 1 + rng.IntN(4) {
		m.Stored += []string{".\n", "..dots\n", "a line\n", "MAIL FROM:<x@y>\n", fmt.Sprintf("of message %d\n", i)}[rng.IntN(5)]
	}
	if rng.IntN(20) == 0 {
		m.Stored += strings.Repeat("a large message has many lines\n", rng.IntN(9000))
	}
	var to []string
	for j := range 1 + rng.IntN(4) {
		to = append(to, fmt.Sprintf("m%d.%d@there.test", i, j))
	}
	m.Rcpts = Rcpts(channel, host, to...)
	r.hop.contents[m.Sender] = strings.ReplaceAll(m.Header+m.Stored, "\n", "\r\n")
	return r.Queue(m)
}

// attempt delivers a message and reports whether nothing of it is left.
func (r *hopRound) attempt(name, host string) (done bool) {
	offsets := map[int64]string{}
	for _, g := range r.Spec(name).Groups {
		for _, rcpt := range g.Recipients {
			offsets[rcpt.Offset] = rcpt.Address
		}
	}
	done = true
	lines := r.agent.Do(context.Background(), taproto.Job{Name: name, Host: host}, r.relay)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range lines {
		if l.Kind != taproto.LineAnswer {
			r.wrong = append(r.wrong, fmt.Sprintf("%s: %+v in place of an answer", name, l))
			continue
		}
		rcpt := offsets[l.Answer.Offset]
		if r.said[rcpt] == nil {
			r.said[rcpt] = &account{}
		}
		a := r.said[rcpt]
		r.hop.mu.Lock()
		r.hop.log = append(r.hop.log, fmt.Sprintf("%s recorded: %s %s %s", time.Now().Format("15:04:05"), rcpt, l.Answer.Word, l.Answer.Text))
		r.hop.mu.Unlock()
		switch l.Answer.Word {
		case taproto.OK, taproto.OK2, taproto.OK3:
			a.delivered++
		case taproto.Error, taproto.Error2:
			a.failed++
		default:
			done = false
			a.deferred++
			r.Defer(name, &l.Answer)
			if strings.Contains(l.Answer.Text, "in doubt") {
				a.doubts++
			}
		}
	}
	return done
}

// compare holds what the hop took against what was recorded.
func (r *hopRound) compare(sum map[string]int) {
	for _, f := range r.hop.foreign {
		r.wrong = append(r.wrong, "content of another message: "+f)
	}
	for rcpt, a := range r.said {
		taken := r.hop.taken[rcpt]
		sum["delivered"] += a.delivered
		sum["failed"] += a.failed
		sum["deferred"] += a.deferred
		sum["in doubt"] += a.doubts
		sum["copies"] += taken
		switch {
		case a.delivered > 1 || a.delivered+a.failed > 1:
			r.wrong = append(r.wrong, fmt.Sprintf("%s: decided more than once: %+v", rcpt, *a))
		case taken < a.delivered:
			r.wrong = append(r.wrong, fmt.Sprintf("%s: recorded as delivered, and no copy was taken", rcpt))
		case taken > a.delivered+a.doubts:
			r.wrong = append(r.wrong, fmt.Sprintf("%s: %d copies, of which %d are on record: %+v", rcpt, taken, a.delivered+a.doubts, *a))
		}
	}
	for rcpt := range r.hop.taken {
		if r.said[rcpt] == nil {
			r.wrong = append(r.wrong, rcpt+": taken, and never recorded")
		}
	}
}
