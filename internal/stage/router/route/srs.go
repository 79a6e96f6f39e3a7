package route

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/srs"
	"zmailer/internal/run/config"
)

// SRSConfig is how senders of forwarded mail are rewritten (docs/srs.md).
type SRSConfig struct {
	srs.Rewriter
	Secrets string   // the file; "": they are not
	Exclude []string // domains, in A-labels; .domain for those below
}

// rewriter rewrites senders; nil does not.
type rewriter struct {
	SRSConfig
	secrets *config.File[srs.Secrets]
	now     func() time.Time
}

func openSRS(c Config) (*rewriter, error) {
	if c.SRS.Secrets == "" {
		return nil, nil
	}
	f, err := config.OpenFile(c.SRS.Secrets, srs.ParseSecrets, config.FileOptions{Required: true, Secret: true, Keeper: c.Keeper, Now: c.Now, Log: c.Log})
	if err != nil {
		return nil, err
	}
	return &rewriter{c.SRS, f, c.Now}, nil
}

// reverser returns what rules asks about a recipient: the sender behind an address that this
// mail system has made, an error that says why it is none, or ok false for any other address.
func (r *rewriter) reverser() func(m address.Mailbox) (to address.Mailbox, ok bool, err error) {
	if r == nil {
		return nil
	}
	return func(m address.Mailbox) (address.Mailbox, bool, error) {
		if !srs.Is(m.Local) {
			return m, false, nil
		}
		if d, err := m.ASCIIDomain(); err != nil || d != r.Domain {
			return m, false, nil
		}
		to, err := r.Reverse(r.secrets.Current(), m.Local, r.now())
		return to, true, err
	}
}

// excludes reports whether senders in a domain keep their address.
func (r *rewriter) excludes(domain string) bool {
	if domain == r.Domain {
		return true
	}
	for _, e := range r.Exclude {
		if domain == e || e[0] == '.' && (strings.HasSuffix(domain, e) || domain == e[1:]) {
			return true
		}
	}
	return false
}

// forwardedFrom returns the sender of a message where it is forwarded to another system; "": its
// own, as for a sender in a domain of ours. It is computed once, with the tables that the
// recipient was looked up in.
func (w *worker) forwardedFrom(msg *message) (string, error) {
	r := w.en.srs
	if r == nil || !msg.external || msg.user != "" {
		return "", nil
	}
	if msg.srsDone {
		return msg.srs, nil
	}
	from := msg.from(0)
	domain, err := from.ASCIIDomain()
	if err != nil || domain == "" || from.IsNull() {
		msg.srsDone = true
		return "", nil
	}
	if !r.excludes(domain) {
		// A domain that somebody else's server answers for is not ours; one of ours sends from here.
		ours, err := w.en.rules.Tables().IsLocal(msg.context(), from)
		if err != nil {
			return "", err
		}
		if !ours {
			// What the scheme cannot take keeps its sender: mail is not lost for that.
			if to, err := r.Forward(r.secrets.Current(), from, r.now()); err == nil {
				msg.srs = to.String()
			}
		}
	}
	msg.srsDone = true
	return msg.srs, nil
}

// srsFrom takes the settings from zmailer.conf.
func srsFrom(s *config.Reader, hostname string) (out SRSConfig) {
	text := s.String("SRSSECRETS", "")
	if text == "" {
		return out
	}
	out.Secrets = beside(s.Config, text)
	out.MaxAge = 21
	out.Separator = s.String("SRSSEPARATOR", "=")[0]
	out.HashLength, out.HashMin = s.Int("SRSHASHLENGTH", 4), s.Int("SRSHASHMIN", 4)
	if out.HashLength < 4 || out.HashLength > 27 || out.HashMin < 4 || out.HashMin > out.HashLength {
		s.Use("SRSHASHLENGTH", errors.New("want a number of letters from SRSHASHMIN, at least 4, to 27"))
	}
	domain := address.Mailbox{Local: "x", Domain: s.String("SRSDOMAIN", hostname)}
	var err error
	if out.Domain, err = domain.ASCIIDomain(); err != nil || out.Domain == "" {
		s.Use("SRSDOMAIN", errors.New("it is no domain"))
	}
	for _, word := range s.List("SRSEXCLUDE") {
		name, below := strings.CutPrefix(word, ".")
		d, err := (address.Mailbox{Local: "x", Domain: name}).ASCIIDomain()
		if err != nil || d == "" {
			s.Use("SRSEXCLUDE", fmt.Errorf("%.80q is no domain", word))
			continue
		}
		if below {
			d = "." + d
		}
		out.Exclude = append(out.Exclude, d)
	}
	return out
}

// beside returns the path of a file that is beside zmailer.conf unless it begins with /.
func beside(c *config.Config, file string) string {
	if path := c.Path(file); path != "" && !filepath.IsAbs(file) {
		return path
	}
	return file
}

// check reports whether replies come here, for operators.
func (r *rewriter) check(isOurs func(address.Mailbox) (bool, error)) error {
	if r == nil {
		return nil
	}
	ours, err := isOurs(address.Mailbox{Local: "x", Domain: r.Domain})
	if err == nil && !ours {
		return &config.Error{File: "SRSDOMAIN", Reason: r.Domain + " is no local domain: reports to the addresses that SRS makes are refused; add it to localnames"}
	}
	return nil // a table that cannot be asked is reported by itself
}
