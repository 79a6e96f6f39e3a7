package rules

import (
	"context"
	"os"
	"strings"
	"testing"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
)

// Whoever Resolve finds Verify finds, and whom it does not find Verify does not find.
func TestVerifyFindsWhomResolveFinds(t *testing.T) {
	c := newConf(t, map[string]string{
		"users":       "bob\ncarol\n",
		"localnames":  "example.org\nexample.net\n",
		"fqdnaliases": "sales@example.net: bob\n@example.edu: %1@example.org\n",
		"aliases": "boss: bob\ngone: nosuchuser\nmixed: nosuchuser, bob\nround: about\nabout: round\nself: self, bob\n" +
			"team: :include:@DIR/team\nlost: :include:@DIR/nothing\ndrop: /dev/null\nfar: x@example.com\nboth+tag: bob\n",
		"team":       "bob\n",
		"routes":     "closed.example error!5.1.6:moved+20away\nexample.gov lmtp!inner\n",
		"lists/news": "carol\n",
	})
	k := c.config()
	k.Subaddress = "+"
	tagged, err := New(k)
	assert.Must(t, err)
	c.Rules = tagged
	for to, want := range map[string]string{
		"bob@example.org":            "",
		"BOB@EXAMPLE.ORG":            "",
		"bob":                        "",
		"bob+tag@example.org":        "",
		"nobody@example.org":         ErrNoUser,
		"nobody+tag@example.org":     ErrNoUser,
		"boss@example.org":           "",
		"boss+tag@example.net":       "",
		"gone@example.org":           ErrNoUser,
		"mixed@example.org":          "",
		"round@example.org":          ErrLoop,
		"self@example.org":           "",
		"team@example.org":           "",
		"drop@example.org":           "",
		"far@example.org":            "",
		"news@example.org":           "",
		"news-request@example.org":   "",
		"owner-news@example.org":     "",
		"news-owner@example.org":     "",
		"olds-owner@example.org":     ErrNoUser,
		"sales@example.net":          "",
		"bob@example.edu":            "",
		"nobody@example.edu":         ErrNoUser,
		"x@example.com":              "",
		"x@example.gov":              "",
		"x@closed.example":           "5.1.6",
		"postmaster@example.org":     "",
		"both+tag@example.org":       "",
		"both+other@example.org":     ErrNoUser,
		"postmaster+tag@example.org": "",
	} {
		t.Run(to, func(t *testing.T) {
			m := assert.Get(address.Parse(to))(t)
			got, err := c.Tables().Verify(context.Background(), m)
			assert.Must(t, err)
			word, _, _ := strings.Cut(got.Host, ":")
			if (got.Channel == Error) != (want != "") || want != "" && word != want {
				t.Errorf("got %s!%s, want %q", got.Channel, got.Host, want)
			}
			good := false
			assert.Must(t, c.Tables().Resolve(context.Background(), Query{Recipient: m}, func(to Target) error {
				good = good || to.Channel != Error
				return nil
			}))
			assert.Equal(t, good, got.Channel != Error, "%s!%s, Resolve finds somebody", got.Channel, got.Host)
		})
	}
	if lost, err := c.Tables().Verify(context.Background(), address.Mailbox{Local: "lost", Domain: "example.org"}); err != nil || lost.Channel == Error {
		t.Errorf("an alias whose file is not there: got %+v, %v, want that there is such an address", lost, err)
	}
}

// A list of a hundred thousand, or one that cannot be read now, is known by its name.
func TestVerifyReadsNoLists(t *testing.T) {
	c := newConf(t, map[string]string{"users": "bob\n", "lists/big": "x\n"})
	big := c.dir + "/lists/big"
	assert.Must(t, os.WriteFile(big, []byte(strings.Repeat("not an address, not a list\x00\n", 100000)), 0o644))
	n := testing.AllocsPerRun(20, func() {
		got, err := c.Tables().Verify(context.Background(), address.Mailbox{Local: "big", Domain: "mx.example.org"})
		if err != nil || got.Channel == Error {
			t.Fatalf("got %+v, %v", got, err)
		}
	})
	if n > 100 {
		t.Errorf("%v allocations, want that the file is not read", n)
	}
}

func TestVerifyTellsTroubleFromNobody(t *testing.T) {
	c := newConf(t, map[string]string{"users": "bob\n"})
	k := c.config()
	k.Passwd = brokenUsers{}
	k.LocalUsers = "passwd"
	r, err := New(k)
	assert.Must(t, err)
	if got, err := r.Tables().Verify(context.Background(), address.Mailbox{Local: "bob"}); err == nil {
		t.Errorf("got %+v, want trouble", got)
	} else if _, ok := IsTrouble(err); !ok {
		t.Errorf("got %v, want trouble", err)
	}
}

type brokenUsers struct{}

func (brokenUsers) Lookup(string) (User, bool, error) { return User{}, false, os.ErrDeadlineExceeded }
func (brokenUsers) LookupUID(uint32) (User, bool, error) {
	return User{}, false, os.ErrDeadlineExceeded
}
