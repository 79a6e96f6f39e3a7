package content

import (
	"crypto/tls"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/wire/milter"
)

// macros returns all that are known about the client, and more; package milter sends each at
// its stages. The names are Sendmail's, the values those of Postfix (MILTER_README).
func (s *Session) macros(more ...string) milter.Macros {
	if s.known == nil || s.of != clientKey(&s.client) {
		s.known, s.of = s.clientMacros(), clientKey(&s.client)
	}
	m := append(milter.Macros{"i", s.number}, more...)
	return append(m, s.known...)
}

// key is what the macros of a client depend on.
type key struct {
	known
	user, mechanism string
}

func clientKey(c *session.Client) key {
	return key{known{c.Addr, c.Name, c.Helo, c.TLS}, c.User, c.Mechanism}
}

// clientMacros returns those of the server and of the client.
func (s *Session) clientMacros() milter.Macros {
	c := &s.client
	m := milter.Macros{"j", s.cfg.Hostname, "v", "zmailer", "{daemon_name}", s.cfg.daemonName(c.Role)}
	if c.Local.IsValid() {
		m = append(m, "{daemon_addr}", c.Local.Addr().Unmap().WithZone("").String(), "{daemon_port}", strconv.Itoa(int(c.Local.Port())))
	}
	if c.Addr.IsValid() {
		m = append(m, "{client_addr}", c.IP().String(), "{client_port}", strconv.Itoa(int(c.Addr.Port())))
		name := c.Name
		if name == "" {
			name = "unknown"
		}
		m = append(m, "{client_name}", name, "{client_ptr}", name, "_", name+" ["+c.IP().String()+"]")
		if s.cfg.Connections != nil {
			m = append(m, "{client_connections}", strconv.Itoa(s.cfg.Connections(c.Addr.Addr())))
		}
	}
	if c.User != "" {
		// No mechanism of ours adds a layer of its own, whose strength auth_ssf would be.
		m = append(m, "{auth_authen}", c.User, "{auth_type}", c.Mechanism, "{auth_ssf}", "0")
	}
	if c.TLS != nil {
		name, bits := cipher(c.TLS.CipherSuite)
		m = append(m, "{tls_version}", strings.Replace(tls.VersionName(c.TLS.Version), "TLS ", "TLSv", 1), "{cipher}", name, "{cipher_bits}", strconv.Itoa(bits))
		if cert := c.TrustedCertificate(); cert != nil {
			m = append(m, "{cert_subject}", cert.Subject.CommonName, "{cert_issuer}", cert.Issuer.CommonName)
		}
	}
	return m
}

// cipher returns a cipher suite's name as OpenSSL has it, which filters know from other mail
// systems, and the bits of its key.
func cipher(id uint16) (name string, bits int) {
	name = tls.CipherSuiteName(id)
	switch {
	case strings.Contains(name, "AES_256"), strings.Contains(name, "CHACHA20"):
		bits = 256
	case strings.Contains(name, "AES_128"), strings.Contains(name, "RC4_128"):
		bits = 128
	case strings.Contains(name, "3DES"):
		bits = 168
	}
	exchange, rest, older := strings.Cut(strings.TrimPrefix(name, "TLS_"), "_WITH_")
	if !older {
		return name, bits // of TLS 1.3: the name is the same
	}
	rest = strings.NewReplacer("AES_", "AES", "_CBC_SHA", "-SHA", "_SHA256", "", "CHACHA20_POLY1305", "CHACHA20-POLY1305",
		"3DES_EDE_CBC_SHA", "DES-CBC3-SHA", "RC4_128_SHA", "RC4-SHA").Replace(rest)
	if strings.Contains(name, "_GCM_SHA") || strings.Contains(name, "CBC_SHA256") {
		rest += name[strings.LastIndex(name, "_SHA"):]
	}
	name = strings.ReplaceAll(rest, "_", "-")
	if exchange != "RSA" {
		name = strings.ReplaceAll(exchange, "_", "-") + "-" + name
	}
	return name, bits
}

// author returns the address that MAIL has in its parameter AUTH (RFC 4954 section 5); "":
// none.
func author(params []string) string {
	for _, p := range params {
		if name, value, ok := strings.Cut(p, "="); ok && strings.EqualFold(name, "AUTH") {
			text, err := address.DecodeXText(value)
			if err == nil {
				return text
			}
		}
	}
	return ""
}
