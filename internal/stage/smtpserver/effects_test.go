package smtpserver

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
)

// Op10: FILTER of an access table has the whole message go to the filter, the last one counting,
// also if the message's file was begun before the rule was asked.
func TestFilterOfAnAccessTableGoesWithTheMessage(t *testing.T) {
	dir := files(t, map[string]string{
		"access":  "check_recipient_access file:rcpts\ncheck_sender_access file:senders\n",
		"rcpts":   "r0@mx.example.org FILTER smtp-amavis:[127.0.0.1]:10024\nr250@mx.example.org FILTER smtp:filter.example:25\n",
		"senders": "empty@example.net FILTER lmtp:\n",
	})
	for name, tt := range map[string]struct {
		from        string
		first, many int
		want        string
	}{
		"one recipient":         {"a@example.net", 0, 1, "smtpx!127.0.0.1:10024"},
		"no rule":               {"a@example.net", 1, 1, ""},
		"the last one":          {"a@example.net", 0, 251, "smtp!filter.example:25"},
		"begun before the rule": {"a@example.net", 1, 250, "smtp!filter.example:25"},
		"an empty next hop":     {"empty@example.net", 1, 1, "lmtp!"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) {
				c.Access.Dir = dir
				unlimited(c)
			})
			p := r.greeted().from(tt.from)
			p.name(tt.first, tt.many, "250")
			p.content(plain, "250")
			names := slices.DeleteFunc(r.names("router"), func(name string) bool { return strings.HasPrefix(name, ".") })
			assert.Equal(t, len(names), 1)
			m, err := envelope.Read(strings.NewReader(string(read(t, filepath.Join(r.dir, "router", names[0])))))
			assert.Must(t, err)
			assert.Equal(t, m.Filter, tt.want)
			assert.Equal(t, len(m.Recipients), tt.many)
		})
	}
}
