package scheduler

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"testing"

	"zmailer/internal/run/config"
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
	conf := mustConf(t, `
a/* nice=5 sources="192.0.2.1,192.0.2.2" helo=out.example command="/bin/sh"
b/* nice=5 user=nobody command="/bin/sh"
c/* group=1 command="/bin/sh"
`)
	start := func(channel, script string) string {
		l := conf.Match(channel, "h").launch(channel, "h")
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

// M30: users that are not there are told before mail waits for them.
func TestUnknownUserIsNamedWithItsPlace(t *testing.T) {
	conf := mustConf(t, "*/*\n\tinterval=1m user=no-such-user\nsmtp/* group=no-such-group command=\"x\"\nlocal/* user=root command=y\n")
	want := []string{
		"scheduler.conf:2:14: there is no user no-such-user",
		"scheduler.conf:3:8: there is no group no-such-group",
	}
	errs := conf.checkIdentities(os.Geteuid() == 0)
	if os.Geteuid() == 0 && len(errs) != len(want) || len(errs) < len(want) {
		t.Fatalf("got %q, want %q", errs, want)
	}
	for i := range want {
		if bad := (*config.Error)(nil); errs[i].Error() != want[i] || !errors.As(errs[i], &bad) {
			t.Errorf("got %q, want %q", errs[i], want[i])
		}
	}
}
