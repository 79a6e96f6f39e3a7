// Package web looks keys up in a web service, which answers a GET with JSON or text.
//
// It owns nothing but its connections, which are made when they are needed.
//
// Diagnostics: every error means that the answer is unknown now. A key has no value only if
// the service answers with status 204, with 200 and null, false or an empty list, or with 404 if the
// settings say that this means it.
package web

import (
	"bytes"
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
	"unicode/utf8"

	"zmailer/internal/lookup/settings"
)

// maxBody is how long an answer may be.
const maxBody = 1 << 20

// Service is a service that is asked. One goroutine at a time may use it.
type Service struct {
	c      settings.HTTP
	client *http.Client
}

// Open prepares a service; it is connected to when it is asked first.
func Open(c settings.HTTP, timeout time.Duration) (*Service, error) {
	tls, err := settings.ClientTLS(c.CAFile)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = tls
	transport.Proxy = nil
	transport.MaxResponseHeaderBytes = 64 << 10
	transport.DisableCompression = true
	return &Service{c: c, client: &http.Client{
		Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Lookup asks the service for a key.
func (s *Service) Lookup(ctx context.Context, key string) (string, bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.c.Fill(key), nil)
	if err != nil {
		return "", false, err
	}
	request.Header.Set("User-Agent", "zmailer")
	request.Header.Set("Accept", map[bool]string{true: "application/json", false: "text/plain"}[s.c.JSON])
	if s.c.Authorization != "" {
		request.Header.Set("Authorization", s.c.Authorization)
	}
	reply, err := s.client.Do(request)
	if err != nil {
		if uerr := (*url.Error)(nil); errors.As(err, &uerr) {
			err = uerr.Err // the URL has the key
		}
		return "", false, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(io.LimitReader(reply.Body, maxBody+1))
	if err != nil {
		return "", false, fmt.Errorf("status %d: %w", reply.StatusCode, err)
	}
	switch {
	case len(body) > maxBody:
		return "", false, fmt.Errorf("the answer has more than %d bytes", maxBody)
	case reply.StatusCode == http.StatusNoContent || reply.StatusCode == http.StatusNotFound && s.c.NotFound:
		return "", false, nil
	case reply.StatusCode == http.StatusNotFound:
		return "", false, errors.New("status 404; if that means that there is no such key, set not_found = 404")
	case reply.StatusCode != http.StatusOK:
		return "", false, fmt.Errorf("status %d", reply.StatusCode)
	}
	if !s.c.JSON && reply.ContentLength < 0 && !slices.Contains(reply.TransferEncoding, "chunked") {
		// RFC 9112 section 8: nothing shows whether the end of the connection is that of the text.
		return "", false, errors.New("the answer has no Content-Length, so that its text may have been cut; with format = text the service has to send one")
	}
	if !s.c.JSON {
		return s.text(string(body))
	}
	return s.json(body)
}

// text takes a value from lines of text.
func (s *Service) text(body string) (string, bool, error) {
	if !utf8.ValidString(body) || strings.ContainsRune(body, 0) {
		return "", false, errors.New("the answer is not text in UTF-8")
	}
	return s.join(strings.FieldsFunc(body, func(r rune) bool { return r == '\n' || r == '\r' }))
}

// json takes a value from a JSON document.
func (s *Service) json(body []byte) (string, bool, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return "", false, fmt.Errorf("the answer is not JSON: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return "", false, errors.New("the answer is more than one JSON value")
	}
	for _, name := range s.c.Value {
		if value == nil {
			return "", false, nil
		}
		object, ok := value.(map[string]any)
		if !ok {
			return "", false, fmt.Errorf("the answer has no object that could have a member %q", name)
		}
		if value, ok = object[name]; !ok {
			return "", false, fmt.Errorf("the answer has no member %q; null means that there is no such key", name)
		}
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	var values []string
	for _, each := range list {
		switch v := each.(type) {
		case nil:
		case string:
			values = append(values, v)
		case json.Number:
			values = append(values, v.String())
		case bool: // of a service that answers whether there is such a key
			if v {
				values = append(values, "true")
			}
		default:
			return "", false, errors.New("the value in the answer is no string, number or list of them")
		}
	}
	return s.join(values)
}

func (s *Service) join(values []string) (string, bool, error) {
	if len(values) > s.c.Limit {
		return "", false, fmt.Errorf("%d values for one key: limit is %d", len(values), s.c.Limit)
	}
	return strings.Join(values, ", "), len(values) > 0, nil
}

// Close ends the connections.
func (s *Service) Close() error {
	s.client.CloseIdleConnections()
	return nil
}
