package main

import (
	"os"
	"sync"
	"time"

	"zmailer/internal/admin/webconf"
	"zmailer/internal/lookup/passwd"
)

// settled is the age from which the time of a file shows every later change.
const settled = 2 * time.Second

// accountFile reads the current accounts of a file. It is read again when it
// has changed.
type accountFile struct {
	path string

	mu       sync.Mutex
	seen     os.FileInfo // nil: it is read the next time
	accounts *passwd.Accounts
}

// fingerprint changes with a name's password; it is "" of a name that is not there.
func (a *accountFile) fingerprint(name string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Before it is read: a change meanwhile is read the next time.
	info, err := os.Stat(a.path)
	if err != nil {
		return "", err
	}
	if s := a.seen; s == nil || !os.SameFile(s, info) || s.Size() != info.Size() || !s.ModTime().Equal(info.ModTime()) {
		a.seen = nil
		if a.accounts, err = webconf.ReadAccounts(a.path); err != nil {
			return "", err
		}
		if time.Since(info.ModTime()) > settled {
			a.seen = info
		}
	}
	return a.accounts.Fingerprint(name), nil
}
