package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"zmailer/internal/lookup/passwd"
	"zmailer/internal/lookup/passwd/pam"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/web"
)

// access sets who may log in.
func (w *webSettings) access(page *web.Config, dir string) error {
	if w.accounts != "" {
		login, err := w.login()
		if err != nil {
			return &config.Error{File: w.accounts, Reason: "WEBACCOUNTS cannot be used", Err: err}
		}
		page.Login, page.Machine = login, strings.HasPrefix(w.accounts, "pam:")
		if !page.Machine {
			page.Account = (&accountFile{path: w.accounts}).fingerprint
		}
		page.Right = w.rights().of
	}
	if w.token == "off" {
		w.token = ""
		return nil
	}
	if w.token == "" {
		w.token = filepath.Join(dir, web.TokenFile)
	}
	var err error
	page.Token, err = webToken(w.token, dir)
	return err
}

// login returns how names and passwords are looked at: by a file of accounts or by PAM.
func (w *webSettings) login() (func(ctx context.Context, name, password, from string) (string, error), error) {
	if service, ok := strings.CutPrefix(w.accounts, "pam:"); ok {
		checker, err := pam.New(service, "")
		if err == nil && len(w.readers)+len(w.writers) == 0 {
			err = errors.New("WEBREADERS and WEBWRITERS are empty: every user of this machine could see all mail")
		}
		return func(ctx context.Context, name, password, from string) (string, error) {
			name, err := checker.Verify(ctx, name, password, from)
			if errors.Is(err, pam.ErrRefused) {
				err = web.ErrRefused
			}
			return name, err
		}, err
	}
	_, err := readAccounts(w.accounts)
	return func(_ context.Context, name, password, _ string) (string, error) {
		accounts, err := readAccounts(w.accounts)
		if err != nil {
			return "", err
		}
		if accounts.Verify(name, password) != nil {
			return "", web.ErrRefused
		}
		return name, nil
	}, err
}

func readAccounts(path string) (*passwd.Accounts, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return passwd.Parse(path, text)
}

// leastToken is the shortest token that is taken, in characters.
const leastToken = 16

func webToken(path, dir string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newWebToken(path, dir)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	b := make([]byte, 1024)
	n, _ := f.Read(b) // a token that is too short is refused below
	token := strings.TrimSpace(string(b[:n]))
	switch {
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("its mode is %v: others may read it; chmod 600", info.Mode().Perm())
	case len(token) < leastToken:
		err = fmt.Errorf("it has fewer than %d characters; remove it, and the next start makes one", leastToken)
	default:
		return token, nil
	}
	return "", &config.Error{File: path, Reason: "WEBTOKEN cannot be used", Err: err}
}

func newWebToken(path, dir string) (string, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("make a token: %w", err)
	}
	token := web.NewToken()
	_, err = f.WriteString(token + "\n")
	if info, serr := os.Stat(dir); err == nil && serr == nil && os.Geteuid() == 0 {
		// The daemons' user may read it, as all else of the postoffice.
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			err = f.Chown(int(st.Uid), int(st.Gid))
		}
	}
	// Crash: a token that is not whole is too short and refused, or there is none.
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return "", errors.Join(fmt.Errorf("make a token: %w", err), os.Remove(path))
	}
	return token, nil
}
