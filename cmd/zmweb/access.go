package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"zmailer/internal/admin/webconf"
	"zmailer/internal/lookup/passwd/pam"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/web"
)

// access sets who may log in. A token that is missing is made in dir's name: its owner may read it.
func access(w webconf.Settings, settings *config.Config, page *web.Config, dir string) (err error) {
	if w.Accounts != "" {
		if page.Login, err = login(w); err != nil {
			return settings.At("WEBACCOUNTS", err)
		}
		page.Machine = w.ByPAM()
		page.Account = func(string) (string, error) { return w.Accounts, nil }
		if !page.Machine {
			page.Account = (&accountFile{path: w.Accounts}).fingerprint
		}
		page.Right = rightsOf(w).of
	}
	if w.Token == "" {
		return nil
	}
	page.Token, err = webToken(w.Token, dir)
	return settings.Locate(err)
}

// login returns how names and passwords are looked at: by a file of accounts or by PAM.
func login(w webconf.Settings) (func(ctx context.Context, name, password, from string) (string, error), error) {
	if service, ok := strings.CutPrefix(w.Accounts, "pam:"); ok {
		checker, err := pam.New(service, "")
		return func(ctx context.Context, name, password, from string) (string, error) {
			name, err := checker.Verify(ctx, name, password, from)
			if errors.Is(err, pam.ErrRefused) {
				err = web.ErrRefused
			}
			return name, err
		}, err
	}
	err := w.OpenAccounts()
	return func(_ context.Context, name, password, _ string) (string, error) {
		accounts, err := webconf.ReadAccounts(w.Accounts)
		if err != nil {
			return "", err
		}
		if accounts.Verify(name, password) != nil {
			return "", web.ErrRefused
		}
		return name, nil
	}, err
}

func webToken(path, dir string) (string, error) {
	token, err := webconf.ReadToken(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newWebToken(path, dir)
	}
	return token, err
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
