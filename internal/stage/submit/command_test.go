package submit

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// nobody is the uid of an unprivileged user, which the tests use when they run as root.
const nobody = 65534

var program = suite.Program{Name: "submit"}

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// command runs the program with no more rights than an ordinary user has.
func command(t *testing.T, postOffice string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program.Path(t), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"POSTOFFICE=" + postOffice}
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

func runCommand(cmd *exec.Cmd, in string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		return -1, "", err.Error()
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestOrdinaryUserSubmits(t *testing.T) {
	dir, _ := newPostOffice(t)
	code, stdout, stderr := runCommand(command(t, dir, "-oi", "-oem", "-fme@x", "-FMe", "you@y", "help"), "Subject: x\n\n.\n")
	if code != 0 || stdout+stderr != "" {
		t.Fatalf("exit code %d, said %q and %q; want silence", code, stdout, stderr)
	}
	want := "fullname Me\nfrom <me@x>\nto <you@y>\nto <help>\nenv-end\nSubject: x\n\n.\n"
	if os.Getuid() != 0 { // the postoffice is his
		assert.Equal(t, only(t, dir), want)
		return
	}
	name := waiting(t, dir)
	info := assert.Get(os.Stat(name))(t)
	if b, err := os.ReadFile(name); err != nil || !strings.HasSuffix(string(b), "\n"+want) || info.Mode() != 0o700 {
		t.Errorf("got %q, %v, mode %v, want %q", b, err, info.Mode(), want)
	}
	assert.Equal(t, info.Sys().(*syscall.Stat_t).Uid, nobody, "owner of the file")
}

// waiting returns the path of the one message that a router has to take next.
func waiting(t *testing.T, dir string) string {
	t.Helper()
	from := "router"
	if os.Getuid() == 0 {
		from = "public" // another user's is picked up there
	}
	names := list(t, dir, from)
	if len(names) != 1 {
		t.Fatalf("%s/ holds %q, want one message", from, names)
	}
	return filepath.Join(dir, from, names[0])
}

func TestProgramsExitCodesAreSysexits(t *testing.T) {
	dir, _ := newPostOffice(t)
	for name, tt := range map[string]struct {
		args []string
		code int
	}{
		"no recipient":     {nil, 64},
		"unknown flag":     {[]string{"-Z", "a@b"}, 64},
		"missing value":    {[]string{"-f"}, 64},
		"no zmctl for -bp": {[]string{"-bp"}, 71},
		"bad address":      {[]string{"a@@b"}, 65},
		"configuration":    {[]string{"--config", "/nonexistent/zmailer.conf", "a@b"}, 78},
		"no postoffice":    {[]string{"--postoffice", "/nonexistent", "a@b"}, 78},
		"newaliases":       {[]string{"-bi"}, 0},
		"help":             {[]string{"--help"}, 0},
		"verbose, no wait": {[]string{"-v", "--id", "a@b"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := runCommand(command(t, dir, tt.args...), "Subject: x\n\n")
			assert.Equal(t, code, tt.code)
			if tt.code != 0 && strings.Count(stderr, "\n") != 1 {
				t.Errorf("said %q, want one line", stderr)
			}
		})
	}
}

// S21, and the trap "a local fault answered with 5xx": rights that are missing are not
// the sender's fault.
func TestForbiddenDirectoryIsTemporary(t *testing.T) {
	dir, _ := newPostOffice(t)
	public := filepath.Join(dir, "public")
	assert.Must(t, os.Chmod(public, 0o555))
	code, _, stderr := runCommand(command(t, dir, "a@b"), "\n")
	if code != 75 || !strings.Contains(stderr, public) {
		t.Errorf("exit code %d, said %q; want 75 and the directory", code, stderr)
	}
}

// Z2: the message is never in memory.
func TestLargeMessageTakesConstantMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 100 MB")
	}
	const size = 100 << 20
	dir, _ := newPostOffice(t)
	cmd := command(t, dir, "a@b")
	in := assert.Get(cmd.StdinPipe())(t)
	assert.Must(t, cmd.Start())
	assert.Get(io.WriteString(in, "Subject: large\n\n"))(t)
	line := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	line[len(line)-1] = '\n'
	for n := 0; n < size; n += len(line) {
		assert.Get(in.Write(line))(t)
	}
	peak := highWater(t, cmd.Process.Pid)
	assert.Must(t, in.Close())
	assert.Must(t, cmd.Wait())
	info, err := os.Stat(waiting(t, dir))
	if err != nil || info.Size() < size {
		t.Errorf("size %v, %v", info, err)
	}
	if peak > 64<<10 {
		t.Errorf("it used %d kB", peak)
	}
}

// highWater returns the most memory that a process had, in kB.
func highWater(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	return assert.Get(strconv.Atoi(strings.Fields(rest)[0]))(t)
}
