package auth

import (
	"context"
	"errors"

	checker "zmailer/internal/lookup/passwd/pam"
	"zmailer/internal/run/config"
)

// pam asks PAM for each password.
type pam struct {
	c    *checker.Checker
	away *config.Outage
}

func newPAM(service string, o Options, away *config.Outage) (*pam, error) {
	c, err := checker.New(service, o.Programs)
	if err != nil {
		return nil, &config.Error{File: "pam:" + service, Reason: "cannot be used", Err: err}
	}
	return &pam{c, away}, nil
}

// Mechanisms implements Backend.
func (p *pam) Mechanisms(context.Context) []string { return []string{Plain, Login} }

// Start implements Backend.
func (p *pam) Start(_ context.Context, mechanism string, peer Peer) (Exchange, error) {
	host := ""
	if peer.Remote.IsValid() {
		host = peer.Remote.Addr().Unmap().WithZone("").String()
	}
	return passwords(mechanism, func(ctx context.Context, user, password string) (string, error) {
		user, err := p.c.Verify(ctx, user, password, host)
		if errors.Is(err, checker.ErrRefused) {
			err = ErrRefused
		}
		return user, answered(p.away, err)
	})
}
