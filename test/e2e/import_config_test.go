package e2e

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// What import-config makes of a Postfix is a configuration that can be used, and in which
// addresses go where Postfix sends them.
func TestImportedConfigurationsRouteAsPostfixDid(t *testing.T) {
	zmctl := filepath.Join(bin, "zmctl")
	// What the other machine has and this one has not is no fault of the configuration.
	elsewhere := regexp.MustCompile(`cannot be asked for|certificate|\.pem|\.crt|\.key|dovecot|/private/|connection refused|no such file|no address of this machine`)
	tests := map[string]map[string]string{ // configuration, address, channel!host and address, or the class of the failure
		"debian": {
			"webmaster@example.com": "no user here", "nosuchuser@example.com": "rejected", "joe@far.example": "smtp!far.example joe@far.example",
		},
		"null-client": {"joe@far.example": "smtpx!mail.example.com:587 joe@far.example"},
		"small-company": {
			"x@example.net": "no user here", "joe@far.example": "smtp!far.example joe@far.example", "nosuchuser@example.com": "rejected",
		},
		"backup-mx": {
			"alice@example.com": "smtpx!mx1.example.com alice@example.com", "nosuch@example.com": "rejected", "any@example.org": "smtpx![192.0.2.1]:2525 any@example.org",
			"x@sub.example.edu": "smtp!edu.example.edu x@sub.example.edu", "a@gone.example": "rejected", "a@null.example": "bitbucket!null.example a@null.example",
			"joe@far.example": "smtpx!smart.example joe@far.example",
		},
		"srs-forwarder": {
			"chair@club.example": "smtp!gmail.example alice@gmail.example", "all@club.example": "smtp!gmail.example alice@gmail.example, smtp!web.example bob@web.example",
			"anyone@friends.example": "smtp!web.example friends@web.example", "member-42@club.example": "smtp!members.example m42@members.example", "nosuch@club.example": "rejected",
		},
		"amavis": nil, "postfixadmin": nil, "mailcow": nil, "iredmail": nil, "multi-instance": nil, "mailman3": nil, "mailing-lists": nil,
	}
	for name, addresses := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := filepath.Join(t.TempDir(), "new")
			from := assert.Get(filepath.Abs("../../internal/admin/confimport/testdata/" + name))(t)
			if out, err := exec.Command(zmctl, "import-config", "postfix", "--to", to, from).CombinedOutput(); exitCode(err) > 1 {
				t.Fatalf("%v\n%s", err, out)
			}
			conf := filepath.Join(to, "zmailer.conf")
			out, err := exec.Command(zmctl, "--config", conf, "check-config").CombinedOutput()
			for line := range strings.Lines(string(out)) {
				if err != nil && !elsewhere.MatchString(line) && !strings.Contains(line, "can be used") && !strings.Contains(line, "warning") {
					t.Errorf("check-config: %s", line)
				}
			}
			for address, want := range addresses {
				out, err := exec.Command(zmctl, "--config", conf, "route", "--json", address).Output()
				if exitCode(err) > 1 {
					t.Fatalf("route %s: %v", address, err)
				}
				var answer struct {
					Recipients []struct {
						Verdict string
						Targets []struct{ Channel, Host, User string }
					}
				}
				assert.Must(t, json.Unmarshal(out, &answer))
				var targets []string
				rejected := false
				for _, r := range answer.Recipients {
					rejected = rejected || r.Verdict != "routed"
					for _, target := range r.Targets {
						if target.Channel == "error" {
							rejected = true
						}
						targets = append(targets, target.Channel+"!"+target.Host+" "+target.User)
					}
				}
				switch got := strings.Join(targets, ", "); {
				case want == "no user here": // an alias or catch-all leads to users that this machine has not
					if !rejected {
						t.Errorf("%s: got %s", address, got)
					}
				case want == "rejected" && rejected:
				case got != want:
					t.Errorf("%s: got %s, want %s\n%s", address, got, want, out)
				}
			}
		})
	}
}

// exitCode returns the code of a command's error; 0: there is none.
func exitCode(err error) int {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return 127
	}
	return 0
}
