package peer

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Each of the other systems, as the benchmark runs it, relays to where its routes say, and
// keeps nothing on the machine. PEERS says where packages are unpacked.
func TestPeersRelay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("they want to be started by root")
	}
	root := os.Getenv("PEERS")
	_, postfix := exec.LookPath(PostfixMaster)
	for _, c := range []struct {
		name    string
		here    bool
		command func(dir, listen, relay string, routes map[string]string) (*exec.Cmd, error)
	}{
		{"postfix", postfix == nil, func(dir, listen, relay string, routes map[string]string) (*exec.Cmd, error) {
			return (&Postfix{Dir: dir, Listen: listen, RelayHost: relay, Routes: routes}).Command()
		}},
		{"exim", FindExim(root), func(dir, listen, relay string, routes map[string]string) (*exec.Cmd, error) {
			return (&Exim{Dir: dir, Root: root, Listen: listen, Relay: relay, Routes: routes}).Command()
		}},
		{"opensmtpd", FindOpenSMTPD(root), func(dir, listen, relay string, routes map[string]string) (*exec.Cmd, error) {
			return (&OpenSMTPD{Dir: dir, Root: root, Listen: listen, Relay: relay, Routes: routes}).Command()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.here {
				t.Skip(c.name + " is not here")
			}
			relays(t, c.command)
		})
	}
}

func relays(t *testing.T, command func(dir, listen, relay string, routes map[string]string) (*exec.Cmd, error)) {
	dir, err := os.MkdirTemp("", "peer-") // which other users may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	all, special := &Sink{}, &Sink{}
	for _, s := range []*Sink{all, special} {
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
	}
	listen, err := FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := command(dir, listen, all.RouteHost(), map[string]string{"special.example": special.RouteHost()})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log.Close()
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Log(err)
		}
		stuck := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // by our signal
		stuck.Stop()
	})
	err = AwaitListener(listen, time.Minute)
	to := []string{"a@sink.example", "b@special.example"}
	if err == nil {
		err = (&Source{Addr: listen, Connections: 1, Messages: 2, From: "s@source.example",
			To: func(n int) string { return to[n] }, Body: func(int) []byte { return []byte("Subject: x\r\n\r\nx\r\n") }}).Run(context.Background())
	}
	for i, s := range []*Sink{all, special} {
		if err == nil {
			err = s.Wait(1, time.Minute)
		}
		if err == nil && s.Messages()[0].Recipients[0] != to[i] {
			t.Errorf("got %q, want %q", s.Messages()[0].Recipients[0], to[i])
		}
	}
	if err != nil {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\n%s", err, said)
	}
}
