// Package verify answers whether mail to an address would be accepted, as smtpserver decides at
// RCPT, and shows and forgets what is known of recipients at next hops: zmctl verify.
//
//	v, err := verify.Open(settings, po)
//	answer := v.Address(ctx, "alice@example.net", false)
//
// It owns nothing: tables are the router's, and the cache is package verified's.
//
// Diagnostics: Open's errors are *config.Error; those of Forget and List are of the file system.
// What could not be decided about an address is an Answer.
package verify

import (
	"context"
	"errors"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/verified"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
)

// Verdicts of an Answer.
const (
	Accepted  = "accepted"
	Refused   = "refused"
	Undecided = "undecided" // 451: the client comes again
)

// Sources of an Answer.
const (
	FromTables = "tables" // and router.star
	FromCache  = "cache"
	FromProbe  = "next hop" // asked now
)

// Answer is what is known about an address.
type Answer struct {
	Address string     `json:"address"`
	Verdict string     `json:"verdict"`
	Source  string     `json:"source"`
	Code    string     `json:"code,omitempty"` // RFC 3463
	Text    string     `json:"text,omitempty"`
	NextHop string     `json:"next_hop,omitempty"` // channel/host
	Probed  *time.Time `json:"probed,omitempty"`   // when the next hop answered
	// AgeSeconds is the age of that answer, and ExpiresSeconds how long it still counts.
	AgeSeconds     int64 `json:"age_seconds,omitempty"`
	ExpiresSeconds int64 `json:"expires_seconds,omitempty"`
}

// Verifier answers. It is for one goroutine.
type Verifier struct {
	tables *route.Verifier
	prober *rcptcheck.Prober
	cache  *verified.Cache
	o      rcptcheck.ProbeOptions
	on     bool
}

// tablesTime is how long the tables may take for an address.
const tablesTime = 30 * time.Second

// probeTime is how long a next hop may.
const probeTime = 2 * time.Minute

// Open reads the configuration and the tables.
func Open(settings *config.Config, po *postoffice.PostOffice) (*Verifier, error) {
	o, on, err := smtpserver.ProbeOptions(settings)
	if err != nil {
		return nil, err
	}
	cfg, err := route.ConfigFrom(settings)
	if err != nil {
		return nil, err
	}
	v := &Verifier{on: on, cache: verified.Open(po.FS(), verified.Options{Most: o.Most})}
	if v.tables, err = route.NewVerifier(cfg, tablesTime); err != nil {
		return nil, err
	}
	if on {
		if err := po.Ensure(verified.Dir); err != nil {
			return nil, errors.Join(err, v.tables.Close())
		}
		o.Cache = v.cache
	}
	o.Command, o.Wait, o.Now = agents.Prober(settings, rcptcheck.ProbeCommand), probeTime, time.Now
	v.o, v.prober = o, rcptcheck.NewProber(o)
	return v, nil
}

// Close ends what was started.
func (v *Verifier) Close() error {
	v.prober.Close()
	return v.tables.Close()
}

// Address answers about an address of mail from the null sender. probe: its next hop is asked now,
// also where the configuration does not want it.
func (v *Verifier) Address(ctx context.Context, to string, probe bool) Answer {
	a := Answer{Address: to, Source: FromTables}
	known := v.tables.Verify(ctx, "<>", to)
	a.Text = known.Text
	if !known.Code.IsZero() {
		a.Code = known.Code.String()
	}
	switch known.Word {
	case route.RcptUnknown, route.RcptRefused:
		a.Verdict = Refused
		return a
	case route.RcptTrouble:
		a.Verdict = Undecided
		return a
	}
	a.Verdict, a.Text = Accepted, ""
	next := rcptcheck.NextHop{Channel: known.Next.Channel, Host: known.Next.Host, User: known.Next.User}
	if next.Channel != "" {
		a.NextHop = next.Channel + "/" + next.Host
	}
	if next.Channel == "" || known.Word != route.RcptVerify && !probe {
		return a
	}
	var found rcptcheck.Finding
	var err error
	if probe {
		found, err = v.prober.Ask(ctx, next)
	} else {
		found, err = v.prober.Verify(ctx, next)
	}
	a.Source = FromProbe
	if undecided := (*rcptcheck.UndecidedError)(nil); errors.As(err, &undecided) {
		a.Verdict, a.Code, a.Text = Undecided, undecided.Code.String(), undecided.Text
		return a
	}
	if err != nil {
		a.Verdict, a.Text = Undecided, err.Error()
		return a
	}
	if found.Cached {
		a.Source = FromCache
	}
	v.about(&a, found.Entry)
	return a
}

// about fills in what an entry says.
func (v *Verifier) about(a *Answer, e verified.Entry) {
	a.Verdict, a.Code, a.Text, a.Probed = Refused, e.Code, e.Text, &e.Probed
	expire := v.o.NegativeExpire
	if e.OK {
		a.Verdict, expire = Accepted, v.o.PositiveExpire
	}
	age := max(v.o.Now().Sub(e.Probed), 0)
	a.AgeSeconds, a.ExpiresSeconds = int64(age/time.Second), max(int64((expire-age)/time.Second), 0)
}

// List returns what the cache has.
func (v *Verifier) List() ([]Answer, error) {
	entries, err := v.cache.Entries()
	list := make([]Answer, 0, len(entries))
	for _, e := range entries {
		a := Answer{Source: FromCache}
		hop := ""
		hop, a.Address = cutKey(e.Key)
		a.NextHop = strings.Replace(hop, " ", "/", 1)
		v.about(&a, e)
		list = append(list, a)
	}
	return list, err
}

// cutKey parts a key of the cache: channel, host and address.
func cutKey(key string) (hop, to string) {
	i := strings.IndexByte(key, ' ')
	j := strings.IndexByte(key[i+1:], ' ')
	if i < 0 || j < 0 {
		return "", key
	}
	return key[:i+1+j], key[i+2+j:]
}

// Forget forgets the answers about addresses, all of a domain for @domain, or all, and returns
// how many there were.
func (v *Verifier) Forget(which []string, all bool) (int, error) {
	return v.cache.Forget(func(e verified.Entry) bool {
		_, to := cutKey(e.Key)
		for _, w := range which {
			w = strings.ToLower(w)
			if to == w || strings.HasPrefix(w, "@") && strings.HasSuffix(to, w) {
				return true
			}
		}
		return all
	})
}
