package keys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
	"zmailer/internal/run/ports"
)

// Policy selects the files that are handed over. It stands between a daemon that an attacker has
// taken over and all files of the system. The daemon's word is not trusted; zmailer.conf and the
// file dkim are, and only if root alone can write them. A file is handed over if they name it
// as a key of the program, and if root alone can write it and everything on the way to it: a
// link, or another file with its name, is then root's work.
type Policy struct {
	file     string // zmailer.conf
	programs []string

	mu     sync.Mutex
	read   map[string]fs.FileInfo // the files that named was made of, as they were
	named  map[string]bool
	behind map[string][]string // the files of passwords that a file of settings names
	ports  map[string]bool     // addresses to listen on
	reason error               // why nothing is named
}

// NewPolicy makes the policy of some programs, for the path of zmailer.conf. It is read when it
// is needed, and again when it has changed.
func NewPolicy(file string, programs ...string) *Policy {
	return &Policy{file: file, programs: programs}
}

const (
	// maxTable bounds a file that is read for its names. Bytes.
	maxTable = 64 << 20
	// maxLinks bounds the symbolic links on the way to a file.
	maxLinks = 40
)

// open opens a file that is handed over. only is the file that it must be, or that must name it; "":
// any.
func (p *Policy) open(path, only string) (fd int, err error) {
	if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
		return -1, &refusal{"the path is not absolute"}
	}
	named, behind, _, err := p.names()
	if err != nil {
		return -1, err
	}
	if !named[path] || only != "" && path != only && !slices.Contains(behind[only], path) {
		return -1, &refusal{p.file + " names no such key or file of passwords"}
	}
	return openRoots(path)
}

// listen opens a TCP address that the settings have a program listen on, also one below 1024.
func (p *Policy) listen(addr string, share bool) (fd int, err error) {
	_, _, named, err := p.names()
	if err != nil {
		return -1, err
	}
	if !named[addr] {
		return -1, &refusal{p.file + " names no such address to listen on"}
	}
	return listenOn(addr, share)
}

// listenOn opens a TCP address.
func listenOn(addr string, share bool) (fd int, err error) {
	l, err := ports.Listen(context.Background(), addr, share)
	if err != nil {
		return -1, err
	}
	defer l.Close() // the descriptor that is handed over is another one
	t, ok := l.(*net.TCPListener)
	if !ok {
		return -1, syscall.EAFNOSUPPORT
	}
	f, err := t.File()
	if err != nil {
		return -1, err
	}
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// names returns the files that are keys of the programs, and the addresses to listen on. Its error is
// a *refusal.
func (p *Policy) names() (files map[string]bool, behind map[string][]string, addrs map[string]bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read == nil || !p.fresh() {
		p.read, p.named, p.behind, p.ports = map[string]fs.FileInfo{}, map[string]bool{}, map[string][]string{}, map[string]bool{}
		p.reason = p.readNames()
	}
	if refused := (*refusal)(nil); errors.As(p.reason, &refused) {
		return nil, nil, nil, refused
	}
	if p.reason != nil {
		return nil, nil, nil, &refusal{p.reason.Error()}
	}
	return p.named, p.behind, p.ports, nil
}

// fresh reports whether the files that were read are as they were.
func (p *Policy) fresh() bool {
	for path, was := range p.read {
		info, err := os.Stat(path)
		if err != nil || was == nil {
			if err == nil || was != nil {
				return false
			}
			continue
		}
		a, b := was.Sys().(*syscall.Stat_t), info.Sys().(*syscall.Stat_t)
		// Its owner and mode count, too: any change sets the time.
		if !os.SameFile(was, info) || a.Ctim != b.Ctim || a.Size != b.Size {
			return false
		}
	}
	return true
}

func (p *Policy) readNames() error {
	// Its text is not used, but that root alone can write it.
	if _, err := p.readRoots(p.file); err != nil {
		return err
	}
	c, err := config.Load(p.file)
	if c == nil {
		return err // with errors in some lines the others count, as for the daemon
	}
	for _, program := range p.programs {
		switch program {
		case "router":
			p.addRouter(c)
		case "smtpserver":
			p.addRouter(c) // its child router --verify routes
			p.addTables(c, "access")
			p.add(c, c.List("TLSCERT")...)
			p.add(c, c.List("TLSKEY")...)
			for _, source := range strings.Fields(c.String("AUTH", "")) {
				if file, ok := strings.CutPrefix(source, "file:"); ok {
					p.add(c, file)
				}
			}
			// Its child ta-smtp --probe logs in where mail does.
			p.add(c, "credentials")
			for _, setting := range []string{"SMTPLISTEN", "SUBMISSIONLISTEN", "SUBMISSIONSLISTEN", "LMTPLISTEN", "REINJECTLISTEN"} {
				for _, addr := range c.List(setting) {
					p.ports[addr] = !strings.Contains(addr, "/")
				}
			}
		case "ta-smtp":
			p.add(c, "credentials")
			p.addDKIM(c)
		case "zmweb":
			p.add(c, c.String("WEBCERT", ""), c.String("WEBKEY", ""))
		}
	}
	return nil
}

// add adds files whose paths begin at the directory of zmailer.conf unless they are absolute.
func (p *Policy) add(c *config.Config, files ...string) {
	for _, file := range files {
		if file == "" {
			continue
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(c.Dir, file)
		}
		p.named[file] = true
	}
}

// addRouter adds what the router reads: the secrets of SRS, and tables.
func (p *Policy) addRouter(c *config.Config) {
	p.add(c, c.String("SRSSECRETS", ""))
	p.addTables(c, "router.star")
}

// source is a source of a table, or of AUTH, that has a file of settings, as it is written in
// zmailer.conf and the files beside it.
var source = regexp.MustCompile(`\b(?:ldap|pgsql|mysql|redis|http|oauth2):([^\s{}'",()]+)`)

// secret is a line of such a file that names a file with a password.
var secret = regexp.MustCompile(`(?m)^(?:password_file|client_secret_file|authorization_file)[ \t]*=[ \t]*(\S+)`)

// addTables adds the files of settings of the sources that zmailer.conf and a file beside it name,
// and the files of passwords that these name.
func (p *Policy) addTables(c *config.Config, beside string) {
	text := c.Source()
	if more, err := p.readRoots(c.Path(beside)); err == nil { // else the program reports it
		text = append(slices.Clone(text), more...)
	}
	for _, m := range source.FindAllSubmatch(text, -1) {
		file := string(m[1])
		if strings.HasPrefix(file, "//") {
			continue // a URL
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(c.Dir, file)
		}
		p.named[file] = true
		if _, done := p.behind[file]; done {
			continue
		}
		p.behind[file] = []string{}
		settings, err := p.readRoots(file)
		if err != nil {
			continue // what others than root can write names nothing
		}
		for _, m := range secret.FindAllSubmatch(settings, -1) {
			name := string(m[1])
			if !filepath.IsAbs(name) {
				name = filepath.Join(filepath.Dir(file), name)
			}
			p.named[name] = true
			p.behind[file] = append(p.behind[file], name)
		}
	}
}

// addDKIM adds the keys that the file dkim names: the third word of each line.
func (p *Policy) addDKIM(c *config.Config) {
	path := c.Path("dkim")
	text, err := p.readRoots(path)
	if err != nil {
		return // the agent reports a table that it cannot read
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) >= 3 && words[0][0] != '#' {
			p.add(c, words[2])
		}
	}
}

// readRoots reads a file that root alone can write, and remembers how it was.
func (p *Policy) readRoots(path string) ([]byte, error) {
	p.read[path] = nil
	fd, err := openRoots(path)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	p.read[path] = info // before it is read: a change meanwhile is seen the next time
	text, err := io.ReadAll(io.LimitReader(f, maxTable+1))
	if err == nil && len(text) > maxTable {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxTable)
	}
	return text, err
}

// openRoots opens a regular file that root alone can write, if root alone can write in each
// directory and has made each link on the way to it. Nothing is waited for, and no device is
// opened.
func openRoots(path string) (fd int, err error) {
	real, err := walk(path)
	if err != nil {
		return -1, err
	}
	// What walk has seen only root can have changed meanwhile.
	fd, err = unix.Open(real, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = judge(real, &st, false, true)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// walk returns the path without symbolic links.
func walk(path string) (real string, err error) {
	at, todo, links := "", strings.Split(path, "/"), 0
	open := false // others may make names in the directory
	for len(todo) > 0 {
		next := filepath.Join("/", at, todo[0])
		todo = todo[1:]
		if next == at {
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(next, &st); err != nil {
			return "", err
		}
		up := len(next) < len(at) // a directory that was seen on the way
		if err := judge(next, &st, open && !up, !hasMore(todo)); err != nil {
			return "", err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			at, open = next, byOthers(&st)
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		to, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(to) {
			at, to = "", "/"+to
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	return at, nil
}

// hasMore reports whether the rest of a path names anything.
func hasMore(todo []string) bool {
	for _, name := range todo {
		if name != "" && name != "." {
			return true
		}
	}
	return false
}

// judge refuses a name on the way to a file that others than root can have made or changed. open: others
// may make names beside it, in a directory like /tmp. last: it is the file, or a link to it.
func judge(path string, st *unix.Stat_t, open, last bool) error {
	kind := st.Mode & unix.S_IFMT
	others := byOthers(st)
	switch {
	case st.Uid != 0:
		return &refusal{fmt.Sprintf("%s belongs to uid %d, not to root", path, st.Uid)}
	case kind == unix.S_IFLNK && !open:
		return nil
	case kind == unix.S_IFDIR && last:
		return &refusal{path + " is not a regular file"}
	case kind == unix.S_IFDIR && others && st.Mode&unix.S_ISVTX != 0:
		return nil // only directories of root's are believed in it
	case kind == unix.S_IFDIR && others:
		return &refusal{path + " can be written by others than root: chown root:root, chmod go-w"}
	case kind == unix.S_IFDIR:
		return nil
	case open:
		return &refusal{path + " is in a directory where every user can make files"}
	case kind != unix.S_IFREG:
		return &refusal{path + " is not a regular file"}
	case !last:
		return syscall.ENOTDIR
	case others:
		return &refusal{path + " can be written by others than root: chmod go-w"}
	}
	return nil
}

// byOthers reports whether others than root can write.
func byOthers(st *unix.Stat_t) bool { return st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != 0 }
