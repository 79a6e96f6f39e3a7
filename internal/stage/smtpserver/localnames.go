package smtpserver

import (
	"bufio"
	"bytes"
	"context"
	"log/slog"
	"strings"

	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// nameSet holds domains as ASCIIDomain gives them.
type nameSet map[string]bool

func (n nameSet) has(_ context.Context, domain string) (bool, error) { return n[domain], nil }

// nameFile is a file with a domain a line, read again when it has changed. Without it the
// built-in one holds. One that cannot be read when we start, or that has a line which is no
// domain, is an error: with the built-in one in its place every domain of ours would be
// answered 550. Later, what was read last holds on.
type nameFile struct{ *config.File[nameSet] }

// openNames opens a file; the path "" is the built-in one. The errors are *config.Error.
func openNames(path string, log *slog.Logger) (nameSource, error) {
	if path == "" {
		return parseLocalNames(path, nil)
	}
	f, err := config.OpenFile(path, parseLocalNames, config.FileOptions{Log: log})
	if err != nil {
		return nil, err
	}
	return nameFile{f}, nil
}

func (f nameFile) has(ctx context.Context, domain string) (bool, error) {
	return f.Current().has(ctx, domain)
}

// parseLocalNames reads the first word of each line as a domain; # begins a comment. No
// bytes at all, not even an empty slice, are a file that is not there.
func parseLocalNames(name string, b []byte) (nameSet, error) {
	if b == nil {
		b = config.Default("localnames")
	}
	names := nameSet{}
	sc := bufio.NewScanner(bytes.NewReader(b))
	n := 1
	for ; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		domain, err := text.Domain(f[0])
		if err != nil {
			return nil, &config.Error{File: name, Line: n, Reason: "this is no domain", Err: err}
		}
		names[domain] = true
	}
	if err := sc.Err(); err != nil {
		return nil, &config.Error{File: name, Line: n, Reason: "cannot be read", Err: err}
	}
	return names, nil
}
