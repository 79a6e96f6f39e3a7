package suite

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build compiles the programs into dir.
func Build(dir string) error {
	out, err := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "zmailer/cmd/...").CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// WithPrograms builds the programs into a directory that every user may read, calls run
// with it, and removes it. It gives run's exit code, for a TestMain.
func WithPrograms(run func(bin string) int) (code int) {
	dir, err := os.MkdirTemp("", "programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// Submitters and agents of other uids run from it.
	err = os.Chmod(dir, 0o755)
	if err == nil {
		err = Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run(dir)
}

// AtOnce has so many parallel tests run at a time, unless -parallel says otherwise: for
// tests that wait more than they compute. To be called before the flags are parsed.
func AtOnce(tests int) {
	if err := flag.Set("test.parallel", fmt.Sprint(tests)); err != nil {
		panic(err) // the flag is package testing's
	}
}
