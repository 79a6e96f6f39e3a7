package docs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"zmailer/test/peer"
)

const (
	patience = 60 * time.Second // for a command
	settling = 30 * time.Second // for what a command looks for; shorter while pages are written
)

// Login is whose commands the pages show, uid 1000.
const login = "ann"

// run is a page that is being run.
type run struct {
	name     string
	root     string // stands for / in the paths that pages use
	shell    *shell
	match    *matcher
	me       *user.User // whose commands they are in the run
	as       *syscall.Credential
	hosts    map[string]*host
	settling time.Duration
	new      []found                         // what was printed otherwise than the page says
	names    func(zone string) (addr string) // starts a name server
	// failed reports a step that did not go as the page shows.
	failed func(line int, text string)
	logf   func(format string, args ...any)
}

// ports returns those that pages use.
func ports() []string {
	return []string{"2525", "2580", "2587", "2626", "2627", "2628", "9125", "9126", "9127"}
}

// paths are those of pages, which stand below root.
var paths = regexp.MustCompile(`(^|[\s'"=:,(<>!|])(/(?:home/ann|var/spool/postoffice|etc/zmailer|tmp/try|var/spool/postfix|var/spool/exim4|var/spool/smtpd|var/mail|var/backups|var/log|srv)\b)`)

// begin makes the directories and starts the shell, as root as the user as.
func begin(name, dir, bin string, as *user.User, credential *syscall.Credential) (*run, error) {
	r := &run{name: name, root: filepath.Join(dir, "root"), match: newMatcher(), me: as, as: credential, settling: settling, hosts: map[string]*host{}}
	home := filepath.Join(r.root, "home", login)
	for _, d := range []string{home, "etc", "var/spool", "var/backups", "var/log", "var/mail", "tmp", "srv"} {
		if !filepath.IsAbs(d) {
			d = filepath.Join(r.root, d)
		}
		if err := errors.Join(os.MkdirAll(d, 0o755), own(d, credential)); err != nil {
			return nil, err
		}
	}
	for _, port := range ports() {
		addr, err := peer.FreeAddr()
		if err != nil {
			return nil, err
		}
		r.match.values[port] = addr[strings.LastIndexByte(addr, ':')+1:]
	}
	env := []string{"HOME=" + home, "USER=" + as.Username, "LOGNAME=" + as.Username, "LC_ALL=C.UTF-8", "TZ=UTC",
		"PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "TMPDIR=" + filepath.Join(r.root, "tmp"), "NO_COLOR=1"}
	var err error
	r.shell, err = startShell(dir, home, env, credential)
	return r, err
}

func own(dir string, as *syscall.Credential) error {
	if as == nil {
		return nil
	}
	return os.Chown(dir, int(as.Uid), int(as.Gid))
}

func (r *run) end() {
	r.shell.stop()
	r.stopLeft()
	for _, h := range r.hosts {
		h.end()
	}
}

// here puts what this run has in the place of what the page says.
func (r *run) here(text string) string {
	return paths.ReplaceAllString(r.match.real(text), "${1}"+r.root+"${2}")
}

// steps runs a page's steps until one cannot be done.
func (r *run) steps(p page) error {
	for i, s := range p.steps {
		switch s.kind {
		case root:
			if os.Getuid() != 0 {
				r.logf("%s:%d: the rest needs root", r.name, s.line)
				return nil
			}
		case needs:
			if _, err := exec.LookPath(s.text); err != nil {
				r.logf("%s:%d: the rest needs %s", r.name, s.line, s.text)
				return nil
			}
		case file:
			name := r.here(s.want)
			if rest, ok := strings.CutPrefix(name, "~/"); ok {
				name = filepath.Join(r.root, "home", login, rest)
			}
			if err := r.write(name, r.here(s.text)); err != nil {
				return fmt.Errorf("%s:%d: %w", r.name, s.line, err)
			}
		case dialogue:
			if err := r.talk(s); err != nil {
				return fmt.Errorf("%s:%d: %w", r.name, s.line, err)
			}
		case hidden, system, wait:
			if err := r.hidden(s); err != nil {
				return fmt.Errorf("%s:%d: %w", r.name, s.line, err)
			}
		case shown:
			mayFail := i+1 < len(p.steps) && strings.HasPrefix(p.steps[i+1].text, "echo $?")
			if err := r.shown(s, mayFail); err != nil {
				return fmt.Errorf("%s:%d: $ %s\n%w", r.name, s.line, s.text, err)
			}
		}
	}
	return nil
}

func (r *run) hidden(s step) error {
	if addr, ok := strings.CutPrefix(s.text, "host "); ok {
		return r.otherHost(addr)
	}
	if what, ok := strings.CutPrefix(s.text, "mail "); ok {
		return r.mail(what)
	}
	if zone, ok := strings.CutPrefix(s.text, "names "); ok {
		return r.serve(zone)
	}
	if names, ok := strings.CutPrefix(s.text, "source "); ok {
		return r.source(names)
	}
	command := s.text
	switch s.kind {
	case system:
		command = "docs_settings=" + quoted(command) + "\n" + systemScript
	case wait:
		command = "docs_n=0; until {\n" + command + "\n} >/dev/null 2>&1; do docs_n=$((docs_n+1)); test $docs_n -lt 300 || break; sleep 0.1; done; test $docs_n -lt 300"
	}
	out, code, err := r.shell.run(r.here(command), patience)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// write makes a file of the page, and its directories.
func (r *run) write(name, text string) error {
	for _, d := range missing(filepath.Dir(name)) {
		if err := errors.Join(os.Mkdir(d, 0o755), own(d, r.as)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return err
	}
	return own(name, r.as)
}

// missing returns the directories above, and dir, that there are not yet.
func missing(dir string) []string {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	return append(missing(filepath.Dir(dir)), dir)
}

// shown runs a command of the page and compares. One that only looks is given again while
// what it shows has not happened yet; of one in the background it is waited for what it
// prints.
func (r *run) shown(s step, mayFail bool) error {
	if want, ok := strings.CutSuffix("\n"+s.want, "\n^C"); ok {
		return r.interrupted(s, strings.TrimPrefix(want, "\n"))
	}
	deadline := time.Now().Add(r.settling)
	for {
		out, code, err := r.shell.run(r.here(s.text), patience)
		if err != nil {
			return fmt.Errorf("%w\nit has printed:\n%s", err, out)
		}
		ok, err := r.same(s.want, out)
		if err != nil {
			return err
		}
		if !ok && strings.HasSuffix(s.text, "&") {
			out, ok = r.later(s.want, out)
		}
		switch {
		case ok && (code == 0 || mayFail || s.want != ""): // the page shows an error
			return nil
		case looks(s.text) && time.Now().Before(deadline):
			<-time.After(100 * time.Millisecond)
			continue
		case ok:
			return fmt.Errorf("exit code %d", code)
		}
		// What follows may be as it should be.
		r.note(s, out)
		r.failed(s.line, fmt.Sprintf("$ %s\ngot (exit code %d)\n%s\nwant\n%s", s.text, code, r.plain(out), s.want))
		return nil
	}
}

// later waits for what a command in the background prints.
func (r *run) later(want, out string) (string, bool) {
	ok := false
	_ = r.shell.await(r.settling, func(text string) bool {
		ok, _ = r.same(want, out+text)
		if ok {
			r.shell.out.Reset()
		}
		return ok
	})
	return out, ok
}

// plain returns an output as a page would show it.
func (r *run) plain(out string) string { return strings.ReplaceAll(out, r.root, "") }

// same compares, with the name of who runs this and then with that of the pages.
func (r *run) same(want, got string) (bool, error) {
	got = r.plain(got)
	mine := regexp.MustCompile(`\b` + regexp.QuoteMeta(r.me.Username) + `\b`)
	uid := regexp.MustCompile(`\b` + regexp.QuoteMeta(r.me.Uid) + `\b`)
	named := mine.ReplaceAllString(got, login)
	for _, text := range []string{got, named, uid.ReplaceAllString(named, "1000")} {
		if ok, err := r.match.match(want, text); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
