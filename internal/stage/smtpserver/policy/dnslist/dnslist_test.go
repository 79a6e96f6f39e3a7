package dnslist

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/policy/dnsq"
)

func sites(t testing.TB, texts ...string) (list []Site) {
	t.Helper()
	for _, text := range texts {
		list = append(list, assert.Get(ParseSite(text))(t))
	}
	return list
}

// The syntax is that of postscreen_dnsbl_sites, postconf(5).
func TestSitesHaveFilterAndWeight(t *testing.T) {
	for text, want := range map[string]struct {
		weight  int
		listed  []string
		ignored []string
	}{
		"a.test":                       {1, []string{"127.0.0.1", "127.9.9.9"}, []string{"127.255.255.254", "192.0.2.1", "::1"}},
		"a.test*2":                     {2, nil, nil},
		"a.test*-4":                    {-4, nil, nil},
		"a.test=127.0.0.4":             {1, []string{"127.0.0.4"}, []string{"127.0.0.5", "127.0.0.1"}},
		"a.test=127.0.0.[2..11]*3":     {3, []string{"127.0.0.2", "127.0.0.11"}, []string{"127.0.0.1", "127.0.0.12"}},
		"a.test=127.[0..255].0.[1;3]":  {1, []string{"127.7.0.1", "127.0.0.3"}, []string{"127.0.0.2", "127.0.1.1"}},
		"A.Test.=127.255.255.[1..255]": {1, []string{"127.255.255.254"}, nil}, // it was asked for
	} {
		t.Run(text, func(t *testing.T) {
			s := sites(t, text)[0]
			assert.Equal(t, s.Weight, want.weight)
			assert.Equal(t, s.Domain, "a.test")
			for _, a := range want.listed {
				assert.Equal(t, s.Filter.selects(netip.MustParseAddr(a)), true, "%s", a)
			}
			for _, a := range want.ignored {
				assert.Equal(t, s.Filter.selects(netip.MustParseAddr(a)), false, "%s", a)
			}
		})
	}
}

func TestBadSitesAreErrors(t *testing.T) {
	for _, text := range []string{"", "nodots", "a.test*", "a.test*x", "a.test*9999999999", "a.test=", "a.test=127.0.0", "a.test=127.0.0.256",
		"a.test=127.0.0.[2..1]", "a.test=127.0.0.[1", "a.test=127.0.0.1.1", "a.test=127.0.0.[]", "=127.0.0.1", "a..test", "a b.test", strings.Repeat("a.", 100) + "test"} {
		if s, err := ParseSite(text); err == nil {
			t.Errorf("%q: got %+v", text, s)
		}
	}
}

func FuzzSite(f *testing.F) {
	f.Add("zen.example=127.0.0.[2..11]*3")
	f.Add("a.test=[1;2..3].[0..255].0.1*-2")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSite(text)
		if err == nil && (s.Domain == "" || s.Weight > maxWeight || s.Weight < -maxWeight) {
			t.Errorf("%q: %+v", text, s)
		}
		s.Filter.selects(netip.MustParseAddr("127.0.0.2"))
	})
}

// RFC 5782 section 5 has the test entries: 127.0.0.2 is listed, and for IPv6 ::FFFF:7F00:2.
func TestWeightsAreSummedAndEachListIsAskedOnce(t *testing.T) {
	z, server := checkstest.Serve(t,
		"7.2.0.192.bad.test. 60 A 127.0.0.2", "7.2.0.192.bad.test. 60 A 127.0.0.10", `7.2.0.192.bad.test. 60 TXT "see http://bad.test/7"`,
		"7.2.0.192.good.test. 60 A 127.0.5.1",
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.bad.test. 60 A 127.0.0.3")
	log := &logtest.Buffer{}
	c := dnsq.New(dnsq.Config{Server: server})
	l := New(c, sites(t, "bad.test=127.0.0.2*2", "bad.test=127.0.0.[3..11]*3", "none.test*9", "good.test*-1"), time.Second, log.Logger())
	ctx := context.Background()
	r := l.Client(ctx, netip.MustParseAddr("192.0.2.7"))
	assert.Equal(t, r.Score, 2+3-1)
	assert.Equal(t, r.Worst().Site.Weight, 3)
	assert.Equal(t, l.Reason(ctx, "7.2.0.192.bad.test"), "see http://bad.test/7")
	asked := z.Count()
	assert.Equal(t, asked, 4)
	assert.Equal(t, l.Client(ctx, netip.MustParseAddr("::ffff:192.0.2.7")).Score, 4)
	assert.Equal(t, z.Count(), asked) // cached
	assert.Equal(t, l.Client(ctx, netip.MustParseAddr("2001:db8::1")).Score, 3)
	assert.Equal(t, l.Client(ctx, netip.MustParseAddr("192.0.2.8")).Score, 0)
	assert.Equal(t, log.String(), "")
}

// A list that fails, is silent or refuses the questions counts as no listing, and does not
// hold up the others.
func TestListsThatDoNotAnswerListNobody(t *testing.T) {
	_, server := checkstest.Serve(t, "7.2.0.192.bad.test. 60 A 127.0.0.2", "7.2.0.192.over.test. 60 A 127.255.255.254")
	log := &logtest.Buffer{}
	l := New(dnsq.New(dnsq.Config{Server: server, Timeout: 300 * time.Millisecond}),
		sites(t, "broken.test*5", "silent.test*5", "over.test*5", "bad.test"), 300*time.Millisecond, log.Logger())
	began := time.Now()
	r := l.Client(context.Background(), netip.MustParseAddr("192.0.2.7"))
	assert.Equal(t, r.Score, 1)
	assert.Equal(t, len(r.Failed), 2)
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("took %v", d)
	}
	log.Expect(t, 3, "msg=dnsbl-trouble")
	// The failure is remembered: no session waits for it again now.
	began = time.Now()
	l.Client(context.Background(), netip.MustParseAddr("192.0.2.7"))
	if d := time.Since(began); d > 200*time.Millisecond {
		t.Errorf("took %v", d)
	}
	log.Expect(t, 3, "msg=dnsbl-trouble")
}

// An answer of any size is bounded.
func TestAnswersOfAnySizeAreBounded(t *testing.T) {
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("7.2.0.192.bad.test. 60 A 127.0.%d.%d", i/250, i%250+2))
	}
	for i := range 100 {
		lines = append(lines, fmt.Sprintf(`7.2.0.192.bad.test. 60 TXT "%d %s"`, i, strings.Repeat("x", 250)))
	}
	_, server := checkstest.Serve(t, lines...)
	c := dnsq.New(dnsq.Config{Server: server})
	for _, qtype := range []uint16{dnsq.TypeA, dnsq.TypeTXT} {
		a, err := c.Lookup(context.Background(), "7.2.0.192.bad.test", qtype)
		assert.Must(t, err)
		if n := len(a.Addrs) + len(a.Text); n != 64 {
			t.Errorf("type %d: %d records kept", qtype, n)
		}
	}
	l := New(c, sites(t, "bad.test*2"), time.Second, (&logtest.Buffer{}).Logger())
	assert.Equal(t, l.Client(context.Background(), netip.MustParseAddr("192.0.2.7")).Score, 2)
}

// Op4: a list is an alarm after three failures in a row, and no alarm with its next answer.
func TestAlarmAboutAListEndsWithItsAnswer(t *testing.T) {
	disk := assert.Get(durable.NewOS(t.TempDir()))(t)
	defer disk.Close()
	assert.Must(t, disk.Mkdir(lastgood.Dir, 0o755))
	assert.Must(t, disk.Mkdir(lastgood.Dir+"/test", 0o755))
	l := New(nil, nil, time.Second, slog.New(slog.DiscardHandler)).Alarms(lastgood.New(disk, "test", time.Now, slog.New(slog.DiscardHandler)))
	fails := func() { l.note("list.test", nil, errors.New("no answer")) }
	alarms := func(want int) {
		t.Helper()
		assert.Equal(t, len(lastgood.Findings(disk, time.Now())), want, "alarms")
	}
	fails()
	fails()
	l.note("list.test", &dnsq.Answer{}, nil)
	fails()
	fails()
	alarms(0)
	l.note("list.test", nil, context.Canceled) // a client that goes away says nothing about it
	alarms(0)
	fails()
	alarms(1)
	l.note("list.test", &dnsq.Answer{}, nil)
	alarms(0)
}
