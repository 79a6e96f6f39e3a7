package agents

import (
	"io"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// Z6: agents have the environment, user, group and nice of their clause.
func TestAgentsRunAsTheirClauseSpecifies(t *testing.T) {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("there is no user nobody")
	}
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	start := func(l Launch, script string) string {
		t.Helper()
		l.Argv = []string{"/bin/sh", "-c", script}
		l.Env = append(l.Env, "PATH="+os.Getenv("PATH"))
		in, out, err := os.Pipe()
		assert.Must(t, err)
		defer in.Close()
		p, err := l.begin("/", in, out, nil, os.Geteuid() == 0)
		out.Close()
		assert.Must(t, err)
		text, err := io.ReadAll(in)
		if _, werr := p.Wait(); err != nil || werr != nil {
			t.Fatal(err, werr)
		}
		return words(string(text))
	}
	own, err := exec.Command("nice").Output()
	assert.Must(t, err)
	assert.Equal(t, start(Launch{Nice: 5, Env: []string{"HELO=out.example"}}, "nice; echo $HELO"), "5 out.example", "zone")
	if os.Geteuid() != 0 {
		t.Skip("only root starts agents as other users")
	}
	assert.Equal(t, start(Launch{Group: "1"}, "nice"), words(string(own)), "the nice of another agent")
	assert.Equal(t, start(Launch{User: "nobody", Nice: 5}, "id -u; id -g; nice"), nobody.Uid+" "+nobody.Gid+" 5", "user")
	assert.Equal(t, start(Launch{Group: "1"}, "id -u; id -g; id -G"), "0 1 1", "group")
}
