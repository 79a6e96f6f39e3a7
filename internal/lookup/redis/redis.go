// Package redis looks keys up in a Redis or Valkey server, by a command of the postmaster's.
//
// It owns nothing but its connection, which is made when it is needed.
//
// Diagnostics: every error means that the answer is unknown now: no server can be reached,
// or it answers with an error. A key has no value only if the server answers with null, with
// an empty list or with 0.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"zmailer/internal/lookup/settings"
)

// Server is a server that is asked. One goroutine at a time may use it.
type Server struct {
	c       settings.Redis
	timeout time.Duration
	tls     *tls.Config
	conn    redis.Conn // nil: not connected
}

// Open prepares a server; it is connected to when it is asked first.
func Open(c settings.Redis, timeout time.Duration) (*Server, error) {
	config, err := settings.ClientTLS(c.CAFile)
	return &Server{c: c, timeout: timeout, tls: config}, err
}

// Lookup runs the command for a key. A string or number is the value; those of a list are the
// value with commas between.
func (s *Server) Lookup(ctx context.Context, key string) (string, bool, error) {
	fresh := s.conn == nil
	text, ok, err := s.ask(ctx, key)
	if err != nil && !fresh && ctx.Err() == nil && !answered(err) {
		// The server may have ended the idle connection long ago.
		text, ok, err = s.ask(ctx, key)
	}
	return text, ok, err
}

// answered reports whether an error is the server's answer.
func answered(err error) bool {
	rerr := redis.Error("")
	return errors.As(err, &rerr)
}

func (s *Server) ask(ctx context.Context, key string) (string, bool, error) {
	if err := s.connect(ctx); err != nil {
		return "", false, err
	}
	words := s.c.Words(key)
	var args []any
	for _, word := range words[1:] {
		args = append(args, word)
	}
	reply, err := redis.DoContext(s.conn, ctx, words[0], args...)
	if err != nil {
		// After an error other than an answer the connection is of no more use; after an
		// answer it may be that of a server that has lost its role.
		return "", false, errors.Join(fmt.Errorf("%s: %w", words[0], err), s.Close())
	}
	switch v := reply.(type) {
	case nil:
		return "", false, nil
	case int64:
		return strconv.FormatInt(v, 10), v != 0, nil
	case []byte:
		return string(v), true, nil
	case []any:
		var values []string
		for _, each := range v {
			if text, ok := each.([]byte); ok {
				values = append(values, string(text))
			} else if each != nil {
				return "", false, fmt.Errorf("%s answers with a list of %T: want one of strings", words[0], each)
			}
		}
		return strings.Join(values, ", "), len(values) > 0, nil
	}
	return "", false, fmt.Errorf("%s answers with %T: want a string, a number or a list", words[0], reply)
}

// connect connects to the first server that answers.
func (s *Server) connect(ctx context.Context) error {
	if s.conn != nil && s.conn.Err() == nil {
		return nil
	}
	s.conn = nil
	var errs []error
	for _, server := range s.c.Servers {
		host, _, _ := net.SplitHostPort(server.Address)
		config := s.tls.Clone()
		config.ServerName = host
		conn, err := redis.DialContext(ctx, server.Network, server.Address,
			redis.DialUseTLS(s.c.TLS && server.Network == "tcp"), redis.DialTLSConfig(config),
			redis.DialUsername(s.c.User), redis.DialPassword(s.c.Password), redis.DialDatabase(s.c.Database),
			redis.DialConnectTimeout(s.timeout), redis.DialReadTimeout(s.timeout), redis.DialWriteTimeout(s.timeout))
		if err == nil {
			s.conn = conn
			return nil
		}
		if errs = append(errs, fmt.Errorf("%s: %w", server.Address, err)); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// Close ends the connection.
func (s *Server) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}
