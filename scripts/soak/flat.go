package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
)

// use is what the system takes: the daemons' descriptors and memory, and files.
type use struct {
	descriptors map[string]int
	memory      map[string]int64 // resident, bytes
	files       []string         // below the postoffice
}

// What may be more at the end than at the start: connections and files that daemons keep
// open, memory that is kept for the next message, and what is written down for ever.
const (
	moreDescriptors = 16
	moreMemory      = 64 << 20
	moreFiles       = 8
)

// mostDescriptors is what no process may ever have open under this load.
const mostDescriptors = 400

// measure takes the system's use, which is running and has nothing to do.
func (s *soak) measure() (*use, error) {
	u := &use{descriptors: map[string]int{}, memory: map[string]int64{}}
	list, err := s.mail.Processes()
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if slices.Contains(daemons(), p.Name) {
			u.descriptors[p.Name] = max(u.descriptors[p.Name], p.Descriptors())
			u.memory[p.Name] = max(u.memory[p.Name], p.Resident())
		}
	}
	if !slices.Contains(s.options.without, "editor") {
		return u, nil // what hands have moved into postman/ and elsewhere stays there
	}
	top := s.mail.PostOffice()
	err = filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		name := strings.TrimPrefix(path, top+"/")
		dir, _, _ := strings.Cut(name, "/")
		// The log of operations and the ledger keep what was; the number of a process that
		// has ended is given back at the second look that finds it so, minutes later.
		if !e.IsDir() && !slices.Contains([]string{postoffice.Orders, postoffice.Ledger, postoffice.Owners}, dir) {
			u.files = append(u.files, name)
		}
		return nil
	})
	return u, err
}

// flat names what the system takes more at the end than at the start.
func (u *use) flat(end *use) (problems []string) {
	for _, name := range daemons() {
		if had, has := u.descriptors[name], end.descriptors[name]; has > had+moreDescriptors {
			problems = append(problems, fmt.Sprintf("%s has %d descriptors at the end, and had %d at the start", name, has, had))
		}
		if had, has := u.memory[name], end.memory[name]; has > had+moreMemory {
			problems = append(problems, fmt.Sprintf("%s has %d MB at the end, and had %d at the start", name, has>>20, had>>20))
		}
	}
	more := slices.DeleteFunc(slices.Clone(end.files), func(name string) bool { return slices.Contains(u.files, name) })
	if len(end.files) > len(u.files)+moreFiles {
		problems = append(problems, fmt.Sprintf("%d files at the end, %d at the start; new ones: %s", len(end.files), len(u.files),
			strings.Join(more[:min(len(more), 30)], " ")))
	}
	return problems
}

// String returns a line for the summary.
func (u *use) String() string {
	if u == nil {
		return "not measured"
	}
	var list []string
	for _, name := range daemons() {
		list = append(list, fmt.Sprintf("%s %d descriptors %d MB", name, u.descriptors[name], u.memory[name]>>20))
	}
	return strings.Join(list, ", ") + fmt.Sprintf(", %d files", len(u.files))
}

// settledUse waits until the system has nothing to do, and measures it: the least of each
// within some seconds, because agents and connections end by themselves.
func (s *soak) settledUse(ctx context.Context, limit time.Duration, enough func(*use) bool) (*use, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		u, err := s.measure()
		if err != nil || len(u.memory) == len(daemons()) && enough(u) || !wait(ctx, time.Second) {
			return u, err
		}
	}
}

// watchUse looks at all processes while there is load.
func (s *soak) watchUse(ctx context.Context) error {
	for wait(ctx, 2*time.Second) {
		list, err := s.mail.Processes()
		if err != nil {
			return err
		}
		for _, p := range list {
			if n := p.Descriptors(); n > mostDescriptors {
				return fmt.Errorf("%s %d has %d descriptors", p.Name, p.Pid, n)
			}
		}
	}
	return nil
}
