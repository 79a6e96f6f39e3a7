package ldap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/go-ldap/ldap/v3"
	"golang.org/x/text/unicode/norm"

	"zmailer/internal/lookup/settings"
)

// ErrRefused means that there is no such user, or that the password is wrong.
var ErrRefused = errors.New("ldap: refused")

// Bind checks a user's password: it finds the user's entry by the filter, and binds as it. Any
// error but ErrRefused means that the answer is unknown now.
func Bind(ctx context.Context, c settings.LDAP, timeout time.Duration, user, password string) error {
	// RFC 4513 section 5.1.2: a bind with a name and without a password succeeds, as no one.
	if user == "" || password == "" || !isOneSpelling(user) {
		return ErrRefused
	}
	d, err := Open(c, timeout)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.connect(ctx); err != nil {
		return err
	}
	dn, err := d.entry(user)
	if err != nil {
		return err
	}
	as := *d
	as.c.BindDN, as.c.Password, as.conn = dn, password, nil
	defer as.Close()
	err = as.connect(ctx)
	for _, code := range []uint16{ldap.LDAPResultInvalidCredentials, ldap.LDAPResultInappropriateAuthentication, ldap.LDAPResultNoSuchObject} {
		if ldap.IsErrorAnyOf(err, code) || joined(err, code) {
			return ErrRefused
		}
	}
	return err
}

// isOneSpelling reports whether a directory sees no other name in a user's than we do, but for
// capitals. It ignores blanks and invisible characters and knows several forms of a letter (RFC
// 4518 section 2.2 ff.): each spelling would have a rate limit of its own.
func isOneSpelling(user string) bool {
	return user == strings.Join(strings.Fields(user), " ") && norm.NFKC.IsNormalString(user) &&
		!strings.ContainsFunc(user, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.Is(unicode.Variation_Selector, r) })
}

// joined reports whether one of several servers has answered with a code.
func joined(err error, code uint16) bool {
	lerr := (*ldap.Error)(nil)
	return errors.As(err, &lerr) && lerr.ResultCode == code
}

// entry returns the name of the one entry that is the user's.
func (d *Directory) entry(user string) (string, error) {
	result, err := d.conn.Search(d.request(user, none))
	switch {
	case err != nil:
		return "", fmt.Errorf("search below %q: %w", d.c.Base, err)
	case len(result.Referrals) > 0 && !d.c.IgnoreReferrals:
		return "", fmt.Errorf("search below %q: the rest is elsewhere, at %s; referrals = ignore does without it", d.c.Base, strings.Join(result.Referrals, " "))
	case len(result.Entries) == 0:
		return "", ErrRefused
	case len(result.Entries) > 1:
		return "", fmt.Errorf("search below %q: the filter finds more than one entry of the user; it has to find one", d.c.Base)
	}
	return result.Entries[0].DN, nil
}
