package attack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// op is one thing that the attacker's process does.
type op struct {
	Do    string
	Path  string      `json:",omitempty"`
	To    string      `json:",omitempty"`
	Paths []string    `json:",omitempty"`
	Data  []byte      `json:",omitempty"`
	Mode  os.FileMode `json:",omitempty"`
	N     uint64      `json:",omitempty"` // a descriptor of hold, or how many
	From  uint64      `json:",omitempty"`
	Args  []string    `json:",omitempty"`
}

// result is what came of it.
type result struct {
	Errno unix.Errno
	Error string
	N     uint64
	Names []string
	Data  []byte
}

// attacker is a process of an unprivileged uid that runs the test's commands.
type attacker struct {
	t        *testing.T
	uid, gid int
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *json.Decoder
}

func newAttacker(t *testing.T, uid, gid int) *attacker {
	t.Helper()
	a := &attacker{t: t, uid: uid, gid: gid}
	a.cmd = exec.Command(filepath.Join(bin, "attacker"), "-test.run=^$")
	a.cmd.Env = append(os.Environ(), roleEnv+"=attacker")
	a.cmd.Dir, a.cmd.Stderr = "/", os.Stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, Pdeathsig: syscall.SIGKILL}
	in := assert.Get(a.cmd.StdinPipe())(t)
	out := assert.Get(a.cmd.StdoutPipe())(t)
	assert.Must(t, a.cmd.Start())
	a.in, a.out = in, json.NewDecoder(bufio.NewReader(out))
	t.Cleanup(func() {
		_ = a.in.Close()
		_ = a.cmd.Process.Kill()
		_ = a.cmd.Wait()
	})
	return a
}

// try does something that may fail.
func (a *attacker) try(o op) result {
	a.t.Helper()
	b, err := json.Marshal(o)
	if err == nil {
		_, err = a.in.Write(append(b, '\n'))
	}
	var r result
	if err == nil {
		err = a.out.Decode(&r)
	}
	if err != nil {
		a.t.Fatalf("the attacker's process: %s %s: %v", o.Do, o.Path, err)
	}
	return r
}

// do does something that must succeed, so that the case attacks at all.
func (a *attacker) do(o op) result {
	a.t.Helper()
	r := a.try(o)
	if r.Error != "" {
		a.t.Fatalf("the attacker cannot %s %s: %s", o.Do, o.Path, r.Error)
	}
	return r
}

// denied does something that the modes of the directories must refuse.
func (a *attacker) denied(o op) {
	a.t.Helper()
	if r := a.try(o); r.Errno != unix.EACCES && r.Errno != unix.EPERM {
		a.t.Errorf("the attacker's %s of %s: %q; want EACCES or EPERM", o.Do, o.Path, r.Error)
	}
}

// serve returns the attacker's process: it reads ops and answers each with a result.
func serve(in io.Reader, out io.Writer) int {
	s := &server{}
	d, e := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o op
		if err := d.Decode(&o); err != nil {
			s.stopRaces()
			return 0
		}
		var r result
		if err := s.do(o, &r); err != nil {
			r.Error = err.Error()
			_ = errors.As(err, &r.Errno)
		}
		if err := e.Encode(r); err != nil {
			return 1
		}
	}
}

type server struct {
	held  []*os.File
	stop  atomic.Bool
	races sync.WaitGroup
	turns atomic.Uint64
}

func (s *server) stopRaces() {
	s.stop.Store(true)
	s.races.Wait()
	s.stop.Store(false)
}

func (s *server) do(o op, r *result) (err error) {
	switch o.Do {
	case "hold": // a new file that stays open for writing
		return s.open(o.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL, o.Mode, o.Data, r)
	case "open": // one that is there
		return s.open(o.Path, int(o.N), 0, nil, r)
	case "flock":
		if err := s.open(o.Path, os.O_RDONLY|unix.O_NONBLOCK, 0, nil, r); err != nil {
			return err
		}
		return unix.Flock(int(s.held[r.N].Fd()), unix.LOCK_EX|unix.LOCK_NB)
	case "rewrite": // a file that is held
		f := s.held[o.N]
		if err := f.Truncate(0); err != nil {
			return err
		}
		_, err = f.WriteAt(o.Data, 0)
		return err
	case "held": // what is in the files that are held
		for _, f := range s.held {
			b, _ := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
			r.Data = append(r.Data, b...)
		}
		return nil
	case "list":
		list, err := os.ReadDir(o.Path)
		for _, e := range list {
			r.Names = append(r.Names, e.Name())
		}
		return err
	case "probe":
		probe(o, r)
		return nil
	case "many", "links":
		return many(o, r)
	case "race":
		s.race(o)
		return nil
	case "stop":
		s.stopRaces()
		r.N = s.turns.Swap(0)
		return nil
	}
	return change(o)
}

func (s *server) open(path string, flag int, mode os.FileMode, data []byte, r *result) error {
	f, err := os.OpenFile(path, flag, mode.Perm())
	if err != nil {
		return err
	}
	if len(data) > 0 {
		if _, err := f.Write(data); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if flag&os.O_CREATE != 0 {
		if err := f.Chmod(mode); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	r.N = uint64(len(s.held))
	s.held = append(s.held, f)
	return nil
}

// change is what needs no state: it is done by the races, too.
func change(o op) error {
	switch o.Do {
	case "file":
		f, err := os.OpenFile(o.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, o.Mode.Perm())
		if err != nil {
			return err
		}
		_, err = f.Write(o.Data)
		return errors.Join(err, f.Chmod(o.Mode), f.Close())
	case "symlink":
		return os.Symlink(o.To, o.Path)
	case "link":
		return os.Link(o.To, o.Path)
	case "fifo":
		return syscall.Mkfifo(o.Path, uint32(o.Mode.Perm()))
	case "device":
		return syscall.Mknod(o.Path, syscall.S_IFCHR|uint32(o.Mode.Perm()), int(unix.Mkdev(1, 5)))
	case "dir":
		if err := os.Mkdir(o.Path, 0o777); err != nil {
			return err
		}
		return os.Chmod(o.Path, 0o777)
	case "socket":
		// mknod(2) makes one, too, whatever the length of its path.
		return syscall.Mknod(o.Path, syscall.S_IFSOCK|0o777, 0)
	case "rename":
		return unix.Rename(o.Path, o.To)
	case "exchange":
		return unix.Renameat2(unix.AT_FDCWD, o.Path, unix.AT_FDCWD, o.To, unix.RENAME_EXCHANGE)
	case "remove":
		return os.Remove(o.Path)
	case "clear":
		return os.RemoveAll(o.Path)
	case "chmod":
		return os.Chmod(o.Path, o.Mode)
	case "write":
		f, err := os.OpenFile(o.Path, os.O_WRONLY|os.O_TRUNC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(o.Data)
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("unknown op %q", o.Do)
}

// probe tries to open each path, and to list it. Names gets what can be written and holds
// anything; Data gets the paths whose content has the secret of o.Data.
func probe(o op, r *result) {
	for _, path := range o.Paths {
		if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err == nil {
			f := os.NewFile(uintptr(fd), path)
			if b, err := io.ReadAll(io.LimitReader(f, 1<<20)); err == nil && bytes.Contains(b, o.Data) {
				r.Data = append(r.Data, path+"\n"...)
			}
			_ = f.Close()
		}
		if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err == nil {
			r.Names = append(r.Names, path)
			_ = unix.Close(fd)
		}
	}
}

// many makes files, with o.To as the end of their names, or links to o.To, with the names
// that a number gives; what is taken is left out.
func many(o op, r *result) error {
	for n := range o.N {
		path := o.Path + strconv.FormatUint(o.From+n, 10)
		var err error
		if o.Do == "links" {
			err = os.Link(o.To, path)
		} else {
			err = change(op{Do: "file", Path: path + o.To, Mode: o.Mode, Data: o.Data})
		}
		switch {
		case err == nil:
			r.N++
		case !errors.Is(err, os.ErrExist):
			return err
		}
	}
	return nil
}

// race repeats the ops that Args hold, each as JSON, until "stop".
func (s *server) race(o op) {
	var steps []op
	for _, arg := range o.Args {
		var step op
		if err := json.Unmarshal([]byte(arg), &step); err != nil {
			panic(err) // our own
		}
		steps = append(steps, step)
	}
	s.races.Go(func() {
		for !s.stop.Load() {
			for _, step := range steps {
				if change(step) == nil {
					s.turns.Add(1)
				}
			}
		}
	})
}

// race starts a loop of ops beside what else happens; a.try(op{Do: "stop"}) ends all.
func (a *attacker) race(steps ...op) {
	a.t.Helper()
	o := op{Do: "race"}
	for _, step := range steps {
		b, err := json.Marshal(step)
		if err != nil {
			a.t.Fatal(err)
		}
		o.Args = append(o.Args, string(b))
	}
	a.do(o)
}

// stop ends the races and returns how many of their steps succeeded.
func (a *attacker) stop() uint64 {
	a.t.Helper()
	return a.do(op{Do: "stop"}).N
}
