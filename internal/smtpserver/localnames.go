package smtpserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"zmailer/internal/address"
	"zmailer/internal/config"
)

// nameFile is a file with a domain a line, read again when it has changed. Without it
// the built-in one holds.
type nameFile struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	names   map[string]bool // domains as ASCIIDomain gives them
	size    int64           // of the file that names come from
	mtime   time.Time
	present bool
	trouble complaint
}

func newNameFile(path string, log *slog.Logger) *nameFile {
	f := &nameFile{path: path, log: log}
	f.setDefault()
	return f
}

// has looks a domain up.
// One stat(2) for each recipient of an outside client is all that this costs.
func (f *nameFile) has(_ context.Context, domain string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return f.names[domain], nil
	}
	info, err := os.Stat(f.path)
	switch {
	case err == nil && f.present && info.Size() == f.size && info.ModTime().Equal(f.mtime):
	case err == nil:
		var b []byte
		if b, err = os.ReadFile(f.path); err == nil {
			f.set(b, info)
		}
	case os.IsNotExist(err):
		if err = nil; f.present {
			f.setDefault()
		}
	}
	if err != nil {
		// What was known last holds on.
		f.trouble.begin(f.log, "localnames-trouble", "file", f.path, "reason", err)
	} else {
		f.trouble.end(f.log, "localnames-recovered", "file", f.path)
	}
	return f.names[domain], nil
}

func (f *nameFile) set(b []byte, info fs.FileInfo) {
	names, err := parseLocalNames(b)
	if err != nil {
		f.log.Warn("localnames-trouble", "file", f.path, "reason", err)
	}
	f.names, f.present, f.size, f.mtime = names, true, info.Size(), info.ModTime()
}

func (f *nameFile) setDefault() {
	// The built-in file is tested to be right.
	f.names, _ = parseLocalNames(config.Default("localnames"))
	f.present = false
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
