// Package tlsrpt keeps what became of TLS towards other hosts, and makes the reports of it
// that domains may ask for (RFC 8460).
//
// It owns the directory tlsrpt of the postoffice: a file for each day, UTC, which all
// agents append to: one line of JSON for what happened so often. What survives a crash:
// all but the counts of the last minute of the process that died.
//
// Diagnostics: a Recorder never errs towards its caller, mail does not wait for it; what
// it cannot write it logs once and drops. Errors of Read name the file.
package tlsrpt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
)

// Dir is the directory of the postoffice.
const Dir = "tlsrpt"

// Types of a policy (RFC 8460 §4.4).
const (
	PolicyTLSA = "tlsa"
	PolicySTS  = "sts"
	PolicyNone = "no-policy-found"
)

// Results of RFC 8460 §4.3; those of package sts besides.
const (
	NotSupported  = "starttls-not-supported"
	HostMismatch  = "certificate-host-mismatch"
	Expired       = "certificate-expired"
	NotTrusted    = "certificate-not-trusted"
	Failure       = "validation-failure"
	TLSAInvalid   = "tlsa-invalid"
	DNSSECInvalid = "dnssec-invalid"
	DANERequired  = "dane-required"
)

// Session is one attempt to have TLS, or so many alike.
type Session struct {
	Domain string `json:"domain"`
	Type   string `json:"type"`             // of the policy
	Lines  string `json:"policy,omitempty"` // the policy's text, lines parted by \n
	Hosts  string `json:"hosts,omitempty"`  // the servers that an MTA-STS policy names, parted by blanks
	Result string `json:"result,omitempty"` // "": all was well
	Reason string `json:"reason,omitempty"` // of a failure, in words
	From   string `json:"from,omitempty"`   // our address
	MX     string `json:"mx,omitempty"`     // the server
	To     string `json:"to,omitempty"`     // its address
	Count  int    `json:"count"`
}

const (
	flushEvery = time.Minute
	// maxKinds bounds the distinct sessions between two flushes, maxText a policy's text
	// in a line and maxDay a day's file.
	maxKinds = 2000
	maxText  = 4 << 10
	maxDay   = 32 << 20
)

// Recorder counts sessions. Its methods may be used by many goroutines.
type Recorder struct {
	fs   durable.FS
	keep time.Duration
	now  func() time.Time
	log  *slog.Logger

	mu     sync.Mutex
	counts map[Session]int
	timer  *time.Timer
	logged bool
	closed bool
}

// New makes a Recorder for a postoffice; keep is how long a day's file stays, 0: for ever.
// Close it, or the last counts are lost.
func New(disk durable.FS, keep time.Duration, now func() time.Time, log *slog.Logger) *Recorder {
	return &Recorder{fs: disk, keep: keep, now: now, log: log, counts: map[Session]int{}}
}

// Add counts a session. A nil Recorder counts nothing.
func (r *Recorder) Add(s Session) {
	if r == nil {
		return
	}
	s.Lines, s.Hosts, s.Reason = cut(s.Lines, maxText), cut(s.Hosts, maxText), cut(s.Reason, 300)
	s.Count = 0
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.counts[s]++
	switch {
	case len(r.counts) >= maxKinds:
		r.flush()
	case r.timer == nil:
		r.timer = time.AfterFunc(flushEvery, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.flush()
		})
	}
}

func cut(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }

// Close writes the counts.
func (r *Recorder) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flush()
	r.closed = true
}

func (r *Recorder) flush() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if len(r.counts) == 0 {
		return
	}
	var b bytes.Buffer
	for s, n := range r.counts {
		s.Count = n
		line, err := json.Marshal(s)
		if err != nil {
			continue // strings and a number: it cannot be
		}
		b.Write(append(line, '\n'))
	}
	clear(r.counts)
	if err := r.write(b.Bytes()); err != nil && !r.logged {
		r.logged = true
		r.log.Warn("tlsrpt-not-written", "reason", err)
	} else if err == nil {
		r.logged = false
	}
}

// errFull is a day's file that may not grow.
var errFull = errors.New("the day's file is full")

// write appends to the file of today.
func (r *Recorder) write(lines []byte) error {
	name := Dir + "/" + Day(r.now())
	info, err := r.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		r.sweep()
	}
	if err == nil && info.Size+int64(len(lines)) > maxDay {
		return fmt.Errorf("%s: %w", name, errFull)
	}
	f, err := r.fs.Open(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	if info.Size > 0 {
		lines = append([]byte{'\n'}, lines...) // the file may end in a torn line
	}
	// Crash: the line that is being written may be torn, and is passed over.
	_, err = f.Write(lines)
	return errors.Join(err, f.Close())
}

// sweep removes the files of days that are long over.
func (r *Recorder) sweep() {
	if r.keep <= 0 {
		return
	}
	entries, err := r.fs.ReadDir(Dir)
	if err != nil {
		return // the open that follows returns the error
	}
	for _, e := range entries {
		day, err := time.Parse(time.DateOnly, e.Name)
		if err == nil && r.now().Sub(day) > r.keep+24*time.Hour {
			// Crash: it is there or not.
			if err := r.fs.Remove(Dir + "/" + e.Name); err != nil {
				r.log.Warn("tlsrpt-not-removed", "file", e.Name, "reason", err)
			}
		}
	}
}

// Day returns the name of a day's file.
func Day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
