package auth

import (
	"bytes"
	"context"
	"errors"
	"strings"

	checker "zmailer/internal/lookup/passwd/pam"
	"zmailer/internal/run/config"
)

// Names of mechanisms with tokens.
const (
	OAuthBearer = "OAUTHBEARER" // RFC 7628
	XOAuth2     = "XOAUTH2"     // Google's, before that
)

// tokens has an authorization server asked about each token (RFC 7662).
type tokens struct {
	c    *checker.Checker
	away *config.Outage
}

func newTokens(path string, o Options, away *config.Outage) (*tokens, error) {
	c, err := checker.NewChild("the authorization server", o.Programs, "oauth2", path)
	if err != nil {
		return nil, &config.Error{File: "AUTH=oauth2:" + path, Reason: "cannot be used", Err: err}
	}
	c.Attach = o.attach(path)
	return &tokens{c, away}, nil
}

// Mechanisms implements Backend.
func (t *tokens) Mechanisms(context.Context) []string { return []string{OAuthBearer, XOAuth2} }

// Start implements Backend.
func (t *tokens) Start(_ context.Context, mechanism string, _ Peer) (Exchange, error) {
	if mechanism != OAuthBearer && mechanism != XOAuth2 {
		return nil, ErrMechanism
	}
	return &bearer{t: t, mechanism: mechanism}, nil
}

// bearer is one exchange with a token.
type bearer struct {
	t             *tokens
	mechanism     string
	user, claimed string
	begun         bool
	refused       bool
}

// Next implements Exchange.
func (b *bearer) Next(ctx context.Context, response []byte) ([]byte, bool, error) {
	switch {
	case b.refused:
		return nil, false, ErrRefused // whatever the client says of the error
	case response == nil && !b.begun:
		b.begun = true
		return nil, false, nil // the client speaks first
	}
	b.begun = true
	user, token, ok := parseToken(b.mechanism, response)
	if !ok {
		return nil, false, ErrSyntax
	}
	b.claimed = user
	user, err := b.t.c.Verify(ctx, user, token, "")
	if errors.Is(err, checker.ErrRefused) {
		err = ErrRefused
	}
	if answered(b.t.away, err) == ErrRefused {
		// RFC 7628 section 3.2.2: the error is a challenge, to which the client has to respond.
		b.refused = true
		return []byte(`{"status":"invalid_token","schemes":"bearer"}`), false, nil
	}
	if err != nil {
		return nil, false, err
	}
	b.user, b.claimed = user, user
	return nil, true, nil
}

func (b *bearer) User() string    { return b.user }
func (b *bearer) Claimed() string { return b.claimed }
func (b *bearer) Close()          {}

// parseToken reads a client's response: "n,a=USER,^A...^Aauth=Bearer TOKEN^A^A" of OAUTHBEARER,
// "user=USER^Aauth=Bearer TOKEN^A^A" of XOAUTH2.
func parseToken(mechanism string, response []byte) (user, token string, ok bool) {
	pairs, ok := bytes.CutSuffix(response, []byte("\x01\x01"))
	if !ok || bytes.IndexByte(response, 0) >= 0 {
		return "", "", false
	}
	f := strings.Split(string(pairs), "\x01")
	if mechanism == OAuthBearer {
		head := strings.Split(f[0], ",") // RFC 5801 section 4: gs2-header
		if len(head) != 3 || head[0] != "n" && head[0] != "y" || head[2] != "" {
			return "", "", false
		}
		if head[1] != "" {
			name, named := strings.CutPrefix(head[1], "a=")
			if name, err := unescapeName(name); named && err == nil {
				user = name
			} else {
				return "", "", false
			}
		}
		f = f[1:]
	}
	for _, pair := range f {
		key, value, _ := strings.Cut(pair, "=")
		switch {
		case key == "user" && mechanism == XOAuth2:
			user = value
		case key == "auth":
			scheme, rest, _ := strings.Cut(value, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return "", "", false
			}
			token = strings.TrimSpace(rest)
		}
	}
	return user, token, token != "" && (mechanism == OAuthBearer || user != "")
}
