package policy

import (
	"context"
	"testing"

	"zmailer/internal/run/assert"
)

// What a program adds to the routing of a message with one recipient.
func BenchmarkMessageAndRecipient(b *testing.B) {
	d := newFixture(b, map[string]string{"t": "far.example smtp!relay.example\n", File: `
T = table("t")
def message(m):
    if m.login and rate("out:" + m.login, 1000000000, "1h"):
        return freeze("flood", m.login)
def recipient(m, r):
    to = T(r.domain)
    if to and m.size < 1000000:
        return [route(to), add_header("X-Zone", "far")]
`})
	d.open(b)
	m, r := message(), to(b, "ann@far.example")
	b.ReportAllocs()
	for b.Loop() {
		prog := d.p.Current()
		s := d.p.Begin(prog, d.env(), m)
		assert.Get(s.Message(context.Background()))(b)
		if got, err := s.Recipient(context.Background(), r); err != nil || got.Fate.Host != "relay.example" {
			b.Fatal(got, err)
		}
		assert.Must(b, prog.Release())
	}
}
