package install

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
)

// sinkEnv is set in the process that is another host: it names a directory.
const sinkEnv = "INSTALL_TEST_SINK"

// farAddr is where the other host listens, on the machine's loopback.
const farAddr = "127.0.0.1:2626"

// farHost starts another mail host within the machine's network. It writes the subjects of
// what it takes into the file got of the directory, each after a line "signed" if the message
// has a signature of DKIM, and while the file hold is there it does not answer the end of a
// message, as a slow host; the file holding shows that.
func farHost(t *testing.T, m *machine, dir string) {
	t.Helper()
	self := assert.Get(os.Executable())(t)
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(m.leader), "--net", self)
	cmd.Env = append(os.Environ(), sinkEnv+"="+dir)
	cmd.Stderr = os.Stderr
	said := assert.Get(cmd.StdoutPipe())(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	assert.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	// A delivery that is refused is tried again only after a minute.
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		t.Fatalf("another host does not listen: %q %v", line, err)
	}
}

// beFarHost is the process of sinkEnv.
func beFarHost() {
	dir := os.Getenv(sinkEnv)
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	s := &peer.Sink{Listen: farAddr,
		Stall: func(at string, _ *peer.Message) {
			if at != peer.AtDot || !there("hold") {
				return
			}
			_ = os.WriteFile(filepath.Join(dir, "holding"), nil, 0o644)
			for tick := time.NewTicker(20 * time.Millisecond); there("hold"); <-tick.C {
			}
		},
		OnMessage: func(m *peer.Message) {
			f, err := os.OpenFile(filepath.Join(dir, "got"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				return
			}
			defer f.Close()
			for line := range strings.Lines(string(m.Data)) {
				if subject, ok := strings.CutPrefix(line, "Subject: "); ok {
					fmt.Fprintln(f, strings.TrimSpace(subject))
				} else if strings.HasPrefix(line, "DKIM-Signature:") {
					fmt.Fprintln(f, "signed")
				}
			}
		},
	}
	if err := s.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "another host:", err)
		os.Exit(1)
	}
	fmt.Println("listening")
	select {}
}
