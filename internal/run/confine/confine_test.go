package confine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// METRICS=unix is no word to the file opener: the right to make a socket in the postoffice, and to
// remove it, is one to remove all.
func TestWhatWritesNothingMakesNoSocket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(file, []byte("POSTOFFICE="+t.TempDir()+"\nMETRICS=unix\n"), 0o600))
	c := assert.Get(config.Load(file))(t)
	for program, want := range map[string]bool{"router": true, "scheduler": true, "opener": false} {
		assert.Equal(t, PlanFor(program, c).Socket, want, program)
	}
}

// To become the user that one is says nothing of a right; a site may have DAEMONUSER=nobody.
func TestAnotherUserIsNoneOfOnesOwn(t *testing.T) {
	for _, uid := range []int{0, 1000, 65533, 65534} {
		if got := another(uid); got == uid || got == 0 {
			t.Errorf("uid %d: got %d", uid, got)
		}
	}
}

// A confined scheduler starts ta-smtp, which confines itself again: it still needs /etc/resolv.conf and
// the system's certificates.
func TestProgramOfAConfinedOneReadsWhatIsOutside(t *testing.T) {
	if chain, ok := os.LookupEnv("CONFINE_TEST_CHAIN"); ok {
		enterAndRead(t, strings.Fields(chain))
		return
	}
	base := t.TempDir()
	office := filepath.Join(base, "po")
	beside := filepath.Join(base, "beside")
	assert.Must(t, os.MkdirAll(filepath.Join(office, "orders"), 0o700))
	assert.Must(t, os.WriteFile(beside, nil, 0o600))
	assert.Must(t, os.WriteFile(filepath.Join(office, "orders", "secret"), nil, 0o600))
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "CONFINE_TEST_CHAIN=scheduler ta-smtp", "CONFINE_TEST_OFFICE="+office, "CONFINE_TEST_BESIDE="+beside)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// enterAndRead enters the sandbox of the first program and starts the rest of the chain in it; the
// last one opens files.
func enterAndRead(t *testing.T, chain []string) {
	office := os.Getenv("CONFINE_TEST_OFFICE")
	r, err := Plan{Program: chain[0], Profile: profiles()[chain[0]], Mode: "yes", Office: office}.Enter()
	assert.Must(t, err)
	if len(chain) > 1 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "CONFINE_TEST_CHAIN="+strings.Join(chain[1:], " "))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", chain[1], err, out)
		}
		return
	}
	for _, path := range []string{"/etc/passwd", os.Getenv("CONFINE_TEST_BESIDE")} {
		_, err := os.ReadFile(path)
		assert.Must(t, err)
	}
	if _, err := os.ReadFile(filepath.Join(office, "orders", "secret")); err == nil && strings.HasPrefix(r.Landlock, "abi") {
		t.Error("a file of a directory that is not in the profile can be read")
	}
}
