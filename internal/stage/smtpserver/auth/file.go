package auth

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/xdg-go/scram"

	"zmailer/internal/lookup/passwd"
	"zmailer/internal/run/config"
)

// file is a file of accounts.
type file struct {
	accounts *config.File[*passwd.Accounts]
	// turns limits how many passwords are hashed at a time: one takes 20 MB and a
	// processor.
	turns chan struct{}
}

func openFile(path string, o Options) (*file, error) {
	accounts, err := config.OpenFile(path, passwd.Parse, config.FileOptions{Required: true, Secret: true, Keeper: o.Keeper, Now: o.Now, Log: o.Log})
	if err != nil {
		return nil, err
	}
	return &file{accounts: accounts, turns: make(chan struct{}, runtime.GOMAXPROCS(0))}, nil
}

// Mechanisms implements Backend. SCRAM is offered when one user can use it: the others'
// clients fall back when it fails.
func (f *file) Mechanisms(context.Context) []string {
	if f.accounts.Current().HasSCRAM() {
		return []string{ScramSHA256, Plain, Login}
	}
	return []string{Plain, Login}
}

// Start implements Backend.
func (f *file) Start(_ context.Context, mechanism string, _ Peer) (Exchange, error) {
	if mechanism == ScramSHA256 {
		return newScram(f.accounts.Current())
	}
	return passwords(mechanism, f.verify)
}

func (f *file) verify(ctx context.Context, user, password string) (string, error) {
	select {
	case f.turns <- struct{}{}:
		defer func() { <-f.turns }()
	case <-ctx.Done():
		return "", fmt.Errorf("check a password: %w", ctx.Err())
	}
	if f.accounts.Current().Verify(user, password) != nil {
		return "", ErrRefused
	}
	return user, nil
}

// scramExchange is SCRAM-SHA-256 without channel binding (RFC 7677, RFC 5802).
type scramExchange struct {
	conversation *scram.ServerConversation
	claimed      string
	step         int
}

func newScram(a *passwd.Accounts) (*scramExchange, error) {
	e := &scramExchange{}
	server, err := scram.SHA256.NewServer(func(name string) (scram.StoredCredentials, error) {
		user, err := unescapeName(name)
		if err != nil {
			return scram.StoredCredentials{}, err
		}
		e.claimed = user
		keys := a.SCRAM(user)
		return scram.StoredCredentials{
			KeyFactors: scram.KeyFactors{Salt: string(keys.Salt), Iters: keys.Iterations},
			StoredKey:  keys.StoredKey, ServerKey: keys.ServerKey,
		}, nil
	})
	if err != nil {
		return nil, err
	}
	e.conversation = server.NewConversation()
	return e, nil
}

// unescapeName undoes what saslname is written in (RFC 5802 §5.1).
func unescapeName(name string) (string, error) {
	for i := 0; i < len(name); i++ {
		if name[i] == '=' && !strings.HasPrefix(name[i:], "=2C") && !strings.HasPrefix(name[i:], "=3D") {
			return "", errors.New("bad escape in the name")
		}
	}
	return strings.NewReplacer("=2C", ",", "=3D", "=").Replace(name), nil
}

func (e *scramExchange) Next(_ context.Context, response []byte) ([]byte, bool, error) {
	if response == nil && e.step == 0 {
		return nil, false, nil // the client speaks first
	}
	e.step++
	switch e.step {
	case 1, 2:
		text, err := e.conversation.Step(string(response))
		switch {
		case err != nil && e.step == 1:
			return nil, false, ErrSyntax
		case err != nil:
			return nil, false, ErrRefused
		case e.step == 1 && e.conversation.AuthzID() != "" && e.conversation.AuthzID() != e.conversation.Username():
			return nil, false, ErrRefused // no user may act for another
		}
		return []byte(text), false, nil
	case 3:
		// The client has the server's signature, and its response is empty.
		if len(response) == 0 && e.conversation.Valid() {
			return nil, true, nil
		}
	}
	return nil, false, ErrSyntax
}

func (e *scramExchange) User() string    { return e.claimed }
func (e *scramExchange) Claimed() string { return e.claimed }
func (e *scramExchange) Close()          {}
