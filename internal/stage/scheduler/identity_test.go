package scheduler

import (
	"io"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"testing"
)

// output starts an agent and gives what it says.
func output(t *testing.T, l launch) string {
	t.Helper()
	l.dir = "/"
	a, out, err := l.start(nil, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.in.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.proc.Wait(); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func words(s string) string { return strings.Join(strings.Fields(s), " ") }

// Z6: what a clause says of its zone reaches the agents that serve it; user, group and
// nice are what their processes have.
func TestAgentsRunAsTheirClauseSays(t *testing.T) {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("there is no user nobody")
	}
	f := mustConf(t, `
a/* nice=5 sources="192.0.2.1,192.0.2.2" helo=out.example command="/bin/sh"
b/* nice=5 user=nobody command="/bin/sh"
c/* group=1 command="/bin/sh"
`)
	start := func(channel, script string) string {
		l := launchOf(f.Match(channel, "h"), channel, "h")
		l.argv = []string{"/bin/sh", "-c", script}
		l.env = append(l.env, "PATH="+os.Getenv("PATH"))
		return words(output(t, l))
	}
	own, err := exec.Command("nice").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := start("a", "nice; echo $SOURCES $HELO"), "5 192.0.2.1,192.0.2.2 out.example"; got != want {
		t.Errorf("zone: got %q, want %q", got, want)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root starts agents as others")
	}
	if got := start("c", "nice"); got != words(string(own)) {
		t.Errorf("the nice of one clause is in another's agents: %q", got)
	}
	if got, want := start("b", "id -u; id -g; nice"), nobody.Uid+" "+nobody.Gid+" 5"; got != want {
		t.Errorf("user: got %q, want %q", got, want)
	}
	if got, want := start("c", "id -u; id -g; id -G"), "0 1 1"; got != want {
		t.Errorf("group: got %q, want %q", got, want)
	}
}
