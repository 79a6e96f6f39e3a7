package tasmtp_test

import (
	"fmt"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// startIn runs ta-smtp in a zone.
func startIn(t *testing.T, spool *Spool, conf string, env ...string) *Process {
	t.Helper()
	cmd := command(t, spool, conf, "--idle=1m", "smtp")
	cmd.Env = append(cmd.Env, env...)
	p := Start(t, cmd)
	p.Answers()
	return p
}

// Z6: two clauses with sources of their own; the server sees each come from its own
// address and give its own name.
func TestZonesHaveTheirOwnSourcesAndNames(t *testing.T) {
	sink := new(Sink).Start(t, "", "")
	spool := NewSpool(t)
	zones := []struct{ sources, helo, peer, hello string }{
		{"127.0.0.2", "bulk.here.test", "127.0.0.2", "bulk.here.test"},
		{"127.0.0.3=named.here.test", "not.this.test", "127.0.0.3", "named.here.test"},
		{"", "", "127.0.0.1", "mta.zm.example.org"},
		{"127.0.0.4", "[127.0.0.4]", "127.0.0.4", "[127.0.0.4]"},
		{"", "only.the.name.test", "127.0.0.1", "only.the.name.test"},
	}
	for i, z := range zones {
		p := startIn(t, spool, conf(spool, sink), "SOURCES="+z.sources, "HELO="+z.helo)
		p.Say(spool.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}) + "\t[127.0.0.1]\n")
		Only(t, p.Answers(), taproto.OK3, "")
		if m := sink.Messages()[i]; m.Peer != z.peer || m.Hello != z.hello {
			t.Errorf("zone %+v: it came from %s as %s", z, m.Peer, m.Hello)
		}
	}
}

// Z16: a message comes from the same source at every attempt, by whatever process;
// messages are spread over the sources; a kept connection serves its source only.
func TestAMessageKeepsItsSource(t *testing.T) {
	sink := (&Sink{Answer: On(".", "451 4.3.0 once more")}).Start(t, "", "")
	spool := NewSpool(t)
	const messages = 24
	var names []string
	for range messages {
		names = append(names, spool.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}))
	}
	for range 3 {
		p := startIn(t, spool, conf(spool, sink), "SOURCES=127.0.0.2,127.0.0.3,127.0.0.4")
		for _, name := range names {
			p.Say(name + "\t[127.0.0.1]\n")
			p.Answers()
		}
	}
	seen := map[string]int{}
	all := sink.Messages()
	for i := range messages {
		first := all[i].Peer
		seen[first]++
		for round := 1; round < 3; round++ {
			assert.Equal(t, all[round*messages+i].Peer, first, "source of message %d", i)
		}
	}
	for _, s := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		if seen[s] < 2 {
			t.Errorf("%d of %d messages came from %s", seen[s], messages, s)
		}
	}
	assert.Equal(t, sink.Connects(), 9, "connections")
}

// K14: a source that this machine does not have is our fault: the message waits, the
// host and its other mail do not.
func TestASourceThatCannotBeBoundIsOurFault(t *testing.T) {
	sink := new(Sink).Start(t, "", "")
	cases := map[string]struct{ sources, text string }{
		"not ours":     {"192.0.2.77", "source 192.0.2.77 cannot be used on this machine: cannot assign requested address"},
		"other family": {"2001:db8::1", "no source of the zone is of the family of 127.0.0.1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spool := NewSpool(t)
			p := startIn(t, spool, conf(spool, sink), "SOURCES="+c.sources)
			p.Say(spool.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}) + "\t[127.0.0.1]\n")
			a := p.Answers()
			Only(t, a, taproto.Deferred, c.text)
			assert.Contains(t, a[0].Notary, "4.3.5")
		})
	}
	assert.Equal(t, sink.Connects(), 0, "connections were made")
}

func TestBadZone(t *testing.T) {
	for env, want := range map[string]string{
		"SOURCES=127.0.0.2,mail.test": "SOURCES: mail.test is no address",
		"SOURCES=127.0.0.2=a..b":      "SOURCES: 127.0.0.2=a..b: the name cannot be used",
		"HELO=a..b":                   "HELO: a..b cannot be used",
	} {
		cmd := command(t, NewSpool(t), "HOSTNAME=here.test\n", "smtp")
		cmd.Env = append(cmd.Env, env)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != config.ExitConfig || !strings.Contains(string(out), want) {
			t.Errorf("%s: got %v, %s; want %s", env, err, out, fmt.Sprint("exit code ", config.ExitConfig, ", ", want))
		}
	}
}
