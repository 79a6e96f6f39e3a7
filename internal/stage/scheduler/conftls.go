package scheduler

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"time"

	"zmailer/internal/run/config"
)

// policyPatience is how long ta-smtp may think about a policy: it reads a file at most.
const policyPatience = 10 * time.Second

// badPolicies asks ta-smtp about each tls= of the file. What stands behind the level is
// the agent's to know, and one that it cannot use ends it at its start. Without ta-smtp
// nobody is asked.
func (c *Conf) badPolicies() (list []error) {
	program, err := findProgram("ta-smtp")
	if err != nil {
		return nil
	}
	for i := range c.bodies {
		b := &c.bodies[i]
		at, says := b.where["tls"]
		if !says {
			continue
		}
		s := defaultSettings()
		for _, set := range b.sets {
			set(&s)
		}
		if reason := policyRefused(program, s.TLS); reason != "" {
			list = append(list, c.bad(at, "tls=%s: %s", s.TLS, reason))
		}
	}
	return list
}

// policyRefused is why ta-smtp does not take a policy, "" if it does.
func policyRefused(program, policy string) string {
	ctx, cancel := context.WithTimeout(context.Background(), policyPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--check-policy", policy).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == config.ExitConfig {
		return strings.TrimSpace(string(out))
	}
	return "" // what else is wrong with the program its own check tells
}
