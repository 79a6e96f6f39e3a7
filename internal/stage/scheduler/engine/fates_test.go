package engine

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

var (
	fateCount = flag.Int("fates", 5000, "how many recipients random transport agents get in TestDur1EveryRecipientHasOneEnd")
	fateSeed  = flag.Uint64("fates-seed", 0, "of what they do; 0: a random one")
)

// fate is what the model knows of one recipient. The model sees what transport agents and
// the operator do, and no file but the reports in router/ and what is in removed/.
type fate struct {
	sender string // "" is the null sender
	notify string
	// end is what an agent or the operator has made of it last; "": nothing final, so that
	// the scheduler has to give it up.
	end string
}

func (f *fate) wantsReport() bool {
	return f.sender != "" && (f.notify == "" || strings.Contains(f.notify, "FAILURE"))
}

// fates is a scheduler's engine on a virtual clock, over real files, with agents that are
// played by the test, and the model.
type fates struct {
	*box
	e       *engine
	players []*played // in the order in which they were started
	rng     *rand.Rand
	of      map[string]*fate // by address, which is one recipient's alone
	names   []string         // messages
	hosts   int
	notary  [][]byte // NOTARY fields that agents of ZMailer have written
	lines   [][]byte // what they said
	log     *logLines
	trail   map[string][]string // what was done about an address, for a failure of the test
}

const fatesConf = `
PARAM global-report-interval = 5m
*/*
	interval=1m retries="1 2" expiry=9m maxthr=3 jitter=0 idlemax=1000h
smtp/*
	command="no-such-agent $channel"
`

func newFates(t *testing.T, rng *rand.Rand) *fates {
	t.Helper()
	dir := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "fates"); err == nil {
		// Memory: the file system's calls, without waiting for a disk.
		dir = shm
		t.Cleanup(func() { _ = os.RemoveAll(shm) })
	}
	f, err := durable.NewOS(dir)
	assert.Must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	w := &fates{box: boxOf(t, storetest.New(t, f, 0), fatesConf), rng: rng, of: map[string]*fate{}, hosts: 7, log: newLogLines(), trail: map[string][]string{}}
	w.e = newEngine(Config{Dir: dir, Conf: w.spool.Conf, Hostname: w.spool.Hostname, Postmaster: w.spool.Postmaster, Log: slog.New(w.log),
		MonitorEvery: 1000 * time.Hour, tuning: tuning{spawner: w, clocks: clocks{now: func() time.Time { return w.Now }, steady: func() time.Duration { return time.Duration(w.Now.UnixNano()) }}}}, w.PO)
	w.e.clock.tick()
	w.e.pool = newPool(w.e.intake.load)
	t.Cleanup(w.e.pool.close)
	w.e.suspender.begin()
	w.recordings()
	return w
}

// recordings reads what agents of a running ZMailer have written and said.
func (w *fates) recordings() {
	w.T.Helper()
	after, err := os.ReadFile("testdata/zmailer/05-fail-after")
	assert.Must(w.T, err)
	for line := range bytes.Lines(after) {
		if f := bytes.SplitN(line, []byte{'\t'}, 3); len(f) == 3 && line[0] == 'd' {
			w.notary = append(w.notary, append(append(f[1], '\t'), f[2]...))
		}
	}
	said, err := os.ReadFile("testdata/zmailer/smtp-1199.txt")
	assert.Must(w.T, err)
	for line := range bytes.Lines(said) {
		if text, ok := bytes.CutPrefix(line, []byte("TA->SCHED ")); ok {
			w.lines = append(w.lines, []byte(strings.NewReplacer(`\t`, "\t", `\n`, "\n", `\r`, "\r", `\1`, "\x01").Replace(strings.TrimSpace(string(text)))))
		}
	}
	if len(w.notary) == 0 || len(w.lines) == 0 {
		w.T.Fatal("no recordings")
	}
}

// accept queues a message and has the engine read it.
func (w *fates) accept() int {
	w.T.Helper()
	sender := fmt.Sprintf("s%d@far.example", len(w.names))
	if w.rng.IntN(8) == 0 {
		sender = "<>"
	}
	list := make([]storetest.Rcpt, 1+w.rng.IntN(5))
	for i := range list {
		address := fmt.Sprintf("r%d@h.example", len(w.of))
		fate := &fate{sender: strings.Trim(sender, "<>"), notify: []string{"", "", "", "NOTIFY=FAILURE,DELAY", "NOTIFY=SUCCESS,FAILURE", "NOTIFY=SUCCESS", "NOTIFY=NEVER"}[w.rng.IntN(7)]}
		w.of[address] = fate
		list[i] = storetest.Rcpt{Line: fmt.Sprintf("smtp h%d %s", w.rng.IntN(w.hosts), address), Notary: fate.notify}
	}
	name, err := storetest.QueueMessage(w.PO, sender, "body\n", list)
	assert.Must(w.T, err)
	w.names = append(w.names, name)
	w.e.intake.want(name)
	return len(list)
}

// turn lets the engine do what is to be done now, until only agents or the clock can go on.
func (w *fates) turn() {
	w.T.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		w.e.clock.tick()
		for _, fn := range w.e.box.take(nil) {
			fn()
		}
		w.e.turn()
		if !w.waits() {
			return
		}
		select {
		case <-w.e.box.wake:
		case <-deadline.C:
			w.T.Fatalf("the engine waits for the disk for too long: %d changes", len(w.e.changes.busy))
		}
	}
}

// waits reports whether the engine waits for the disk, or for a program that is not there.
func (w *fates) waits() bool {
	for _, o := range w.e.changes.busy {
		if o.running {
			return true
		}
	}
	w.e.box.mu.Lock()
	defer w.e.box.mu.Unlock()
	return len(w.e.intake.loading) > 0 || w.e.changes.finishing > 0 || len(w.e.box.list)+len(w.e.box.slow) > 0
}

// played is the process of an agent that the test plays.
type played struct {
	w      *fates
	a      *agents.Agent
	jobs   []taproto.Job
	idle   bool // #idle was written to it
	closed bool
	killed bool
}

// Start implements agents.Spawner.
func (w *fates) Start(_ agents.Launch, _, _ string, started func(agents.Process, error)) {
	w.e.post(func() { started(&played{w: w}, nil) })
}

func (p *played) Pid() int              { return 1 }
func (p *played) Window() int           { return 1 << 20 }
func (p *played) CloseInput()           { p.closed = true }
func (p *played) Unread() int           { return 0 }
func (p *played) Signal(syscall.Signal) { p.killed = true }

func (p *played) Listen(a *agents.Agent) {
	p.a = a
	p.w.players = append(p.w.players, p)
	text := strings.Repeat("#hungry\n", []int{1, 3}[p.w.rng.IntN(2)])
	p.w.e.post(func() { p.say(text) })
}

func (p *played) Write(lines []byte) error {
	r := taproto.NewReader(bytes.NewReader(lines))
	for {
		c, err := r.Command()
		if err != nil {
			return nil
		}
		if c.Kind == taproto.CommandIdle {
			p.idle = true
		} else {
			p.jobs = append(p.jobs, c.Job)
		}
	}
}

// say has an agent write text, by the same reader as a real one's.
func (p *played) say(text string) {
	r := taproto.NewReader(strings.NewReader(text))
	var list []taproto.Line
	for {
		l, err := r.Line()
		if err != nil {
			break
		}
		list = append(list, l)
	}
	p.a.Lines(list)
}

// play has every agent do what it has been given. It reports whether there was anything.
func (w *fates) play() bool {
	any := false
	for _, p := range slices.Clone(w.players) {
		if p.idle {
			p.idle = false
			p.say("#hungry\n")
		}
		lives := !p.killed
		for lives && len(p.jobs) > 0 {
			any = true
			lives = w.deliver(p, p.jobs[0])
			p.jobs = p.jobs[1:]
		}
		if !lives || p.closed && len(p.jobs) == 0 {
			w.players = slices.DeleteFunc(w.players, func(o *played) bool { return o == p })
			p.a.Ended("ended")
		}
	}
	return any
}

// dead is the number of an owner that does not live.
const dead = 424242

// deliver does one job in some way; false: the agent dies of it.
func (w *fates) deliver(p *played, j taproto.Job) (lives bool) {
	w.T.Helper()
	f, err := w.PO.Queue.Open(j.Name)
	if err != nil {
		p.say("#resync " + j.Name + "\n#hungry\n")
		return true
	}
	defer f.Close()
	raw, err := f.Read()
	assert.Must(w.T, err)
	spec, err := workspec.Parse(raw)
	assert.Must(w.T, err)
	if w.rng.IntN(10) == 0 { // babble, in ZMailer's words of other messages, too
		p.say(string(w.lines[w.rng.IntN(len(w.lines))]) + "\n\x00\xff no protocol\n#what\n1/2\t\tok3 no such delivery\n")
	}
	number, _ := spec.Number()
	var open []*workspec.Recipient
	orders := spec.Orders()
	for gi := range spec.Groups {
		for ri := range spec.Groups[gi].Recipients {
			if r := &spec.Groups[gi].Recipients[ri]; r.Tag == workspec.TagToDo && r.Host == j.Host && !orders.Waits(r, w.Now) {
				open = append(open, r)
			}
		}
	}
	if len(open) == 0 {
		p.say("#resync " + j.Name + "\n#hungry\n")
		return true
	}
	for _, r := range open {
		said, lives := w.one(f, spec, r)
		if said != "" {
			p.say(fmt.Sprintf("%d/%d\t%s\n", number, r.Offset, said))
		}
		if !lives {
			return false
		}
	}
	p.say("#hungry\n")
	return true
}

// one does something with one recipient, and gives the answer behind its number.
func (w *fates) one(f *postoffice.Spec, spec *workspec.Spec, r *workspec.Recipient) (said string, lives bool) {
	w.T.Helper()
	tag := func(t []byte) {
		assert.Must(w.T, f.SetTag(t, workspec.TagOffset(r.Offset)))
	}
	final := func(end string, t workspec.Tag) {
		tag(workspec.TagBytes(spec.Format, t))
		w.end(r.Address, end)
	}
	silent := func(s string) string {
		if w.rng.IntN(5) == 0 {
			return ""
		}
		return s
	}
	lives = w.rng.IntN(12) > 0
	p := w.rng.IntN(100)
	if strings.HasSuffix(r.Address, "7@h.example") {
		p = 84 + w.rng.IntN(16) // it never comes to an end by itself
	}
	switch {
	case p < 30:
		final("delivered", workspec.TagOK)
		return silent([]string{"\tok3 250 2.0.0 ok", "\tok2 250 2.0.0 ok", "\tok 250 2.0.0 ok"}[w.rng.IntN(3)]), lives
	case p < 33: // it says otherwise than it has done; the tag counts
		final("delivered", workspec.TagOK)
		return "\tdeferred 450 4.2.0 later", lives
	case p < 70:
		w.diagnose(f, spec, r)
		final("failed", workspec.TagFailed)
		return silent("\terror2 \r<<- RCPT\r->> 550 5.1.1 no such user"), lives
	case p < 73:
		w.diagnose(f, spec, r)
		final("failed", workspec.TagFailed)
		return "\tdeferred 450 4.2.0 later", lives
	case p < 80: // the scheduler writes tag and diagnostic
		w.end(r.Address, "failed")
		return "\terror 550 5.7.1 not wanted", true
	case p < 84: // dies between lock and end
		tag(workspec.LockBytes(dead))
		if w.rng.IntN(2) == 0 {
			w.diagnose(f, spec, r)
		}
		return "", false
	case p < 87:
		return "", lives
	case p < 90:
		return "\tdeferall connection refused", lives
	case p < 92:
		return "\tretryat +30 busy", lives
	default:
		return "x\x01delayed\x014.2.1\x01smtp; 450 later\x01\x01\tdeferred 450 4.2.1 later", lives
	}
}

// end notes what became of a recipient.
func (w *fates) end(address, end string) {
	w.of[address].end = end
	w.trail[address] = append(w.trail[address], end)
}

// diagnose appends a diagnostic that is right, or not.
func (w *fates) diagnose(f *postoffice.Spec, spec *workspec.Spec, r *workspec.Recipient) {
	w.T.Helper()
	offset, head, notary := r.Offset, spec.Groups[0].HeaderOffset, r.NotaryOffset
	text := notaryOf(r.Address) + "\t\r<<- RCPT\r->> 550 5.1.1 no such user\n"
	if w.rng.IntN(2) == 0 {
		text = strings.ReplaceAll(string(w.notary[w.rng.IntN(len(w.notary))]), "fail1@b.example.com", r.Address)
	}
	line := func(offset any) string {
		return fmt.Sprintf("d %v:%d:%d::%d\t%s", offset, head, notary, w.Now.Unix(), text)
	}
	out := ""
	switch w.rng.IntN(14) {
	case 0, 1, 2:
		out = line(offset)
	case 3, 4:
		if notary = -1; w.rng.IntN(2) == 0 {
			head = -1
		}
		out = line(offset)
	case 5:
		out = line(-1)
	case 6: // none
	case 7:
		out = line("999999999999999999")
	case 8:
		out = line("18446744073709551615")
	case 9: // that of another one
		out = line(spec.Groups[0].Recipients[w.rng.IntN(len(spec.Groups[0].Recipients))].Offset)
	case 10:
		out = line(offset + 1 + int64(w.rng.IntN(20)))
	case 11: // overlapping: two, and the first has lost its end
		out = line(offset)[:8+w.rng.IntN(20)] + line(offset)
	case 12:
		out = line(offset) + line(offset)
	case 13: // torn
		out = strings.TrimSuffix(line(offset), "\n")
		out = out[:w.rng.IntN(len(out))]
	}
	if out == "" {
		return
	}
	assert.Must(w.T, f.Append([]byte(out)))
	w.trail[r.Address] = append(w.trail[r.Address], strconv.Quote(out[:min(len(out), 60)]))
}

func notaryOf(address string) string {
	return address + "\x01failed\x015.1.1\x01smtp; 550 5.1.1 no such user\x01dns; h.example\x01smtp[7]"
}

// operate has the operator do something with a message that no agent has.
func (w *fates) operate() {
	w.T.Helper()
	name := w.names[w.rng.IntN(len(w.names))]
	info, err := w.PO.Queue.StatMessage(name)
	if err != nil {
		return
	}
	n, _ := postoffice.ParseName(name)
	if m := w.e.messages.get(n.Ino); m != nil {
		for _, p := range w.players {
			if slices.ContainsFunc(p.jobs, func(j taproto.Job) bool { return m.Named(j.Name) }) {
				return
			}
		}
	}
	q := operations.Request{PostOffice: w.PO, ID: postoffice.IDOf(info), Now: w.Now, Who: "a test", Reason: "because"}
	var res operations.Result
	end := ""
	switch w.rng.IntN(5) {
	case 0:
		res, err = operations.Remove(q, name)
		end = "removed"
	case 1:
		res, err = operations.Undo(q, name)
	case 2:
		q.Report = true
		res, err = operations.Expire(q, name)
		end = "failed"
	case 3, 4:
		q.Failed = true
		res, err = operations.Retry(q, name)
	}
	switch {
	case errors.Is(err, operations.ErrMoved), errors.Is(err, operations.ErrNothing):
	case err != nil:
		w.T.Fatal(err)
	}
	for _, address := range res.Changed {
		w.end(address, end)
	}
	w.e.intake.noted(name)
}

// run accepts so many recipients and goes on until all have their end.
func (w *fates) run(count int) {
	w.T.Helper()
	accepted := 0
	for idle := 0; accepted < count || w.e.messages.len() > 0 || w.waits(); {
		for i := 0; i < 40 && accepted < count; i++ {
			accepted += w.accept()
		}
		w.turn()
		w.turn()
		if w.rng.IntN(3) == 0 {
			w.operate()
			w.turn()
		}
		if w.play() {
			idle = 0
			continue
		}
		next := store.Earliest(store.Earliest(w.e.core.Next(), w.e.agents.Next()), w.e.placement.lockedAt)
		if w.Now = w.Now.Add(time.Second); next.After(w.Now) {
			w.Now = next
		}
		if idle++; idle > 100_000 {
			w.T.Fatalf("%d messages do not end", w.e.messages.len())
		}
	}
	w.turn()
}

var (
	reportTo   = regexp.MustCompile(`(?m)^to <(.*)>$`)
	reportPart = regexp.MustCompile(`(?m)^Final-Recipient: rfc822; (\S+)\nAction: (\S+)\n`)
)

// judge compares what the reports in router/ say with the model.
func (w *fates) judge() {
	w.T.Helper()
	told := map[string]int{}
	err := w.PO.Queue.ListMessages(func(name string) error {
		return fmt.Errorf("queue/%s is left", name)
	})
	err = errors.Join(err, w.PO.Queue.List(func(name string) error {
		return fmt.Errorf("transport/%s is left", name)
	}))
	assert.NoError(w.T, err)
	for _, report := range w.Reports() {
		to := reportTo.FindStringSubmatch(report)
		parts := reportPart.FindAllStringSubmatch(report, -1)
		if to == nil || len(parts) == 0 {
			w.T.Errorf("no report: %.300q", report)
			continue
		}
		for _, p := range parts {
			f := w.of[p[1]]
			switch {
			case f == nil:
				w.T.Errorf("a report names %s, to whom no message went", p[1])
			case f.sender != to[1]:
				w.T.Errorf("%s got a report about %s, a recipient of %s", to[1], p[1], f.sender)
			case p[2] == "failed":
				told[p[1]]++
			}
		}
	}
	removed := ""
	for _, name := range w.List(postoffice.Removed) {
		if filepath.Ext(name) == ".spec" {
			removed += w.Read(postoffice.Removed + "/" + name)
		}
	}
	count := map[string]int{}
	for address, f := range w.of {
		want := 0
		if f.end != "delivered" && f.end != "removed" && f.wantsReport() {
			want = 1
		}
		assert.Equal(w.T, told[address], want, "reports of failure of %s (%+v); %q", address, *f, w.trail[address])
		if f.end == "removed" && !strings.Contains(removed, " "+address+" ") {
			w.T.Errorf("%s was removed by the operator and is not in removed/: %q", address, w.trail[address])
		}
		switch {
		case f.end != "":
			count[f.end]++
		default:
			count["given up"]++
		}
		if want == 1 {
			count["reported"]++
		}
	}
	w.T.Logf("%d recipients of %d messages: %v", len(w.of), len(w.names), count)
	if n, _ := w.log.count("level=ERROR", "msg=end-refused"); n > 0 {
		w.T.Errorf("%d messages were refused their end", n)
	}
}

// Dur1: whatever transport agents do, right, silent, babbling or dying, and whatever they
// write, each recipient is delivered, or reported to its sender, or no one is to hear of it,
// or the operator has removed it: once, and nothing is left.
func TestDur1EveryRecipientHasOneEnd(t *testing.T) {
	t.Parallel()
	seed := *fateSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-fates=%d -fates-seed=%d", *fateCount, seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for left := *fateCount; left > 0; left -= 2000 {
		w := newFates(t, rng)
		w.run(min(left, 2000))
		w.judge()
		balance, err := ledger.Compare(context.Background(), w.PO, ledger.Patience{Looks: 1})
		if err != nil || len(balance.Wrong) > 0 || balance.Difference != (ledger.Count{}) {
			t.Errorf("the ledger: %+v, %v", balance, err)
		}
		w.e.spool.Ledger.Close()
		if t.Failed() {
			return
		}
	}
}
