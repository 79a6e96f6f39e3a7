package content

import (
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/wire/milter"
)

func TestFiltersAreWrittenAsPostfixWritesThem(t *testing.T) {
	base := Milter{milter.Config{Timeout: 30 * time.Second, ContentTimeout: 5 * time.Minute}, TroubleQuarantine}
	at := func(addr string) Milter {
		m := base
		m.Network, m.Address = "tcp", addr
		return m
	}
	all := at("h:1")
	all.ConnectTimeout, all.Timeout, all.ContentTimeout, all.Trouble = time.Second, time.Minute, time.Hour, TroubleReject
	lenient := at("h:2")
	lenient.Trouble = TroubleAccept
	for text, want := range map[string][]Milter{
		"":                      nil,
		"inet:h:1":              {at("h:1")},
		"inet:h:1, inet:h:2":    {at("h:1"), at("h:2")},
		"inet:h:1 {inet:h:2}":   {at("h:1"), at("h:2")},
		"{ inet:h:1 },inet:h:2": {at("h:1"), at("h:2")},
		"{ inet:h:1, connect_timeout=1s, command_timeout=1m content_timeout=1h,default_action=reject } { inet:h:2, default_action=accept }": {all, lenient},
	} {
		got, err := ParseMilters(text, base)
		assert.NoError(t, err)
		assert.Same(t, got, want, text)
	}
}

func TestWrongOptionsOfFiltersAreAllNamed(t *testing.T) {
	for text, wants := range map[string][]string{
		"{ inet:h:1, x=y, default_action=drop } tcp:9":         {"x=y", "default_action=drop", "tcp:9"},
		"{ inet:h:1, connect_timeout=0 }":                      {"connect_timeout=0"},
		"{ inet:h:1, command_timeout=soon }":                   {"command_timeout=soon"},
		"{ inet:h:1, content_timeout=1s, content_timeout=2s }": {"content_timeout=2s"},
		"{ inet:h:1, protocol=6 }":                             {"protocol=6"},
		"{ inet:h:1, default_action }":                         {"default_action"},
		"{ inet:h:1":                                           {"inet:h:1"},
		"{ inet:h:1, { default_action=accept } }":              {"inet:h:1"},
		"{ }":        {"{ }"},
		"inet:h:1 }": {"}"},
		"inet:h:1, { default_action=accept, connect_timeout=1 }": {"default_action=accept"},
	} {
		_, err := ParseMilters(text, Milter{})
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, which does not name %s", text, err, want)
			}
		}
	}
}

func FuzzParseMilters(f *testing.F) {
	f.Add("{ inet:h:1, connect_timeout=1s } unix:/m, inet:h:2")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseMilters(text, Milter{})
		for _, m := range list {
			if err == nil && m.Address == "" {
				t.Errorf("a filter without an address in %q", text)
			}
		}
	})
}
