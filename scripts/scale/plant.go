package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
	"zmailer/test/peer"
)

// spool is a postoffice with its configuration and a sink for new mail.
type spool struct {
	options
	top, po, conf string
	sink          *peer.Sink
	mu            sync.Mutex
	arrived       map[string]time.Time // by recipient
	fresh         int                  // new messages so far
}

func newSpool(o options) (*spool, error) {
	top, err := os.MkdirTemp(o.dir, "scale-")
	if err != nil {
		return nil, err
	}
	s := &spool{options: o, top: top, po: filepath.Join(top, "postoffice"), conf: filepath.Join(top, "conf"), arrived: map[string]time.Time{}}
	s.sink = &peer.Sink{Discard: true, OnMessage: func(m *peer.Message) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.arrived[m.Recipients[0]] = m.Time
	}}
	if err := s.sink.Start(); err != nil {
		return nil, err
	}
	zmctl := filepath.Join(o.bin, "zmctl")
	if out, err := exec.Command(zmctl, "--postoffice", s.po, "init", "--config-dir", s.conf).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("zmctl init: %w: %s", err, out)
	}
	main := fmt.Sprintf("POSTOFFICE=%s\nHOSTNAME=scale.example\nLOG=text\nHASHLEVELS=%d\n", s.po, o.levels)
	clauses := "*/*\n\tinterval=1h retries=\"1\" expiry=30d maxthr=20\nsmtp/*\n\tcommand=\"ta-smtp --slots=20 $channel\"\n"
	if err := os.WriteFile(filepath.Join(s.conf, "zmailer.conf"), []byte(main), 0o644); err != nil {
		return nil, err
	}
	return s, os.WriteFile(filepath.Join(s.conf, "scheduler.conf"), []byte(clauses), 0o644)
}

func (s *spool) remove() {
	s.sink.Close()
	if !s.keep {
		_ = os.RemoveAll(s.top)
	}
}

// hashDirs makes the hash directories, as routers do when they need one.
func (s *spool) hashDirs() error {
	for _, top := range []string{postoffice.Queue, postoffice.Transport} {
		for i := range uint64(26 * 26) {
			if dir := postoffice.HashDir(i, s.levels); dir != "" {
				if err := os.MkdirAll(filepath.Join(s.po, top, dir), 0o755); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// plant makes messages that were deferred a moment ago and are due in ten hours.
func (s *spool) plant(n int) error {
	var next atomic.Int64
	var group sync.WaitGroup
	failed := make(chan error, 4)
	for range cap(failed) {
		group.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				host := fmt.Sprintf("host%d.example", i%int64(s.hosts))
				if err := s.message(fmt.Sprintf("user%d@%s", i, host), host, time.Now().Add(10*time.Hour)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

const header = "Received: from client.example by scale.example with ESMTP; Fri, 1 Jan 2027 00:00:00 +0000\n" +
	"From: <sender@scale.example>\nTo: <someone@scale.example>\nSubject: a message of the scale test\nMessage-ID: <1@scale.example>\n"

// message makes one message as a router hands it over; one with a next time was
// deferred once.
func (s *spool) message(address, host string, due time.Time) error {
	f, err := os.CreateTemp(filepath.Join(s.po, postoffice.Router), "..scale")
	if err != nil {
		return err
	}
	defer f.Close()
	envelope := "channel error\nto " + address + "\nenv-end\n" + header + "\n"
	if _, err := f.WriteString(envelope + "A short body.\n"); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	place := filepath.Join(postoffice.HashDir(st.Ino, s.levels), strconv.FormatUint(st.Ino, 10))
	if err := os.Rename(f.Name(), filepath.Join(s.po, postoffice.Queue, place)); err != nil {
		return err
	}
	var b bytes.Buffer
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: strconv.FormatUint(st.Ino, 10), BodyOffset: int64(len(envelope)), ErrorTo: []string{"sender@scale.example"}})
	w.Group(workspec.Sender{Channel: "local", Host: "sender", Address: "sender@scale.example", Privilege: "65534"},
		[]workspec.Recipient{{Channel: "smtp", Host: host, Address: address, Privilege: "65534"}}, []byte(header))
	if err := w.Close(); err != nil {
		return err
	}
	spec := b.Bytes()
	if !due.IsZero() {
		e := workspec.DeferredEvent(time.Now(), int64(bytes.Index(spec, []byte("\nr "))+1), 1, due, status.Code{Class: 4, Subject: 2, Detail: 1}, "450 4.2.1 try again later")
		spec = workspec.AppendEvent(spec, &e)
	}
	// Under another name first: the scheduler may be looking.
	work := filepath.Join(s.po, postoffice.Router, "..scale."+strconv.FormatUint(st.Ino, 10))
	if err := os.WriteFile(work, spec, 0o644); err != nil {
		return err
	}
	return os.Rename(work, filepath.Join(s.po, postoffice.Transport, place))
}
