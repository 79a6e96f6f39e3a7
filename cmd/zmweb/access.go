package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"zmailer/internal/config"
	"zmailer/internal/passwd"
	"zmailer/internal/web"
)

// access says who may come in.
func (w *webSettings) access(page *web.Config, dir string) error {
	if w.accounts != "" {
		page.Accounts = func() (*passwd.Accounts, error) {
			text, err := os.ReadFile(w.accounts)
			if err != nil {
				return nil, err
			}
			return passwd.Parse(w.accounts, text)
		}
		if _, err := page.Accounts(); err != nil {
			return &config.Error{File: w.accounts, Reason: "WEBACCOUNTS cannot be used", Err: err}
		}
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

// leastToken is the shortest token that is taken, in characters.
const leastToken = 16

// webToken reads the token's file, or makes it.
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
	n, _ := f.Read(b) // what is too short is told below
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
