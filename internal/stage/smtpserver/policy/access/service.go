package access

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/wire/policyservice"
)

// DefaultServiceAction is what a recipient gets while a policy service does not answer
// (smtpd_policy_service_default_action).
const DefaultServiceAction = "451 4.3.5 Server configuration problem"

// Protocol states in which a policy service is asked.
const (
	StateRCPT = "RCPT"
	StateDATA = "DATA"
	StateEnd  = "END-OF-MESSAGE"
)

// policyService makes check_policy_service.
func policyService() builder {
	return builder{arg: "a policy service, like inet:127.0.0.1:10023 or unix:/run/policy", options: []string{"timeout", "default_action", "policy_context", "protocol_state"}, make: func(s *sources, arg string, o *ruleOptions) (*restriction, error) {
		at, err := policyservice.Parse(arg)
		if err != nil {
			return nil, err
		}
		instead := o.action
		if instead == "" {
			instead = DefaultServiceAction
		}
		if _, err := parseAction(instead, "", ""); err != nil {
			return nil, fmt.Errorf("default_action=: %w", err)
		}
		service := s.service(at, o.timeout)
		return &restriction{once: true, check: func(ctx context.Context, f *Facts) (outcome, error) {
			object, class := "<"+f.To.String()+">", "Recipient address"
			switch o.state {
			case StateDATA:
				object, class = "<DATA>", "Data command"
			case StateEnd:
				object, class = "<END-OF-MESSAGE>", "End-of-data"
			}
			action, err := service.Ask(ctx, s.attributes(ctx, f, o))
			var out outcome
			if err == nil {
				out, err = parseAction(action, object, class)
			}
			if err != nil {
				if ctx.Err() == nil {
					service.outage.Failed(err)
				}
				service.trouble.Begin(s.o.logger(), "policy-service-trouble", "service", arg, "reason", err, "advice", "messages get: "+instead)
				if out, err = parseAction(instead, object, class); err != nil {
					return outcome{}, err
				}
			} else {
				service.outage.Answers()
				service.trouble.End(s.o.logger(), "policy-service-recovered", "service", arg)
			}
			return out, nil
		}}, nil
	}}
}

// attributes are the lines of a request, in the order of Postfix.
func (s *sources) attributes(ctx context.Context, f *Facts, o *ruleOptions) []policyservice.Attr {
	state := o.state
	if state == "" {
		state = StateRCPT
	}
	list := make([]policyservice.Attr, 0, 32)
	add := func(name, value string) { list = append(list, policyservice.Attr{Name: name, Value: value}) }
	reverse, verified := "unknown", "unknown"
	if r, v, err := s.clientName(ctx, f); err == nil {
		if r != "" {
			reverse = r
		}
		if v != "" {
			verified = v
		}
	}
	count, size := 0, f.Size
	if state != StateRCPT {
		count = f.Rcpts
	}
	recipient := f.To.String()
	if f.To.IsNull() {
		recipient = ""
	}
	clientAddr := "unknown"
	if f.Client.IsValid() && !f.Client.IsUnspecified() {
		clientAddr = f.Client.Unmap().WithZone("").String()
	}
	add("request", "smtpd_access_policy")
	add("protocol_state", state)
	add("protocol_name", f.Protocol)
	add("client_address", clientAddr)
	add("client_name", verified)
	clientPort, serverAddr, serverPort := "", "", ""
	if p := f.Peer; p != nil {
		if p.Addr.IsValid() {
			clientPort = strconv.Itoa(int(p.Addr.Port()))
		}
		if p.Local.IsValid() {
			serverAddr, serverPort = p.Local.Addr().Unmap().WithZone("").String(), strconv.Itoa(int(p.Local.Port()))
		}
	}
	add("client_port", clientPort)
	add("reverse_client_name", reverse)
	add("server_address", serverAddr)
	add("server_port", serverPort)
	add("helo_name", f.Helo)
	add("sender", f.From.String())
	add("recipient", recipient)
	add("recipient_count", strconv.Itoa(count))
	add("queue_id", "")
	add("instance", f.Instance)
	add("size", strconv.FormatInt(size, 10))
	add("etrn_domain", "")
	add("stress", "")
	method, user := "", f.User
	if user != "" {
		method = "PLAIN"
		if f.Peer != nil && f.Peer.Mechanism != "" {
			method = f.Peer.Mechanism
		}
	}
	add("sasl_method", method)
	add("sasl_username", user)
	add("sasl_sender", "")
	s.addTLS(add, f)
	add("policy_context", o.context)
	add("compatibility_level", "")
	add("mail_version", "ZMailer")
	return list
}

// addTLS adds what TLS and the client's certificate have.
func (s *sources) addTLS(add func(name, value string), f *Facts) {
	var subject, issuer, print, key, version, cipher string
	bits := "0"
	if f.Peer != nil && f.Peer.TLS != nil {
		t := f.Peer.TLS
		version, cipher = tlsVersion(t.Version), tls.CipherSuiteName(t.CipherSuite)
		bits = "128"
		if strings.Contains(cipher, "256") {
			bits = "256"
		}
		if len(t.PeerCertificates) > 0 {
			c := t.PeerCertificates[0]
			print = fingerprint(c.Raw)
			key = fingerprint(c.RawSubjectPublicKeyInfo)
		}
		// Everybody can make a certificate with another's name in it.
		if c := f.Peer.TrustedCertificate(); c != nil {
			subject, issuer = address.EncodeXText(c.Subject.CommonName), address.EncodeXText(c.Issuer.CommonName)
		}
	}
	add("ccert_subject", subject)
	add("ccert_issuer", issuer)
	add("ccert_fingerprint", print)
	add("ccert_pubkey_fingerprint", key)
	add("encryption_protocol", version)
	add("encryption_cipher", cipher)
	add("encryption_keysize", bits)
}

// tlsVersion returns a version as OpenSSL, and so Postfix, writes it.
func tlsVersion(v uint16) string {
	switch v {
	case tls.VersionTLS10:
		return "TLSv1"
	case tls.VersionTLS11:
		return "TLSv1.1"
	case tls.VersionTLS12:
		return "TLSv1.2"
	}
	return "TLSv1.3"
}

// fingerprint returns a SHA-256 as Postfix writes it: pairs of digits with colons.
func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	text := strings.ToUpper(hex.EncodeToString(sum[:]))
	var b strings.Builder
	for i := 0; i < len(text); i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(text[i : i+2])
	}
	return b.String()
}

// refusedBy completes the verdict of a restriction with the rule's name and its own text.
func (r *rule) refusedBy(o *outcome) Verdict {
	v := o.verdict
	v.By = r.verdict.By
	if v.Action == Accept || o.trouble {
		return v
	}
	own := r.verdict
	if own.Code != 0 {
		v.Code, v.Action = own.Code, Reject
		if own.Code < 500 {
			v.Action = Defer
		}
		if v.Status.Class != uint16(own.Code/100) {
			v.Status.Class = uint16(own.Code / 100)
		}
	}
	if own.Status != (status.Code{}) {
		v.Status = own.Status
	}
	if own.Text != "" {
		v.Text = own.Text
	}
	return v
}
