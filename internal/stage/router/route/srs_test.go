package route

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/mail/srs"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// withSRS has senders of forwarded mail rewritten.
func withSRS(t *testing.T) *rig {
	r := newRig(t)
	path := filepath.Join(r.conf, "srs.secrets")
	assert.Must(t, os.WriteFile(path, []byte("a secret of this host\n"), 0o600))
	r.config.SRS = SRSConfig{Rewriter: srs.Rewriter{Domain: "mx.example.org", Separator: '=', HashLength: 4, HashMin: 4, MaxAge: 21}, Secrets: path, Exclude: []string{".friend.example"}}
	r.table("aliases", "fwd: fred@far.example\nboth: fred@far.example, bond\n")
	return r
}

// Senders are rewritten where mail goes on to another system, and nowhere else. The e line says
// that reports go to the address that leads back.
func TestSenderOfForwardedMailIsRewritten(t *testing.T) {
	const outside = "external\n"
	for name, tt := range map[string]struct {
		envelope, from, to string
		rewritten          int // of the recipients' senders
	}{
		"forwarded":                   {outside, "ann@a.example", "fwd@example.org", 1},
		"forwarded, and kept":         {outside, "ann@a.example", "both@example.org", 1},
		"for a user here":             {outside, "ann@a.example", "bond@example.org", 0},
		"relayed":                     {outside, "ann@a.example", "x@b.example", 0},
		"a report":                    {outside, "", "fwd@example.org", 0},
		"a sender here":               {outside, "bond@example.org", "fwd@example.org", 0},
		"an excluded sender":          {outside, "ann@sub.friend.example", "fwd@example.org", 0},
		"our user, by SMTP":           {outside + "submitted bond\n", "ann@a.example", "fwd@example.org", 0},
		"our user":                    {"", "ann@a.example", "fwd@example.org", 0},
		"forwarded to us before":      {outside, "SRS0=abcd=AB=x.example=y@a.example", "fwd@example.org", 1},
		"one that cannot be repeated": {outside, "SRS1=x@a.example", "fwd@example.org", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := withSRS(t)
			m := r.one(tt.envelope + "from <" + tt.from + ">\nto <" + tt.to + ">\nenv-end\nSubject: x\n\n")
			assert.Must(t, m.Err)
			ours := regexp.MustCompile(`(?m)^(s local|e) SRS[01]=\S+@mx\.example\.org`)
			assert.Equal(t, len(ours.FindAll(m.file, -1)), 2*tt.rewritten, "\n%s", m.file)
		})
	}
}

// What comes back to such an address goes to the sender; and the router, which smtpserver
// asks before its 250, knows no forged one.
func TestRewrittenSenderLeadsBack(t *testing.T) {
	r := withSRS(t)
	m := r.one("external\nfrom <ann@a.example>\nto <fwd@example.org>\nenv-end\nSubject: x\n\n")
	_, rest, _ := strings.Cut(string(m.file), "\ns local ")
	rewritten, _, _ := strings.Cut(rest, " ")
	forged := strings.Replace(rewritten, "=ann@", "=joe@", 1)
	back := r.one("external\nfrom <>\nto <" + rewritten + ">\nto <" + forged + ">\nenv-end\nSubject: report\n\n")
	assert.Contains(t, string(back.file), " smtp a.example ann@a.example 65534\n")
	assert.Contains(t, string(back.file), " error 5.1.1:")
	v := assert.Get(NewVerifier(r.config, 1e10))(t)
	defer v.Close()
	assert.Equal(t, v.Verify(context.Background(), "<>", rewritten).Word, RcptKnown)
	assert.Equal(t, v.Verify(context.Background(), "<>", forged).Word, RcptUnknown)
	assert.Equal(t, v.Verify(context.Background(), "<>", strings.ToLower(rewritten)).Word, RcptKnown)
	assert.Equal(t, v.Verify(context.Background(), "<>", "fwd@example.org").Word, RcptKnown)
}

func TestBadSRSSettingsAreNamed(t *testing.T) {
	r := withSRS(t)
	r.config.SRS.Domain = "other.example"
	r.config.Hostname = "mx.example.org"
	bad := (*config.Error)(nil)
	if err := CheckTables(r.config); !errors.As(err, &bad) || bad.File != "SRSDOMAIN" {
		t.Errorf("a domain of another host: %v", err)
	}
	r.config.SRS.Domain = "mx.example.org"
	assert.Must(t, CheckTables(r.config))
	assert.Must(t, os.Chmod(r.config.SRS.Secrets, 0o644))
	if err := CheckTables(r.config); !errors.As(err, &bad) || bad.File != r.config.SRS.Secrets {
		t.Errorf("secrets for everybody: %v", err)
	}
	for _, line := range []string{"SRSSEPARATOR=x", "SRSHASHLENGTH=3", "SRSHASHMIN=5", "SRSDOMAIN=a..b", "SRSEXCLUDE=a..b"} {
		path := filepath.Join(t.TempDir(), "zmailer.conf")
		assert.Must(t, os.WriteFile(path, []byte("HOSTNAME=mx.example.org\nSRSSECRETS=srs.secrets\n"+line+"\n"), 0o644))
		c, err := config.Load(path)
		if err == nil {
			_, err = ConfigFrom(c)
		}
		if !errors.As(err, &bad) {
			t.Errorf("%s: %v", line, err)
		}
	}
}
