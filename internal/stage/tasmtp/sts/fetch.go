package sts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	// fetchTime bounds a fetch, and maxPolicy what is read of it (RFC 8461 §3.3).
	fetchTime = time.Minute
	maxPolicy = 64 << 10
)

// fetch gets a domain's policy over HTTPS. The server's certificate must be good, and
// nothing is followed elsewhere (RFC 8461 §3.3).
func (s *Store) fetch(ctx context.Context, name string) (*Policy, *Error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	text, err := s.get(ctx, "mta-sts."+name)
	if err != nil {
		kind := FetchError
		if bad := (*tls.CertificateVerificationError)(nil); errors.As(err, &bad) {
			kind = WebPKIFailed
		}
		return nil, &Error{Domain: name, Type: kind, Err: err}
	}
	p, err := Parse(text)
	if err != nil {
		return nil, &Error{Domain: name, Type: Invalid, Err: err}
	}
	p.Domain = name
	return p, nil
}

func (s *Store) get(ctx context.Context, host string) (string, error) {
	client := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:        &tls.Config{RootCAs: s.cfg.Roots, ServerName: host, MinVersion: tls.VersionTLS12},
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx, host) },
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: maxPolicy,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/.well-known/mta-sts.txt", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("https://%s says %s", host, resp.Status)
	}
	// RFC 8461 §3.3: a place where anybody may put pictures is not the domain's word.
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "text/plain" {
		return "", fmt.Errorf("https://%s gives %.80q instead of text/plain", host, resp.Header.Get("Content-Type"))
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxPolicy+1))
	if err == nil && len(b) > maxPolicy {
		err = fmt.Errorf("https://%s gives more than %d bytes", host, maxPolicy)
	}
	return string(b), err
}

// dial connects to the first address that takes us.
func (s *Store) dial(ctx context.Context, host string) (net.Conn, error) {
	addrs, err := s.cfg.Addrs(ctx, host)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: 20 * time.Second}
	last := errors.New("it has no address")
	for _, a := range addrs {
		nc, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(a.String(), strconv.Itoa(s.cfg.Port)))
		if err == nil {
			return nc, nil
		}
		last = err
	}
	return nil, last
}
