// Package ldap looks keys up in an LDAP directory, by a filter of the postmaster's.
//
// It owns nothing but its connection, which is made when it is needed.
//
// Diagnostics: every error means that the answer is unknown now. No entry, or entries without the
// attributes, is a "no such key" only if the server has answered the search with success
// and sent no referral: a base that is not there, a limit that was reached or a
// referral is an error.
package ldap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	ber "github.com/go-asn1-ber/asn1-ber"
	"github.com/go-ldap/ldap/v3"

	"zmailer/internal/lookup/settings"
)

// maxMessage is how long one message of a server may be, which is one entry. Bytes. The library
// would make room for whatever length a server announces.
const maxMessage = 4 << 20

func init() { ber.MaxPacketLengthBytes = maxMessage } // the library has this setting nowhere else

// Directory is a directory that is asked. One goroutine at a time may use it.
type Directory struct {
	c       settings.LDAP
	timeout time.Duration
	tls     *tls.Config
	conn    *ldap.Conn // nil: not connected
}

// Open prepares a directory; it is connected to when it is asked first.
func Open(c settings.LDAP, timeout time.Duration) (*Directory, error) {
	config, err := settings.ClientTLS(c.CAFile)
	if err != nil {
		return nil, err
	}
	d := &Directory{c: c, timeout: timeout, tls: config}
	if _, err := ldap.CompileFilter(c.Fill("x@example.org", ldap.EscapeFilter)); err != nil {
		return nil, fmt.Errorf("filter %s: %w", c.Filter, err)
	}
	return d, nil
}

// Lookup searches for a key. The values of the attributes are the value, with commas
// between; with no attributes asked for, an entry is enough.
func (d *Directory) Lookup(ctx context.Context, key string) (string, bool, error) {
	fresh := d.conn == nil
	text, ok, err := d.search(ctx, key)
	if err != nil && !fresh && ctx.Err() == nil && broken(err) {
		// The server may have ended the idle connection long ago.
		text, ok, err = d.search(ctx, key)
	}
	return text, ok, err
}

// broken reports whether an error is of the connection and not of the server's answer.
func broken(err error) bool {
	lerr := (*ldap.Error)(nil)
	if errors.Is(err, ldap.ErrSizeLimitExceeded) {
		return false
	}
	return !errors.As(err, &lerr) || lerr.ResultCode == ldap.ErrorNetwork || lerr.ResultCode == ldap.LDAPResultUnavailable
}

func (d *Directory) search(ctx context.Context, key string) (string, bool, error) {
	if d.conn == nil || d.conn.IsClosing() {
		d.drop()
		if err := d.connect(ctx); err != nil {
			return "", false, err
		}
	}
	// The library's own limit is of each message; this one is of all.
	conn := d.conn
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	attributes := d.c.Attributes
	if len(attributes) == 0 {
		attributes = none
	}
	result, err := conn.Search(d.request(key, attributes))
	if err != nil {
		if broken(err) || errors.Is(err, ldap.ErrSizeLimitExceeded) {
			d.drop() // of a server that sends too many entries, the others are not read
		}
		return "", false, fmt.Errorf("search below %q: %w", d.c.Base, err)
	}
	if len(result.Referrals) > 0 && !d.c.IgnoreReferrals {
		return "", false, fmt.Errorf("search below %q: the rest is elsewhere, at %s; referrals = ignore does without it", d.c.Base, strings.Join(result.Referrals, " "))
	}
	var values []string
	for _, entry := range result.Entries {
		for _, name := range d.c.Attributes {
			values = append(values, entry.GetEqualFoldAttributeValues(name)...)
		}
	}
	found := len(values) > 0 || len(d.c.Attributes) == 0 && len(result.Entries) > 0
	return strings.Join(values, ", "), found, nil
}

// none asks for entries without attributes (RFC 4511 section 4.5.1.8).
var none = []string{"1.1"}

// request asks for the entries of a key. A server that does not keep to the limit of entries is not
// listened to behind it.
func (d *Directory) request(key string, attributes []string) *ldap.SearchRequest {
	scope := map[string]int{"base": ldap.ScopeBaseObject, "one": ldap.ScopeSingleLevel, "sub": ldap.ScopeWholeSubtree}[d.c.Scope]
	request := ldap.NewSearchRequest(d.c.Base, scope, ldap.NeverDerefAliases, d.c.Limit,
		max(1, int(d.timeout/time.Second)), false, d.c.Fill(key, ldap.EscapeFilter), attributes, nil)
	request.EnforceSizeLimit = true
	return request
}

// connect connects to the first server that answers, and binds.
func (d *Directory) connect(ctx context.Context) error {
	var errs []error
	for _, u := range d.c.URLs {
		conn, err := d.dial(ctx, u)
		if err == nil {
			d.conn = conn
			return nil
		}
		if errs = append(errs, fmt.Errorf("%s: %w", u, err)); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func (d *Directory) dial(ctx context.Context, u string) (*ldap.Conn, error) {
	dialer := &net.Dialer{Timeout: d.timeout}
	if end, ok := ctx.Deadline(); ok {
		dialer.Deadline = end
	}
	conn, err := ldap.DialURL(u, ldap.DialWithDialer(dialer), ldap.DialWithTLSConfig(d.tls))
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetTimeout(d.timeout)
	if d.c.StartTLS {
		host, _, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimSuffix(u, "/"), "ldap://"))
		if err != nil {
			host = strings.TrimPrefix(strings.TrimSuffix(u, "/"), "ldap://")
		}
		t := d.tls.Clone()
		t.ServerName = strings.Trim(host, "[]")
		if err := conn.StartTLS(t); err != nil {
			conn.Close()
			return nil, fmt.Errorf("start_tls: %w", err)
		}
	}
	if d.c.BindDN != "" {
		if err := conn.Bind(d.c.BindDN, d.c.Password); err != nil {
			conn.Close()
			return nil, fmt.Errorf("bind as %s: %w", d.c.BindDN, err)
		}
	}
	return conn, nil
}

func (d *Directory) drop() {
	if d.conn != nil {
		d.conn.Close()
	}
	d.conn = nil
}

// Close ends the connection.
func (d *Directory) Close() error {
	d.drop()
	return nil
}
