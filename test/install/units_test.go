package install

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// mostExposed is what systemd-analyze may call a unit's exposure, of 10.
const mostExposed = 2.0

// systemd-analyze rates each unit by the rights that it has and does not need.
func TestUnitsAreHardened(t *testing.T) {
	need(t, "systemd-analyze")
	if !strings.Contains(run(t, "systemd-analyze", "--help"), "--offline") {
		t.Skip("skipped: this systemd-analyze looks at running systems alone")
	}
	units, err := filepath.Glob(filepath.Join(installed(t), "usr/lib/systemd/system/*.service"))
	if err != nil || len(units) < 4 {
		t.Fatalf("%v %v", units, err)
	}
	for _, unit := range units {
		name := filepath.Base(unit)
		out := run(t, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=100", unit)
		m := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
		if m == nil {
			t.Errorf("%s: %s", name, out)
			continue
		}
		got, err := strconv.ParseFloat(m[1], 64)
		if err != nil || got > mostExposed {
			t.Errorf("%s is exposed by %v, want at most %v: %v\n%s", name, got, mostExposed, err, out)
		}
		t.Logf("%s: exposure %.1f", name, got)
	}
}

// systemd finds nothing to complain of: settings that it does not know, programs that are
// not there, units that want others that are missing.
func TestUnitsAreWellFormed(t *testing.T) {
	need(t, "systemd-analyze")
	root := installed(t)
	units, err := filepath.Glob(filepath.Join(root, "usr/lib/systemd/system/zmailer*"))
	if err != nil || len(units) < 7 {
		t.Fatalf("%v %v", units, err)
	}
	// Units of the system that ours name stand in the machine's own directories; what is
	// said of those is not ours to mend.
	out, err := exitOf(append([]string{"systemd-analyze", "verify", "--man=no", "--recursive-errors=no"}, inPlace(t, root, units)...)...)
	for line := range strings.Lines(out) {
		if strings.Contains(line, "zmailer") {
			t.Error(strings.TrimSpace(line))
		}
	}
	if err != nil && t.Failed() {
		t.Error(err)
	}
}

// Nothing but this machine reaches the ports that units open.
func TestSocketsOfUnitsAreOfThisMachine(t *testing.T) {
	sockets, err := filepath.Glob("../../packaging/systemd/*.socket")
	if err != nil || len(sockets) == 0 {
		t.Fatal(sockets, err)
	}
	for _, file := range sockets {
		for line := range strings.Lines(read(t, file)) {
			value, ok := strings.CutPrefix(strings.TrimSpace(line), "Listen")
			if !ok {
				continue
			}
			_, address, _ := strings.Cut(value, "=")
			if !strings.HasPrefix(address, "127.0.0.1:") && !strings.HasPrefix(address, "[::1]:") && !strings.HasPrefix(address, "/run/") {
				t.Errorf("%s: %s", file, line)
			}
		}
	}
}
