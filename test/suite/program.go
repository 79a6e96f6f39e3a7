package suite

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Program is a real program that a package's tests run, built at the first use:
//
//	var program = suite.Program{Name: "router"}
//
//	func TestMain(m *testing.M) { os.Exit(program.Main(m)) }
//
// Every user may run it.
type Program struct {
	Name string

	once sync.Once
	dir  string
	err  error
}

// Main runs the tests and removes the program.
func (p *Program) Main(m *testing.M) int {
	defer func() { os.RemoveAll(p.dir) }()
	return m.Run()
}

// Path returns the program's file.
func (p *Program) Path(t testing.TB) string {
	t.Helper()
	p.once.Do(func() {
		if p.dir, p.err = os.MkdirTemp("", p.Name+"-"); p.err != nil {
			return
		}
		if p.err = os.Chmod(p.dir, 0o755); p.err == nil {
			p.err = BuildOne(filepath.Join(p.dir, p.Name), p.Name)
		}
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return filepath.Join(p.dir, p.Name)
}
