package route

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// Op13: recipients of a user's mail do not learn where the user was, if HIDECLIENT says so.
func TestOp13ReceivedLineOfAUserNamesNoClient(t *testing.T) {
	const client = "with ESMTPSA\nrcvdfrom laptop (host.example [192.0.2.9]:4711)\n"
	for name, tt := range map[string]struct {
		submitted string
		hide      bool
		hidden    bool
	}{
		"a user":                          {"submitted jane\n", true, true},
		"a user, not configured":          {"submitted jane\n", false, false},
		"a client of HEADERNETS":          {"submitted -\n", true, false},
		"another host, whose traces stay": {"", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.config.HideClient = tt.hide
			m := r.one("external\n" + client + tt.submitted + "from <q@example.net>\nto <a@example.net>\nenv-end\nSubject: x\n\n")
			assert.Must(t, m.Err)
			_, header, _ := strings.Cut(string(m.file), "\nm\n") // the c line is for this host's operators
			if got := !strings.Contains(header, "192.0.2.9") && !strings.Contains(header, "laptop"); got != tt.hidden {
				t.Errorf("hidden %v, want %v:\n%s", got, tt.hidden, m.file)
			}
			if !strings.Contains(string(m.file), "with ESMTPSA") {
				t.Errorf("no protocol:\n%s", m.file)
			}
		})
	}
}
