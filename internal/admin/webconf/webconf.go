// Package webconf reads the settings of the pages of zmctl web, for zmweb, which serves them, and
// for check-config.
//
// It owns nothing, and nothing of it survives a crash.
//
// Diagnostics: every error is a *config.Error that names the line of zmailer.conf, or joins such.
package webconf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/lookup/passwd"
	"zmailer/internal/lookup/passwd/pam"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/listen"
)

const (
	defaultListen = "127.0.0.1:2580"
	// tokenFile is the default of WEBTOKEN, in the postoffice.
	tokenFile = ".web.token"
	// leastToken is the shortest token that is taken, in characters.
	leastToken = 16
	// resolveTime bounds the search for the address of a name in WEBLISTEN.
	resolveTime = 5 * time.Second
)

// Flags are those of zmctl web, which override the settings.
type Flags struct {
	Listen, Token, Accounts string
	Write                   bool
}

// Settings are those of the pages.
type Settings struct {
	Listen   string
	Token    string // the file with the token; empty if the pages have no token
	Accounts string // the file of accounts, or pam:SERVICE; "": none
	Write    bool
	Hostname string
	Hosts    []string
	Readers  []string
	Writers  []string
	Cert     string // "": no TLS
	Key      string

	set bool // some setting of the pages is in zmailer.conf
}

// From reads the settings. Files are not opened.
func From(c *config.Config, flags Flags) (Settings, error) {
	r := config.NewReader(c)
	s := Settings{
		Listen: r.String("WEBLISTEN", defaultListen), Token: r.String("WEBTOKEN", ""), Accounts: r.String("WEBACCOUNTS", ""),
		Write: r.Bool("WEBWRITE", false) || flags.Write, Hostname: r.Hostname(), Hosts: r.List("WEBHOSTS"),
		Readers: r.List("WEBREADERS"), Writers: r.List("WEBWRITERS"), Cert: beside(c, r.String("WEBCERT", "")), Key: beside(c, r.String("WEBKEY", "")),
	}
	for _, name := range []string{"WEBLISTEN", "WEBWRITE", "WEBTOKEN", "WEBACCOUNTS", "WEBCERT"} {
		s.set = s.set || c.String(name, "") != ""
	}
	if !s.ByPAM() {
		s.Accounts = beside(c, s.Accounts)
	}
	switch s.Token {
	case "off":
		s.Token = ""
	case "":
		s.Token = filepath.Join(c.PostOffice(), tokenFile)
	default:
		s.Token = beside(c, s.Token)
	}
	if flags.Listen != "" {
		s.Listen = flags.Listen
	}
	switch flags.Token {
	case "":
	case "off":
		s.Token = ""
	default:
		s.Token = flags.Token
	}
	if flags.Accounts != "" {
		s.Accounts = flags.Accounts
	}
	if (s.Cert == "") != (s.Key == "") {
		missing, there := "WEBCERT", "WEBKEY"
		if s.Key == "" {
			missing, there = there, missing
		}
		r.Use(there, errors.New("WEBCERT and WEBKEY belong together, and "+missing+" is not set"))
	}
	if s.Token == "" && s.Accounts == "" {
		r.Use("WEBTOKEN", errors.New("without a token no one could log in: set WEBACCOUNTS, too"))
	}
	if s.ByPAM() && len(s.Readers)+len(s.Writers) == 0 {
		r.Use("WEBACCOUNTS", errors.New("WEBREADERS and WEBWRITERS are empty: every user of this machine could see all mail"))
	}
	r.Use("WEBLISTEN", s.checkListen())
	return s, r.Err()
}

// beside returns a path that begins beside zmailer.conf.
func beside(c *config.Config, path string) string {
	if path == "" || filepath.IsAbs(path) || c.Dir == "" {
		return path
	}
	return filepath.Join(c.Dir, path)
}

// ByPAM reports whether accounts are those of this machine.
func (s *Settings) ByPAM() bool { return strings.HasPrefix(s.Accounts, "pam:") }

// checkListen reports an address that cannot be listened on, or that other machines reach without
// TLS. The port is not tried: the running server has it.
func (s *Settings) checkListen() error {
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return errors.New(s.Listen + " is not host:port, like 127.0.0.1:2580 or [::1]:2580")
	}
	at, err := net.ResolveTCPAddr("tcp", s.Listen)
	if err != nil {
		return err
	}
	if s.Cert == "" && !at.IP.IsLoopback() {
		return errors.New(s.Listen + " is reached from other machines: set WEBCERT and WEBKEY, or use 127.0.0.1 and ssh -L")
	}
	if at.IP == nil || at.IP.IsUnspecified() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTime)
	defer cancel()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return fmt.Errorf("%s is no address of this machine: %w", host, err)
	}
	return l.Close()
}

// Certificates opens the certificate; nil: none is set. For one that cannot be used there may be a
// copy of what could.
func (s *Settings) Certificates(c *config.Config, log *slog.Logger) (*listen.Certificates, error) {
	if s.Cert == "" || s.Key == "" {
		return nil, nil
	}
	certs, err := listen.OpenCertificates(listen.CertificateFiles{Certs: []string{s.Cert}, Keys: []string{s.Key}, Keeper: c.Keeper()}, time.Now, log)
	return certs, c.Locate(err)
}

// OpenAccounts reads the file of accounts, or looks for the service of PAM.
func (s *Settings) OpenAccounts() error {
	if service, ok := strings.CutPrefix(s.Accounts, "pam:"); ok {
		_, err := pam.New(service, "")
		return err
	}
	if s.Accounts == "" {
		return nil
	}
	_, err := ReadAccounts(s.Accounts)
	return err
}

// ReadAccounts reads a file of accounts.
func ReadAccounts(path string) (*passwd.Accounts, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	return passwd.Parse(path, text)
}

// fileError makes a *config.Error, with the path in front.
func fileError(path string, err error) error {
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		err = perr.Err
	}
	return &config.Error{File: path, Reason: "cannot be read", Err: err}
}

// ReadToken reads the file of the token. fs.ErrNotExist: it is not there; the next start makes it.
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err != nil {
		return "", fileError(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fileError(path, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return "", fileError(path, err)
	}
	token := strings.TrimSpace(string(text))
	switch {
	case info.Mode().Perm()&0o077 != 0:
		return "", &config.Error{File: path, Reason: fmt.Sprintf("its mode is %v: others may read the token", info.Mode().Perm()), Remedy: "chmod 600 " + path}
	case len(token) < leastToken:
		return "", &config.Error{File: path, Reason: fmt.Sprintf("the token has fewer than %d characters", leastToken), Remedy: "remove the file, and the next start makes one"}
	}
	return token, nil
}

// Check returns all errors of the settings and of the files that they name. Where no setting of the
// pages is made, only the rest is checked.
func Check(c *config.Config) error {
	s, err := From(c, Flags{})
	_, cerr := s.Certificates(c, slog.New(slog.DiscardHandler))
	err = errors.Join(err, cerr)
	if aerr := s.OpenAccounts(); aerr != nil {
		err = errors.Join(err, c.At("WEBACCOUNTS", aerr))
	}
	if s.Token != "" && s.set {
		if _, terr := ReadToken(s.Token); terr != nil && !errors.Is(terr, fs.ErrNotExist) {
			err = errors.Join(err, c.At("WEBTOKEN", terr))
		}
	}
	return err
}
