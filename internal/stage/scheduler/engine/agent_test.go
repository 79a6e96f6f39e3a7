package engine

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// TestMain is also a transport agent and a scheduler, in processes of their own:
// TEST_AGENT=script does what each recipient's local part says, TEST_SCHEDULER=DIR
// runs a scheduler.
func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv("TEST_AGENT") == "script":
		err = runScript(os.Stdin, os.Stdout)
	case os.Getenv("TEST_AGENT") == "child":
		<-time.After(time.Minute) // an orphan that somebody has to end
	case os.Getenv("TEST_SCHEDULER") != "":
		err = runTestScheduler(os.Getenv("TEST_SCHEDULER"))
	default:
		// They wait for events and other processes more than they compute.
		err = flag.Set("test.parallel", "8")
		if err == nil {
			os.Exit(m.Run())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test process:", err)
		os.Exit(1)
	}
}

// raced has an agent with the race detector end at once, not a second later.
const raced = "GORACE=atexit_sleep_ms=0"

// agentCommand returns a command for scheduler.conf that starts the scripted agent.
func agentCommand(vars string) string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`command="[TEST_AGENT=script %s %s] %s $channel"`, raced, vars, self)
}

// script is a transport agent that needs no network. It runs in transport/.
type script struct {
	po    *postoffice.PostOffice
	owner *postoffice.Owner
	mu    sync.Mutex
	out   io.Writer
	// Between note and tag the process must not exit: that is the moment in which a
	// real agent is in doubt.
	mark sync.Mutex
}

// die ends the process, as a crash does.
func (s *script) die() {
	s.mark.Lock()
	os.Exit(7)
}

func runScript(in io.Reader, out io.Writer) error {
	// As the real agents: the scheduler's death takes no delivery along.
	signal.Ignore(syscall.SIGPIPE)
	po, err := postoffice.OpenDir("..", 0, false)
	if err != nil {
		return err
	}
	owner, err := po.Owners.Take("test-agent")
	if err != nil {
		return err
	}
	defer owner.Release()
	s := &script{po: po, owner: owner, out: out}
	if junk := os.Getenv("TEST_BABBLE"); junk != "" {
		s.say("no protocol at all\n\n#\x00\xff\n#hungry!\n99999999999999999999/1\tx\n1/2\t\tok3 no such delivery\n" +
			"#resync nothing\n" + strings.Repeat("x", 200_000) + "\n")
	}
	if os.Getenv("TEST_START") == "gate" {
		s.atGate()
	}
	if os.Getenv("TEST_UNRULY") == "deaf" && s.once("unruly", "agent", 0) {
		s.say("#hungry\n")
		hang() // and never reads
	}
	slots, _ := strconv.Atoi(os.Getenv("TEST_SLOTS"))
	slots = max(slots, 1)
	if os.Getenv("TEST_CLAIMS") != "" {
		s.say(fmt.Sprintf("#slots %d\n", slots))
	}
	later := 0 // slots that are announced with the first job
	if first, _ := strconv.Atoi(os.Getenv("TEST_FIRST")); first > 0 {
		later = slots - first
	}
	s.say(strings.Repeat("#hungry\n", slots-later))
	jobs := make(chan taproto.Job)
	var wg sync.WaitGroup
	for range slots {
		wg.Go(func() {
			for j := range jobs {
				s.deliver(j)
			}
		})
	}
	r := taproto.NewReader(in)
	for {
		c, err := r.Command()
		if err != nil || c.Kind == taproto.CommandEnd {
			break
		}
		if c.Kind == taproto.CommandIdle {
			s.note("idle")
			s.say("#hungry\n")
			continue
		}
		if how := os.Getenv("TEST_UNRULY"); how != "" && s.once("unruly", "agent", 0) {
			s.unruly(how, c.Job)
		}
		if later > 0 {
			s.say(strings.Repeat("#hungry\n", later))
			later = 0
		}
		jobs <- c.Job
	}
	close(jobs)
	wg.Wait()
	if os.Getenv("TEST_BABBLE") != "" {
		s.say("1/2\t\tok3 a last line without its newline")
	}
	return nil
}

// atGate waits until the test opens the gate.
func (s *script) atGate() {
	gate, err := os.Open("../gate")
	if err != nil {
		panic(err)
	}
	_, _ = io.ReadAll(gate)
	_ = gate.Close()
}

func (s *script) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.out, text)
}

// note appends a line to ../notes, for the test.
func (s *script) note(format string, args ...any) { note("..", format, args...) }

func note(dir, format string, args ...any) {
	f, err := os.OpenFile(filepath.Join(dir, "notes"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}

// once reports whether something happens for the first time, over all processes.
func (s *script) once(what string, name string, off int64) bool {
	f, err := os.OpenFile(fmt.Sprintf("../once.%s.%s.%d", what, filepath.Base(name), off), os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// deliver does one job: it locks, does what the local parts say, and answers.
func (s *script) deliver(j taproto.Job) {
	defer s.say("#hungry\n")
	f, err := s.po.Queue.Open(j.Name)
	if err != nil {
		s.say("#resync " + j.Name + "\n")
		return
	}
	defer f.Close()
	spec, list := s.lock(f, j)
	if len(list) == 0 {
		name := j.Name
		if os.Getenv("TEST_SAYHOST") != "" {
			name += "\t" + j.Host
		}
		s.say("#resync " + name + "\n")
		return
	}
	number, _ := spec.Number()
	for i := range list {
		s.recipient(f, spec, &list[i], number, j)
	}
}

func (s *script) lock(f *postoffice.Spec, j taproto.Job) (*workspec.Spec, []workspec.Recipient) {
	if err := f.Lock(); err != nil {
		panic(err)
	}
	defer f.Unlock()
	raw, err := f.Read()
	if err != nil {
		panic(err)
	}
	spec, err := workspec.Parse(raw)
	if err != nil {
		return nil, nil // spoiled since
	}
	var list []workspec.Recipient
	orders := spec.Orders()
	for _, g := range spec.Groups {
		for _, r := range g.Recipients {
			word := word(r.Address)
			if r.Tag != workspec.TagToDo || j.Host != "" && !strings.EqualFold(r.Host, j.Host) || r.Channel != os.Args[1] || orders.Waits(&r, time.Now()) {
				continue
			}
			if word == "die" && s.once("die", j.Name, r.Offset) {
				s.die()
			}
			if word == "resync" && s.once("resync", j.Name, r.Offset) {
				return spec, nil
			}
			if err := f.SetTag(workspec.LockBytes(s.owner.Number()), workspec.TagOffset(r.Offset)); err != nil {
				panic(err)
			}
			list = append(list, r)
		}
	}
	return spec, list
}

// word returns what an address orders the agent to do: up to the first dot or @. A spoiled
// address may have neither.
func word(address string) string {
	if i := strings.IndexAny(address, ".@"); i >= 0 {
		return address[:i]
	}
	return address
}

// deferred counts a recipient's deferrals so far.
func deferred(spec *workspec.Spec, r *workspec.Recipient) int {
	n, last := 0, 0
	for i := range spec.History {
		e := &spec.History[i]
		if e.Event != workspec.EventDeferred {
			continue
		}
		for about := range spec.About(e) {
			if about.Offset != r.Offset {
				continue
			}
			attempt, _ := strconv.Atoi(e.Get("attempt"))
			if n++; last > 0 && attempt > last {
				n += attempt - last - 1 // that a summary has left out
			}
			last = attempt
		}
	}
	return n
}

func (s *script) recipient(f *postoffice.Spec, spec *workspec.Spec, r *workspec.Recipient, number uint64, j taproto.Job) {
	tag := func(t workspec.Tag) {
		if err := f.SetTag(workspec.TagBytes(spec.Format, t), workspec.TagOffset(r.Offset)); err != nil {
			panic(err)
		}
	}
	answer := func(a taproto.Answer) {
		a.Number, a.Offset = number, r.Offset
		s.say(string(taproto.AppendLine(nil, &taproto.Line{Kind: taproto.LineAnswer, Answer: a})))
	}
	delivered := func() {
		s.mark.Lock()
		defer s.mark.Unlock()
		s.note("delivered %s %s", filepath.Base(j.Name), r.Address)
		tag(workspec.TagOK)
	}
	w := word(r.Address)
	n, _ := strconv.Atoi(strings.Trim(w, "abcdefghijklmnopqrstuvwxyz"))
	switch w = strings.TrimRight(w, "0123456789"); {
	case w == "fail":
		if err := storetest.Mark(s.po, j.Name, indexOf(spec, r.Offset), "failed", workspec.TagFailed, time.Now()); err != nil {
			panic(err)
		}
		answer(taproto.Answer{Word: taproto.Error2, Text: "<<- RCPT\n->> 550 5.1.1 no such user"})
	case w == "error":
		tag(workspec.TagFailed)
		answer(taproto.Answer{Word: taproto.Error, Text: "550 5.7.1 not wanted"})
	case w == "defer" && deferred(spec, r) < n:
		s.note("deferred %s", r.Address)
		tag(workspec.TagToDo)
		answer(taproto.Answer{Word: taproto.Deferred, Text: "450 4.2.1 later", Notary: workspec.Notary{Status: "4.2.1"}.String()})
	case w == "move" && deferred(spec, r) < n:
		tag(workspec.TagToDo)
		answer(taproto.Answer{Word: taproto.Deferred, Text: "450 4.7.1 poor reputation" + workspec.OtherSource, Notary: workspec.Notary{Status: "4.7.1"}.String()})
	case w == "host" && deferred(spec, r) < n:
		s.note("deferall %s", r.Address)
		tag(workspec.TagToDo)
		answer(taproto.Answer{Word: taproto.DeferAll, Text: "connection refused"})
	case w == "busy" && deferred(spec, r) < n:
		tag(workspec.TagToDo)
		answer(taproto.Answer{Word: taproto.DeferAll, Text: "<<- EHLO\n->> 421 4.7.0 too many connections"})
	case w == "retryat" && deferred(spec, r) < n:
		tag(workspec.TagToDo)
		answer(taproto.Answer{Word: taproto.RetryAt, Relative: true, After: time.Second, Text: "not now"})
	case w == "kill" && os.Getenv("TEST_MENDED") == "":
		s.die()
	case w == "dielocked" && s.once("dielocked", j.Name, r.Offset):
		s.die()
	case w == "dietagged":
		delivered()
		s.die()
	case w == "diediag" && s.once("diediag", j.Name, r.Offset):
		if err := storetest.Mark(s.po, j.Name, indexOf(spec, r.Offset), "failed", workspec.TagLocked, time.Now()); err != nil {
			panic(err)
		}
		s.die()
	case w == "diepart":
		delivered()
		s.say(fmt.Sprintf("%d/%d\t\tok3 no newl", number, r.Offset))
		s.die()
	case w == "silent" && s.once("silent", j.Name, r.Offset):
		tag(workspec.TagToDo)
	case w == "mute":
		delivered() // and never answers
	case w == "gatelater" && s.once("gatelater", j.Name, r.Offset):
		s.atGate()
		s.note("deferred %s", r.Address)
		tag(workspec.TagToDo)
		answer(taproto.Answer{Word: taproto.Deferred, Text: "450 4.2.1 later", Notary: workspec.Notary{Status: "4.2.1"}.String()})
	case w == "hangs" && s.once("hangs", j.Name, r.Offset):
		hang()
	case w == "gateerror":
		s.atGate() // and leaves all else to the scheduler
		answer(taproto.Answer{Word: taproto.Error, Text: "550 5.7.1 not wanted"})
	case w == "gate":
		s.atGate()
		delivered()
		answer(taproto.Answer{Word: taproto.OK3, Text: "250 2.0.0 through the gate"})
	default:
		delivered()
		answer(taproto.Answer{Word: taproto.OK3, Text: "<<- .\n->> 250 2.0.0 queued"})
	}
}

func indexOf(spec *workspec.Spec, off int64) int {
	for i, r := range spec.Groups[0].Recipients {
		if r.Offset == off {
			return i
		}
	}
	panic("no such recipient")
}

// runTestScheduler runs a scheduler of a test's postoffice until it is killed.
func runTestScheduler(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	text, err := os.ReadFile(filepath.Join(dir, "scheduler.conf"))
	if err != nil {
		return err
	}
	conf, err := conf.Parse("scheduler.conf", text, nil)
	if err != nil {
		return err
	}
	return Run(ctx, Config{Dir: dir, Conf: conf, Hostname: "mx.example.org", Postmaster: "postmaster@mx.example.org",
		StopTimeout: 10 * time.Second, Look: time.Second,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))})
}
