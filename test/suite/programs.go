package suite

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// programs in the environment is a directory where the programs have been built already,
// as make test has it: a dozen packages want them, and to link all takes seconds.
const programs = "PROGRAMS"

// Build compiles the programs into dir, or copies them there.
func Build(dir string) error {
	built := os.Getenv(programs)
	if built == "" {
		return compile(dir+string(filepath.Separator), "zmailer/cmd/...")
	}
	list, err := os.ReadDir(built)
	if err != nil {
		return fmt.Errorf("copy the programs: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("copy the programs: %w", err)
	}
	for _, e := range list {
		if !e.Type().IsRegular() {
			continue // the manual
		}
		if err := copyProgram(filepath.Join(dir, e.Name()), filepath.Join(built, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// BuildOne is Build for one program, which is a file in cmd/, as path.
func BuildOne(path, name string) error {
	if built := os.Getenv(programs); built != "" {
		return copyProgram(path, filepath.Join(built, name))
	}
	return compile(path, "zmailer/cmd/"+name)
}

func compile(to, what string) error {
	out, err := exec.Command("go", "build", "-o", to, what).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", what, err, out)
	}
	return nil
}

// copyProgram copies: a test may change what it runs, and a link would be to a directory
// that other users do not see into.
func copyProgram(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy a program: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return fmt.Errorf("copy a program: %w", err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

// WithPrograms builds the programs into a directory that every user may read, calls run
// with it, and removes it, also when the tests are interrupted or killed. It gives run's exit
// code, for a TestMain.
func WithPrograms(run func(bin string) int) (code int) {
	dir, err := os.MkdirTemp("", "programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	remove, err := removeAtEnd(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, errors.Join(err, os.RemoveAll(dir)))
		return 1
	}
	defer func() {
		if err := remove(); err != nil {
			fmt.Fprintf(os.Stderr, "remove %s: %v\n", dir, err)
			code = 1
		}
	}()
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

// remover removes a directory when its input ends. It enters no other file system, and tries
// again while processes that are about to be killed still write there.
const remover = `read -r _; for i in 1 2 3 4 5; do rm -rf --one-file-system "$0" && exit; sleep 1; done; exit 1`

// removeAtEnd has a process of its own wait for the end of this one, however it comes, and remove
// a directory then; remove has it do so now. No signal to our process group reaches it.
func removeAtEnd(dir string) (remove func() error, err error) {
	cmd := exec.Command("/bin/sh", "-c", remover, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start what removes %s: %w", dir, err)
	}
	return func() error { return errors.Join(alive.Close(), cmd.Wait()) }, nil
}

// AtOnce has so many parallel tests run at a time, unless -parallel says otherwise: for
// tests that wait more than they compute. To be called before the flags are parsed.
func AtOnce(tests int) {
	if err := flag.Set("test.parallel", fmt.Sprint(tests)); err != nil {
		panic(err) // the flag is package testing's
	}
}
