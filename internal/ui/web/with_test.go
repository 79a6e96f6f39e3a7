package web

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Op11: after a reload users stay logged in if what they logged in with is still valid; else their
// sessions have no rights.
func TestOp11SessionsOutliveAReloadIfTheirLoginDoes(t *testing.T) {
	login := func(context.Context, string, string, string) (string, error) { return "", nil }
	config := func(token, accounts string) Config {
		c := Config{Token: token, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
		if accounts != "" {
			c.Login, c.Account = login, func(name string) (string, error) { return accounts + name, nil }
		}
		return c
	}
	for name, tt := range map[string]struct {
		next            Config
		bearer, account Right
	}{
		"nothing has changed": {config("token", "file"), MayWrite, MayWrite},
		"another token":       {config("other", "file"), NoRight, MayWrite},
		"no token":            {config("", "file"), NoRight, MayWrite},
		"other accounts":      {config("token", "pam"), MayWrite, NoRight},
		"no accounts":         {config("token", ""), MayWrite, NoRight},
	} {
		p := New(config("token", "file"))
		bearer, account := &session{account: digest("token")}, &session{name: "anna", account: "fileanna"}
		cookies := []string{p.gate.sessions.begin(bearer), p.gate.sessions.begin(account)}
		q := p.With(tt.next)
		assert.Equal(t, q.gate.may(q.gate.sessions.find(cookies[0]), cookies[0]), tt.bearer, name+", token")
		assert.Equal(t, q.gate.may(q.gate.sessions.find(cookies[1]), cookies[1]), tt.account, name+", account")
	}
}
