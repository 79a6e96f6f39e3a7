// Package suite runs the real programs as one mail system in a directory of its own:
// for end-to-end tests, the demonstration and by hand. It writes the configuration,
// starts zmctl run, and reads the programs' log as events that can be waited for.
package suite

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/test/peer"
)

// Suite is a mail system. Set the fields, then Init, then Start.
type Suite struct {
	Bin      string            // directory of the programs
	Dir      string            // everything of this system is below it
	Hostname string            // default mta.example
	Settings map[string]string // more lines of zmailer.conf
	// Files are configuration files beside zmailer.conf: "routes", "reports/de/failed", ...
	Files map[string]string
	// Users are the local users; their Maildirs are Dir/mail/USER.
	Users []string
	// OnEvent is called for each event in order, by one goroutine, before Wait sees it; after
	// KillMain the agents' last words may come beside the next start's.
	OnEvent func(e Event)
	// Output gets the log as it comes; then events are given to OnEvent alone and not
	// kept for Wait, Events and Log.
	Output io.Writer
	// Launch starts zmctl run in Start's place: an injector's Start. nil: cmd.Start.
	Launch func(cmd *exec.Cmd) error

	SMTPAddr string // of smtpserver; Init chooses one

	cmd     *exec.Cmd
	done    chan struct{} // closed when the log has ended
	mu      sync.Mutex
	events  []Event
	past    int           // events that Wait passes over
	began   int           // events before the last Start
	text    bytes.Buffer  // what was no event
	changed chan struct{} // closed and replaced at each event
}

// Event is one line of a program's log.
type Event struct {
	Time    time.Time
	Program string
	Word    string // the constant event word
	Level   string
	Attrs   map[string]any
}

// Get returns an attribute as text, "" if absent.
func (e Event) Get(key string) string {
	v, ok := e.Attrs[key]
	if !ok {
		return ""
	}
	return fmt.Sprint(v)
}

// PostOffice returns the postoffice's directory.
func (s *Suite) PostOffice() string { return filepath.Join(s.Dir, "postoffice") }

// Config returns the path of zmailer.conf.
func (s *Suite) Config() string { return filepath.Join(s.Dir, "conf", "zmailer.conf") }

// Maildir returns a local user's mailbox.
func (s *Suite) Maildir(user string) string { return filepath.Join(s.Dir, "mail", user) }

// Env returns the environment for a program of this system.
func (s *Suite) Env() []string {
	return append(os.Environ(), "POSTOFFICE="+s.PostOffice(), "ZCONFIG="+s.Config())
}

// Command returns a program of this system, not started.
func (s *Suite) Command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.Bin, program), args...)
	cmd.Env = s.Env()
	return cmd
}

// Init writes the configuration and makes the postoffice.
func (s *Suite) Init() error {
	if s.Hostname == "" {
		s.Hostname = "mta.example"
	}
	if s.SMTPAddr == "" {
		addr, err := peer.FreeAddr()
		if err != nil {
			return err
		}
		s.SMTPAddr = addr
	}
	conf := filepath.Dir(s.Config())
	if err := errors.Join(os.MkdirAll(conf, 0o755), os.MkdirAll(s.PostOffice(), 0o755),
		os.MkdirAll(filepath.Join(s.Dir, "mail"), 0o777)); err != nil {
		return err
	}
	settings := map[string]string{
		"POSTOFFICE": s.PostOffice(), "HOSTNAME": s.Hostname, "SMTPLISTEN": s.SMTPAddr, "LOG": "json",
		"LOCALUSERS": filepath.Join(conf, "users"), "MAILBOX": filepath.Join(s.Dir, "mail") + "/%u/",
	}
	for k, v := range s.Settings {
		settings[k] = v
	}
	var main strings.Builder
	for k, v := range settings {
		fmt.Fprintf(&main, "%s=%s\n", k, v)
	}
	files := map[string]string{
		"zmailer.conf": main.String(),
		"users":        strings.Join(s.Users, "\n") + "\n",
		"localnames":   s.Hostname + "\n",
	}
	for k, v := range s.Files {
		files[k] = v
	}
	for name, text := range files {
		file := filepath.Join(conf, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	// Init again only to add what it has of its own: the files above stay as they are.
	if out, err := s.Command("zmctl", "init", "--config-dir", conf).CombinedOutput(); err != nil {
		return fmt.Errorf("zmctl init: %w\n%s", err, out)
	}
	return nil
}

// Start runs zmctl run and waits until it answers SMTP.
func (s *Suite) Start() error {
	s.cmd = s.Command("zmctl", "run")
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	s.cmd.Stdout, s.cmd.Stderr = w, w
	s.done = make(chan struct{})
	s.mu.Lock()
	s.changed, s.began = make(chan struct{}), len(s.events)
	s.mu.Unlock()
	if s.Launch != nil {
		err = s.Launch(s.cmd)
	} else {
		err = s.cmd.Start()
	}
	w.Close()
	if err != nil {
		r.Close()
		return err
	}
	go s.read(r, s.done)
	return s.awaitSMTP(20 * time.Second)
}

// AwaitDaemons waits until router and scheduler, too, have started or ended, which Start
// does not: smtpserver may listen before. Who needs one of them waits for its event.
func (s *Suite) AwaitDaemons(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	missing := map[string]bool{"router": true, "scheduler": true}
	s.mu.Lock()
	seen := s.began
	s.mu.Unlock()
	for {
		s.mu.Lock()
		events, changed := s.events, s.changed
		s.mu.Unlock()
		for ; seen < len(events); seen++ {
			switch e := events[seen]; e.Word {
			case "started":
				delete(missing, e.Program)
			case "daemon-ended":
				delete(missing, e.Get("daemon"))
			}
		}
		if len(missing) == 0 {
			return
		}
		select {
		case <-changed:
		case <-s.done:
			return
		case <-timer.C:
			return
		}
	}
}

// awaitSMTP connects until somebody greets.
func (s *Suite) awaitSMTP(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		c, err := net.DialTimeout("tcp", s.SMTPAddr, time.Second)
		if err == nil {
			c.SetDeadline(deadline)
			_, err = c.Read(make([]byte, 512))
			c.Close()
			if err == nil {
				return nil
			}
		}
		select {
		case <-s.done:
			return fmt.Errorf("zmctl run has ended:\n%s", s.Log())
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no process listens on %s: %w\n%s", s.SMTPAddr, err, s.Log())
		}
		time.Sleep(10 * time.Millisecond) // a port has no event to wait for
	}
}

func (s *Suite) read(r io.ReadCloser, done chan<- struct{}) {
	defer close(done)
	defer r.Close()
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			s.line(line)
		}
		if err != nil {
			return
		}
	}
}

func (s *Suite) line(line []byte) {
	if s.Output != nil {
		// The log of a test: what cannot be written is missed by whoever looks.
		_, _ = s.Output.Write(line)
	}
	e := Event{Attrs: map[string]any{}}
	if err := json.Unmarshal(line, &e.Attrs); err != nil {
		if s.Output == nil {
			s.mu.Lock()
			s.text.Write(line)
			s.mu.Unlock()
		}
		return
	}
	e.Word, e.Program, e.Level = e.Get("msg"), e.Get("program"), e.Get("level")
	e.Time, _ = time.Parse(time.RFC3339Nano, e.Get("time"))
	if s.OnEvent != nil {
		s.OnEvent(e)
	}
	s.mu.Lock()
	if s.Output == nil {
		s.events = append(s.events, e)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
}

// Events returns what was logged so far.
func (s *Suite) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Event(nil), s.events...)
}

// Forget has Wait pass over what was logged so far.
func (s *Suite) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past = len(s.events)
}

// Wait waits for an event, one logged already included.
func (s *Suite) Wait(limit time.Duration, what string, match func(e Event) bool) (Event, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	s.mu.Lock()
	seen := s.past
	s.mu.Unlock()
	for {
		s.mu.Lock()
		events, changed := s.events, s.changed
		s.mu.Unlock()
		for ; seen < len(events); seen++ {
			if match(events[seen]) {
				return events[seen], nil
			}
		}
		select {
		case <-changed:
		case <-timer.C:
			return Event{}, fmt.Errorf("no %s within %v; the log:\n%s", what, limit, s.Log())
		}
	}
}

// Log returns the whole log as text.
func (s *Suite) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	b.Write(s.text.Bytes())
	for _, e := range s.events {
		line, err := json.Marshal(e.Attrs)
		if err == nil {
			b.Write(append(line, '\n'))
		}
	}
	return b.String()
}

// Stop ends the system as a postmaster does, with SIGTERM, and waits for its end.
func (s *Suite) Stop() error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Signal(syscall.SIGTERM)
	werr := s.cmd.Wait()
	<-s.done
	s.cmd = nil
	return errors.Join(err, werr)
}

// Kill ends the whole system with SIGKILL, its transport agents too.
func (s *Suite) Kill() {
	if s.cmd == nil {
		return
	}
	// zmctl's children ask the kernel to be killed with it; theirs do not.
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	for {
		list, _ := s.Processes()
		if len(list) == 0 {
			break
		}
		for _, p := range list {
			_ = p.Kill() // what does not end is seen below
		}
	}
	<-s.done
	s.cmd = nil
}

// KillMain ends zmctl run alone with SIGKILL: the kernel ends its daemons, and their
// transport agents live on until they notice.
func (s *Suite) KillMain() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended; Wait returns nothing of use
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Left lists the files in the postoffice that mean work: everything but owners' locks,
// the ledger, orders, alarms, records of imports and the texts beside what is put aside.
func (s *Suite) Left() ([]string, error) {
	var left []string
	err := filepath.WalkDir(s.PostOffice(), func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(s.PostOffice(), path)
		if err == nil && d.Type().IsRegular() && !strings.HasPrefix(d.Name(), "reason.") && isMail(rel) {
			left = append(left, rel)
		}
		return err
	})
	return left, err
}

// noMail are places of the postoffice, files and directories, that hold no message.
var noMail = []string{postoffice.Owners, postoffice.Ledger, postoffice.Orders, postoffice.Clients, postoffice.Verify, "lastgood", postoffice.AlarmFile, postoffice.Suspended}

// isMail reports whether a file of the postoffice is a message, or a part of one.
func isMail(rel string) bool {
	top, name, _ := strings.Cut(rel, "/")
	return !strings.HasPrefix(rel, ".") && !slices.Contains(noMail, top) && (top != postoffice.Imports || strings.HasPrefix(name, "import-"))
}

// DropDrafts removes the quarantined drafts of submitters that were killed from the
// postoffice and from a list that Left gave. Tests make such drafts hours old, so that a
// router takes them away at once; where the machine was started after that, they are
// older than its start, and go to quarantine/ instead.
func (s *Suite) DropDrafts(left []string) []string {
	return slices.DeleteFunc(left, func(name string) bool {
		if !strings.HasPrefix(name, "quarantine/public.") || !strings.HasSuffix(name, ".unfinished") {
			return false
		}
		return os.Remove(filepath.Join(s.PostOffice(), name)) == nil
	})
}

// Mail reads the messages of a Maildir's new/.
func Mail(maildir string) ([][]byte, error) {
	names, err := filepath.Glob(filepath.Join(maildir, "new", "*"))
	if err != nil {
		return nil, err
	}
	var mail [][]byte
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			return nil, err
		}
		mail = append(mail, b)
	}
	return mail, nil
}
