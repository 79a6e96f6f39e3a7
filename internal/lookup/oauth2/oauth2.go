// Package oauth2 asks an authorization server whether a token is good, and whose it is: token
// introspection (RFC 7662).
//
// It owns nothing but its connection.
//
// Diagnostics: ErrRefused is a token that is not active, lacks a scope or is another user's. Any
// other error means that the answer is unknown now.
package oauth2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"zmailer/internal/lookup/settings"
)

// ErrRefused means that the token is not good.
var ErrRefused = errors.New("oauth2: refused")

// maxBody is how long an answer may be. Bytes.
const maxBody = 64 << 10

// Introspect returns the user of a token. claimed is the user that the client names; "": none.
func Introspect(ctx context.Context, c settings.OAuth2, timeout time.Duration, claimed, token string) (user string, err error) {
	if token == "" {
		return "", ErrRefused
	}
	config, err := settings.ClientTLS(c.CAFile)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{TLSClientConfig: config, DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxBody}
	client := &http.Client{Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	form := url.Values{"token": {token}, "token_type_hint": {"access_token"}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Accept", "application/json")
	request.SetBasicAuth(url.QueryEscape(c.ClientID), url.QueryEscape(c.ClientSecret)) // RFC 6749 section 2.3.1
	reply, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", c.URL, err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(io.LimitReader(reply.Body, maxBody+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("ask %s: %w", c.URL, err)
	case reply.StatusCode == http.StatusUnauthorized:
		return "", fmt.Errorf("ask %s: status 401: the server does not accept client_id and client_secret", c.URL)
	case reply.StatusCode != http.StatusOK:
		return "", fmt.Errorf("ask %s: status %d", c.URL, reply.StatusCode)
	case len(body) > maxBody:
		return "", fmt.Errorf("ask %s: the answer has more than %d bytes", c.URL, maxBody)
	}
	return check(c, body, claimed, time.Now())
}

// check reads the answer (RFC 7662 section 2.2).
func check(c settings.OAuth2, body []byte, claimed string, now time.Time) (string, error) {
	var all map[string]any
	if err := json.Unmarshal(body, &all); err != nil {
		return "", errors.New("the answer is not a JSON object")
	}
	active, ok := all["active"].(bool)
	if !ok {
		return "", errors.New("the answer has no member \"active\" that is true or false")
	}
	if !active {
		return "", ErrRefused
	}
	if end, ok := all["exp"].(float64); ok && now.Unix() >= int64(end) {
		return "", ErrRefused
	}
	if begin, ok := all["nbf"].(float64); ok && now.Unix() < int64(begin) {
		return "", ErrRefused
	}
	scope, _ := all["scope"].(string)
	has := strings.Fields(scope)
	for _, want := range c.Scopes {
		if !slices.Contains(has, want) {
			return "", ErrRefused
		}
	}
	user, _ := all[c.Username].(string)
	if user == "" {
		return "", fmt.Errorf("the answer has no member %q with the user's name; username = NAME in the settings says which one has it", c.Username)
	}
	if claimed != "" && !strings.EqualFold(claimed, user) {
		return "", ErrRefused // a token is good for its user alone
	}
	return user, nil
}
