package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// K3, and the trap "body copied once per domain": bytes on the disk for a megabyte to
// 1000 recipients on 100 domains, all waiting.
func TestThousandRecipientsKeepOneMegabyte(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "451 4.2.1 later" }})
	s := start(t, sink, slow)
	args := []string{"-f", "bob@mta.example"}
	for n := range 1000 {
		args = append(args, fmt.Sprintf("n%d@d%d.example", n, n%100))
	}
	const size = 1 << 20
	submit(t, s, "Subject: x\n\n"+strings.Repeat("0123456789abcde\n", size/16), args...)
	for n := range 1000 {
		event(t, s, "deferred", "rcpt", fmt.Sprintf("n%d@d%d.example", n, n%100))
	}
	var blocks int64
	err := filepath.WalkDir(s.PostOffice(), func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(name)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			t.Fatal("no blocks")
		}
		blocks += st.Blocks
		return nil
	})
	assert.Must(t, err)
	got := blocks * 512
	t.Logf("%d bytes on the disk for %d of text", got, size)
	if got > size+size/2 {
		t.Errorf("%d bytes on the disk, want little more than %d", got, size)
	}
}

// The trap "a local fault answered with 5xx": an agent that is short of descriptors, at
// every number of them, or that gets no answer from its name server, fails no recipient.
func TestAgentInLocalTroubleFailsNoRecipient(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "451 4.2.1 later" }})
	s := start(t, sink, func(s *suite.Suite) {
		slow(s)
		s.Files["routes"] = "named.example smtp!\n. smtp!" + sink.RouteHost() + "\n"
		s.Settings = map[string]string{"RESOLVER": "127.0.0.1:1"} // no server answers there
	})
	submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "a@sink.example", "b@named.example", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
	event(t, s, "deferred", "rcpt", "a@sink.example")
	event(t, s, "deferred", "rcpt", "b@named.example", "status", "4.4.3")
	stop(t, s)
	name := only(t, s, "transport")
	for _, agent := range []string{"ta-smtp smtp", "ta-mailbox local"} {
		for n := 3; n < 24; n++ {
			cmd := s.Command("true")
			cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s/%s", n, s.Bin, agent)}
			cmd.Dir = path(s, "transport")
			host := sink.RouteHost()
			if n%2 == 1 {
				host = "named.example"
			}
			cmd.Stdin = strings.NewReader(name + "\t" + host + "\n\n")
			said, _ := run(t, cmd)
			for line := range strings.Lines(said) {
				if strings.Contains(line, "\terror") {
					t.Errorf("%s with %d descriptors answered %q", agent, n, line)
				}
			}
			for _, r := range spec(t, s, name).Groups[0].Recipients {
				if r.Tag == workspec.TagFailed {
					t.Fatalf("%s with %d descriptors failed %s", agent, n, r.Address)
				}
			}
		}
	}
}
