package scheduler

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/conf"
)

// Z6: the zone that a clause specifies reaches the agents that serve it.
func TestAgentsAreStartedAsTheirClauseSpecifies(t *testing.T) {
	f, err := conf.Parse("scheduler.conf", []byte(`
a/* nice=5 user=u group=g sources="192.0.2.1,192.0.2.2" helo=out.example tls=may auth=acc command="[A=$host] ta $channel"
`), nil)
	assert.Must(t, err)
	want := agents.Launch{Argv: []string{"ta", "a"}, Env: []string{"A=h", "SOURCES=192.0.2.1,192.0.2.2", "HELO=out.example", "TLSPOLICY=may", "ACCOUNT=acc"},
		User: "u", Group: "g", Nice: 5}
	assert.Same(t, agents.LaunchOf(f.Match("a", "h"), "a", "h"), want)
}

// A launcher starts nothing by a scheduler.conf that others than root can write.
func TestLauncherRefusesAConfigurationThatOthersCanWrite(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "zmailer.conf")
	assert.Must(t, os.WriteFile(file, []byte("POSTOFFICE="+filepath.Join(dir, "po")+"\n"), 0o600))
	settings, err := config.Load(file)
	assert.Must(t, err)
	path := settings.Path("scheduler.conf")
	assert.Must(t, os.WriteFile(path, []byte("local/*\n\tcommand=\"/bin/true $host\"\n"), 0o600))
	if os.Geteuid() == 0 {
		l := NewLauncher(settings, "nobody")
		if got, err := l.Launch("local", "h"); err != nil || !reflect.DeepEqual(got.Argv, []string{"/bin/true", "h"}) || l.Check() != nil {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	assert.Must(t, os.Chmod(path, 0o666))
	l := NewLauncher(settings, "nobody")
	if _, err := l.Launch("local", "h"); err == nil || l.Check() == nil {
		t.Error("it is used")
	}
}
