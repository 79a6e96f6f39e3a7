package auth

import (
	"context"
	"errors"

	checker "zmailer/internal/lookup/passwd/pam"
	"zmailer/internal/run/config"
)

// directory has each password checked by a bind to an LDAP directory.
type directory struct {
	c    *checker.Checker
	away *config.Outage
}

func newDirectory(path string, o Options, away *config.Outage) (*directory, error) {
	c, err := checker.NewChild("the LDAP directory", o.Programs, "ldap-bind", path)
	if err != nil {
		return nil, &config.Error{File: "AUTH=ldap:" + path, Reason: "cannot be used", Err: err}
	}
	c.Attach = o.attach(path)
	return &directory{c, away}, nil
}

// Mechanisms implements Backend.
func (d *directory) Mechanisms(context.Context) []string { return []string{Plain, Login} }

// Start implements Backend.
func (d *directory) Start(_ context.Context, mechanism string, _ Peer) (Exchange, error) {
	return passwords(mechanism, func(ctx context.Context, user, password string) (string, error) {
		user, err := d.c.Verify(ctx, user, password, "")
		if errors.Is(err, checker.ErrRefused) {
			err = ErrRefused
		}
		return user, answered(d.away, err)
	})
}

// several are backends of which each has mechanisms of its own: passwords here, tokens there.
// Where two have a mechanism, the first one is asked.
type several []Backend

// Mechanisms implements Backend.
func (s several) Mechanisms(ctx context.Context) (list []string) {
	for _, b := range s {
		list = append(list, b.Mechanisms(ctx)...)
	}
	return list
}

// Start implements Backend.
func (s several) Start(ctx context.Context, mechanism string, p Peer) (Exchange, error) {
	for _, b := range s {
		e, err := b.Start(ctx, mechanism, p)
		if !errors.Is(err, ErrMechanism) {
			return e, err
		}
	}
	return nil, ErrMechanism
}
