package service

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// fakeSystemd returns a root directory and a systemctl and journalctl in PATH that write down
// how they are called; show is what the first one knows.
func fakeSystemd(t *testing.T, show string) (root string, calls func() []string) {
	t.Helper()
	root = t.TempDir()
	bin := filepath.Join(root, "bin")
	for _, dir := range []string{bin, filepath.Join(root, "run/systemd/system")} {
		assert.Must(t, os.MkdirAll(dir, 0o755))
	}
	noted := filepath.Join(root, "calls")
	files := map[string]string{
		"systemctl":  "#!/bin/sh\n[ \"$1\" = show ] && exec /bin/cat '" + root + "/show'\necho \"$@\" >> '" + noted + "'\n[ ! -e '" + root + "/fail' ]\n",
		"journalctl": "#!/bin/sh\necho journalctl \"$@\" >> '" + noted + "'\nexec /bin/cat '" + root + "/journal'\n",
	}
	for name, text := range files {
		assert.Must(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755))
	}
	assert.Must(t, os.WriteFile(filepath.Join(root, "show"), []byte(show), 0o644))
	t.Setenv("PATH", bin)
	return root, func() []string {
		b, err := os.ReadFile(noted)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
}

// unitsOf returns what systemctl show says of units whose configuration is file.
func unitsOf(file string) string {
	unit := func(id, state, sub, pid, more string) string {
		return "MainPID=" + pid + "\nNRestarts=2\nResult=success\nExecStart={ path=/usr/libexec/zmailer/x ; argv[]=/usr/libexec/zmailer/x --config " + file +
			" ; ignore_errors=no }\nId=" + id + "\nLoadState=loaded\nActiveState=" + state + "\nSubState=" + sub + "\n" + more
	}
	return strings.Join([]string{
		unit("zmailer-smtpserver.service", "active", "running", "4711", "ActiveEnterTimestampMonotonic=1000000\n"),
		unit("zmailer-router.service", "failed", "failed", "0", ""),
		unit("zmailer-scheduler.service", "inactive", "dead", "0", ""),
		"Id=zmailer.target\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n",
		"Id=zmailer-smtpserver.socket\nLoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\n",
	}, "\n")
}

func settingsAt(t *testing.T) *config.Config {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, config.WriteDefaults(dir, "POSTOFFICE="+filepath.Join(dir, "po")))
	settings, err := config.Load(filepath.Join(dir, "zmailer.conf"))
	assert.Must(t, err)
	return settings
}

// Where units of this postoffice are installed systemd does it; for another postoffice,
// or on a machine that systemd does not run, it is left alone.
func TestSystemdIsAskedForItsOwnPostofficeAlone(t *testing.T) {
	settings := settingsAt(t)
	root, _ := fakeSystemd(t, unitsOf(settings.File))
	if findSystemd(t.Context(), root, settings) == nil {
		t.Error("the units of this postoffice were not found")
	}
	if findSystemd(t.Context(), root, settingsAt(t)) != nil {
		t.Error("the units of another postoffice were taken")
	}
	if findSystemd(t.Context(), t.TempDir(), settings) != nil {
		t.Error("systemd was asked where it does not run")
	}
	root, _ = fakeSystemd(t, "Id=zmailer-scheduler.service\nLoadState=not-found\n")
	if findSystemd(t.Context(), root, settings) != nil {
		t.Error("units that are not there were found")
	}
}

func TestSystemdReportsStates(t *testing.T) {
	settings := settingsAt(t)
	root, _ := fakeSystemd(t, unitsOf(settings.File))
	d := findSystemd(t.Context(), root, settings)
	list, err := d.states(t.Context())
	if err != nil || len(list) != 3 { // no unit for agents
		t.Fatalf("got %+v, %v", list, err)
	}
	if s := list[0]; !s.Runs || s.Pid != 4711 || s.Starts != 3 || s.Since == nil {
		t.Errorf("running: got %+v", s)
	}
	if s := list[1]; s.Runs || !strings.Contains(s.Last, "journalctl -u zmailer-router.service") {
		t.Errorf("failed: got %+v", s)
	}
	if s := list[2]; s.Runs || !s.Stopped {
		t.Errorf("stopped: got %+v", s)
	}
}

func TestSystemctlIsCalledForUnits(t *testing.T) {
	settings := settingsAt(t)
	all := "zmailer-smtpserver.service zmailer-router.service zmailer-scheduler.service"
	tests := map[string]struct {
		verb  string
		names []string
		show  func(string) string
		want  string
	}{
		"start of all":          {"start", nil, nil, "start zmailer.target " + all},
		"stop of all":           {"stop", nil, nil, "stop zmailer.target " + all},
		"restart of all":        {"restart", nil, nil, "restart " + all},
		"stop of one":           {"stop", []string{"router"}, nil, "stop zmailer-router.service"},
		"a socket stops with":   {"stop", []string{"smtpserver"}, activeSocket, "stop zmailer-smtpserver.socket zmailer-smtpserver.service"},
		"a socket starts with":  {"start", []string{"smtpserver"}, activeSocket, "start zmailer-smtpserver.socket zmailer-smtpserver.service"},
		"a socket goes on":      {"restart", nil, activeSocket, "restart " + all},
		"agents restart with":   {"restart", []string{"scheduler"}, withAgents, "restart zmailer-scheduler.service zmailer-agents.service"},
		"agents of no matter":   {"restart", []string{"router"}, withAgents, "restart zmailer-router.service"},
		"a socket of no matter": {"stop", []string{"scheduler"}, activeSocket, "stop zmailer-scheduler.service"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			show := unitsOf(settings.File)
			if tt.show != nil {
				show = tt.show(show)
			}
			root, calls := fakeSystemd(t, show)
			d := findSystemd(t.Context(), root, settings)
			assert.Must(t, d.act(t.Context(), tt.verb, tt.names, t.Output()))
			if got := calls(); !slices.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			assert.Must(t, os.WriteFile(filepath.Join(root, "fail"), nil, 0o600))
			if err := d.act(t.Context(), tt.verb, tt.names, t.Output()); err == nil || !strings.Contains(err.Error(), "systemctl "+tt.verb) {
				t.Errorf("a failing systemctl: got %v", err)
			}
		})
	}
}

func withAgents(show string) string {
	return show + "\nId=zmailer-agents.service\nLoadState=loaded\nActiveState=active\nMainPID=4712\n"
}

func activeSocket(show string) string {
	return strings.Replace(show, "ActiveState=inactive\nUnitFileState=disabled", "ActiveState=active\nUnitFileState=enabled", 1)
}

// zmctl status ends with 1 where a unit has failed, and only there.
func TestFailedUnitIsReported(t *testing.T) {
	settings := settingsAt(t)
	for name, tt := range map[string]struct {
		show func(string) string
		want bool
	}{
		"failed":  {func(show string) string { return show }, true},
		"stopped": {func(show string) string { return strings.ReplaceAll(show, "=failed", "=inactive") }, false},
		"agents failed": {func(show string) string {
			return strings.Replace(strings.ReplaceAll(withAgents(show), "=failed", "=inactive"), "active\nMainPID=4712", "failed\nMainPID=0", 1)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			root, _ := fakeSystemd(t, tt.show(unitsOf(settings.File)))
			d := findSystemd(t.Context(), root, settings)
			list, err := d.states(t.Context())
			assert.Must(t, err)
			assert.Equal(t, (&Status{Daemons: list}).Ended(), tt.want)
		})
	}
}

// Where systemd runs the daemons, zmctl log reads the journal.
func TestLogOfUnitsIsTheJournal(t *testing.T) {
	settings := settingsAt(t)
	root, _ := fakeSystemd(t, unitsOf(settings.File))
	if path, err := logFile(t.Context(), root, settings); err != nil || path != "" {
		t.Errorf("got %q, %v, want the journal", path, err)
	}
	if path, err := logFile(t.Context(), t.TempDir(), settings); !errors.Is(err, ErrNoLog) || path != filepath.Join(settings.PostOffice(), postoffice.LogFile) {
		t.Errorf("without systemd: got %q, %v", path, err)
	}
}
