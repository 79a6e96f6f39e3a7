package auth

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"zmailer/internal/run/config"
)

// saslauthdTime is how long saslauthd may take; it asks other machines.
const saslauthdTime = 30 * time.Second

// maxSaslauthd is how long a word of its protocol may be. Bytes.
const maxSaslauthd = 1 << 10

// saslauthd asks Cyrus SASL's saslauthd(8), by the protocol of its socket mux: four words, each
// behind its length, and one that answers.
type saslauthd struct {
	socket string
	away   *config.Outage
}

// Mechanisms implements Backend.
func (s *saslauthd) Mechanisms(context.Context) []string { return []string{Plain, Login} }

// Start implements Backend.
func (s *saslauthd) Start(_ context.Context, mechanism string, _ Peer) (Exchange, error) {
	return passwords(mechanism, s.verify)
}

func (s *saslauthd) verify(ctx context.Context, user, password string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, saslauthdTime)
	defer cancel()
	// As libsasl does: the realm is what follows the @.
	name, realm, _ := strings.Cut(user, "@")
	words := []string{name, password, "smtp", realm}
	if slices.ContainsFunc(words, func(w string) bool { return len(w) > maxSaslauthd }) {
		return "", ErrRefused // it would end the connection; no such name or password can be right
	}
	user, err := s.decide(ctx, user, words)
	return user, answered(s.away, err)
}

// decide returns what saslauthd says about a user.
func (s *saslauthd) decide(ctx context.Context, user string, words []string) (string, error) {
	answer, err := s.ask(ctx, words)
	switch {
	case err != nil:
		return "", fmt.Errorf("ask saslauthd at %s: %w", s.socket, err)
	case strings.HasPrefix(answer, "OK"):
		return user, nil
	case isTrouble(answer):
	case strings.HasPrefix(answer, "NO"):
		return "", ErrRefused
	}
	return "", fmt.Errorf("ask saslauthd at %s: it answers %.40q", s.socket, answer)
}

// isTrouble reports whether an answer "NO ..." means that saslauthd could not ask: its mechanisms say so
// in the reason alone (cyrus-sasl, saslauthd/auth_*.c).
func isTrouble(answer string) bool {
	for _, reason := range []string{
		"[ALERT]", // rimap, httpform
		"saslauthd internal error", "PAM start error", "Username lookup failure", "NULL response from mechanism",
	} {
		if strings.HasPrefix(answer, "NO "+reason) {
			return true
		}
	}
	return false
}

func (s *saslauthd) ask(ctx context.Context, words []string) (string, error) {
	var b []byte
	for _, w := range words {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(w))), w...)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", s.socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	limit, _ := ctx.Deadline()
	if err := c.SetDeadline(limit); err != nil {
		return "", err
	}
	if _, err := c.Write(b); err != nil {
		return "", err
	}
	var n [2]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		return "", err
	}
	length := int(binary.BigEndian.Uint16(n[:]))
	if length > maxSaslauthd {
		return "", fmt.Errorf("its answer of %d bytes is longer than %d", length, maxSaslauthd)
	}
	answer := make([]byte, length)
	if _, err := io.ReadFull(c, answer); err != nil {
		return "", err
	}
	return string(answer), nil
}
