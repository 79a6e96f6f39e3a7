package lookup

import (
	"context"
	"errors"
	"io"
	"time"

	"zmailer/internal/lookup/ldap"
	"zmailer/internal/lookup/oauth2"
	"zmailer/internal/lookup/pam"
	"zmailer/internal/lookup/settings"
	"zmailer/internal/run/config"
)

// Credentials is one question about a user's password or token; it is answered as those of PAM are.
type Credentials struct {
	Scheme  string        // ldap-bind or oauth2
	File    string        // of its settings
	Open    settings.Open // of the file and those of passwords; nil: as this process may
	Timeout time.Duration
	In      io.Reader
	Out     io.Writer
}

// IsCredentials reports whether a word is a scheme of Credentials.
func IsCredentials(scheme string) bool { return scheme == "ldap-bind" || scheme == "oauth2" }

// CheckCredentials answers one question.
func CheckCredentials(ctx context.Context, c Credentials) error {
	q, err := pam.ReadQuestion(c.In)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	user, err := c.verify(ctx, q)
	v := pam.Verdict{Result: pam.Ok, User: user}
	switch {
	case errors.Is(err, ldap.ErrRefused) || errors.Is(err, oauth2.ErrRefused):
		v = pam.Verdict{Result: pam.Refused}
	case err != nil:
		v = pam.Verdict{Result: pam.Trouble, Reason: err.Error()}
	}
	return pam.WriteVerdict(c.Out, v)
}

func (c Credentials) verify(ctx context.Context, q pam.Question) (string, error) {
	if c.Scheme == "ldap-bind" {
		s, err := settings.ReadLDAPBind(c.Open, c.File)
		if err != nil {
			return "", err
		}
		return q.User, ldap.Bind(ctx, s, c.Timeout, q.User, q.Password)
	}
	if c.Scheme != "oauth2" {
		return "", &config.Error{File: c.Scheme, Reason: "want ldap-bind or oauth2"}
	}
	s, err := settings.ReadOAuth2(c.Open, c.File)
	if err != nil {
		return "", err
	}
	return oauth2.Introspect(ctx, s, c.Timeout, q.User, q.Password)
}
