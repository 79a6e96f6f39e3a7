package smtpserver

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"zmailer/internal/address"
	"zmailer/internal/config"
)

// relay decides who may send where: clients in our networks anywhere, others to
// local domains only.
type relay struct {
	nets []netip.Prefix
	host string // HOSTNAME as ASCIIDomain gives it; is ours without standing in the file
	path string // localnames; without a file the built-in one holds
	log  *slog.Logger

	mu      sync.Mutex
	names   map[string]bool // domains as ASCIIDomain gives them
	size    int64           // of the file that names come from
	mtime   time.Time
	present bool
	trouble complaint
}

func newRelay(nets []netip.Prefix, host, path string, log *slog.Logger) *relay {
	r := &relay{nets: nets, path: path, log: log}
	r.setDefault()
	if ascii, err := (address.Mailbox{Local: "x", Domain: host}).ASCIIDomain(); err == nil {
		r.host = ascii
	}
	return r
}

// trusts tells a client that may send anywhere.
func (r *relay) trusts(client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	for _, n := range r.nets {
		if n.Contains(client) {
			return true
		}
	}
	return false
}

// isLocal tells a recipient whose domain is ours. An address without a domain is.
func (r *relay) isLocal(m address.Mailbox) bool {
	if m.Domain == "" {
		return true
	}
	domain, err := m.ASCIIDomain()
	if err != nil {
		return false
	}
	return domain == r.host || r.listed(domain)
}

// listed looks a domain up in localnames, which is read again when it has changed.
// One stat(2) for each recipient of an outside client is all that this costs.
func (r *relay) listed(domain string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path == "" {
		return r.names[domain]
	}
	info, err := os.Stat(r.path)
	switch {
	case err == nil && r.present && info.Size() == r.size && info.ModTime().Equal(r.mtime):
	case err == nil:
		var b []byte
		if b, err = os.ReadFile(r.path); err == nil {
			r.set(b, info)
		}
	case os.IsNotExist(err):
		if err = nil; r.present {
			r.setDefault()
		}
	}
	if err != nil {
		// What was known last holds on.
		r.trouble.begin(r.log, "localnames-trouble", "file", r.path, "reason", err)
	} else {
		r.trouble.end(r.log, "localnames-recovered", "file", r.path)
	}
	return r.names[domain]
}

func (r *relay) set(b []byte, info fs.FileInfo) {
	names, err := parseLocalNames(b)
	if err != nil {
		r.log.Warn("localnames-trouble", "file", r.path, "reason", err)
	}
	r.names, r.present, r.size, r.mtime = names, true, info.Size(), info.ModTime()
}

func (r *relay) setDefault() {
	// The built-in file is tested to be right.
	r.names, _ = parseLocalNames(config.Default("localnames"))
	r.present = false
}

// parseLocalNames reads the first word of each line as a domain; # begins a comment.
// A line that holds no domain is left out and named in the error.
func parseLocalNames(b []byte) (map[string]bool, error) {
	names := map[string]bool{}
	var bad error
	sc := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; sc.Scan(); n++ {
		text, _, _ := strings.Cut(sc.Text(), "#")
		f := strings.Fields(text)
		if len(f) == 0 {
			continue
		}
		domain, err := (address.Mailbox{Local: "x", Domain: strings.TrimSuffix(f[0], ".")}).ASCIIDomain()
		if err != nil {
			bad = fmt.Errorf("line %d: %w", n, err)
			continue
		}
		names[domain] = true
	}
	if err := sc.Err(); err != nil {
		bad = err
	}
	return names, bad
}
