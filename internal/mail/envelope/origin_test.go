package envelope

import (
	"testing"

	"zmailer/internal/run/assert"
)

// Op7: the client is found in what smtpserver writes for the Received line.
func TestOp7ClientIsFoundInTheEnvelope(t *testing.T) {
	for text, want := range map[string]Origin{
		"client.example ([192.0.2.1]:4711)":            {Client: "[192.0.2.1]:4711"},
		"client.example (mx.example [192.0.2.1]:4711)": {Client: "[192.0.2.1]:4711", Name: "mx.example"},
		"x ([192.0.2.9]:1) ([IPv6:2001:db8::1]:25)":    {Client: "[IPv6:2001:db8::1]:25"},
		"[198.51.100.1] (local)":                       {},
		"[198.51.100.1] (unknown)":                     {},
		"client.example":                               {},
		"":                                             {},
		"client.example ([192.0.2.1]":                  {},
		"client.example (mx.example unknown)":          {Name: "mx.example"},
	} {
		e := Envelope{RcvdFrom: text}
		assert.Equal(t, e.Origin(), want, text)
	}
	for text, want := range map[string]string{
		"[192.0.2.1]:4711": "192.0.2.1:4711", "[IPv6:2001:db8::1]:25": "[2001:db8::1]:25", "[192.0.2.1]": "192.0.2.1:0",
		"[192.0.2.1]:99999999": "192.0.2.1:0", "[x]:1": "", "local": "", "": "",
	} {
		a, ok := ClientAddress(text)
		assert.Equal(t, ok, want != "", text)
		if ok {
			assert.Equal(t, a.String(), want, text)
		}
	}
}
