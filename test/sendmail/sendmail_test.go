// Package sendmail drives our sendmail with the programs that call one, and compares what
// it submits with what Postfix's sendmail does with the same calls.
package sendmail

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// patience is how long a program may take on a loaded machine.
const patience = 60 * time.Second

// bin is where TestMain has put the programs; submit is there as sendmail, too.
var bin string

func TestMain(m *testing.M) {
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		if err := os.Link(filepath.Join(dir, "submit"), filepath.Join(dir, "sendmail")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}))
}

// message is what a sendmail took from its caller.
type message struct {
	sender string   // without brackets
	rcpts  []string // sorted
	header []string // fields, unfolded
	body   string
}

// mta is a sendmail with a queue of its own that nothing reads.
type mta struct {
	name string
	path string // the program to call; it needs no environment
	take func(t *testing.T) []message
}

// ours returns the sendmail that is tested.
func ours(t *testing.T) *mta {
	t.Helper()
	dir := rig.Dir(t)
	po := filepath.Join(dir, "postoffice")
	conf := filepath.Join(dir, "conf")
	cmd := exec.Command(filepath.Join(bin, "zmctl"), "--postoffice", po, "init", "--config-dir", conf)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("zmctl init: %v\n%s", err, out)
	}
	m := &mta{name: "ours", path: filepath.Join(dir, "sendmail")}
	wrap(t, m.path, "POSTOFFICE="+po+" ZCONFIG="+filepath.Join(conf, "zmailer.conf"), filepath.Join(bin, "sendmail"))
	m.take = func(t *testing.T) []message {
		t.Helper()
		var list []message
		names, err := filepath.Glob(filepath.Join(po, "router", "[0-9]*"))
		assert.Must(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			assert.Must(t, err)
			m, err := envelope.Read(bytes.NewReader(b))
			if err != nil {
				t.Fatalf("%v in %q", err, b)
			}
			one := message{sender: m.From, body: string(b[m.BodyOffset:]), header: fields(m.Header)}
			if !m.HasFrom {
				one.sender = login(t)
			}
			for _, r := range m.Recipients {
				one.rcpts = append(one.rcpts, r.Address)
			}
			list = append(list, one)
			assert.Must(t, os.Remove(name))
		}
		return sorted(list)
	}
	return m
}

// postfix returns the judge: Postfix's sendmail, which leaves its messages in a private
// maildrop.
func postfix(t *testing.T) *mta {
	t.Helper()
	const program = "/usr/sbin/sendmail"
	if os.Geteuid() != 0 {
		t.Skip("Postfix's sendmail lets only root have a queue of its own")
	}
	for _, p := range []string{"/usr/sbin/postdrop", "/usr/sbin/postcat", program} {
		if _, err := os.Stat(p); err != nil {
			t.Skipf("without Postfix there is nothing to compare with: %v", err)
		}
	}
	owner, err := user.Lookup("postfix")
	if err != nil {
		t.Skip(err)
	}
	dir := rig.Dir(t)
	conf, queue := filepath.Join(dir, "conf"), filepath.Join(dir, "queue")
	main := fmt.Sprintf("compatibility_level = 3.6\nqueue_directory = %s\ndata_directory = %s/data\nmyhostname = mta.example\n"+
		"mail_owner = postfix\nsetgid_group = postdrop\nmaillog_file = /dev/stdout\n", queue, dir)
	err = errors.Join(os.MkdirAll(conf, 0o755), os.WriteFile(filepath.Join(conf, "main.cf"), []byte(main), 0o644),
		os.WriteFile(filepath.Join(conf, "master.cf"), nil, 0o644))
	for _, d := range []string{"maildrop", "public", "pid"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(queue, d), 0o755))
	}
	assert.Must(t, err)
	if out, err := exec.Command("chown", owner.Username, filepath.Join(queue, "maildrop")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A copy: tests lay the wrapper over /usr/sbin/sendmail.
	real := filepath.Join(dir, "bin", "sendmail")
	b, err := os.ReadFile(program)
	assert.Must(t, errors.Join(err, os.MkdirAll(filepath.Dir(real), 0o755), os.WriteFile(real, b, 0o755)))
	m := &mta{name: "Postfix", path: filepath.Join(dir, "sendmail")}
	wrap(t, m.path, "MAIL_CONFIG="+conf, real)
	m.take = func(t *testing.T) []message {
		t.Helper()
		var list []message
		names, err := filepath.Glob(filepath.Join(queue, "maildrop", "*"))
		assert.Must(t, err)
		for _, name := range names {
			// postdrop sets the owner's execute bit when the file is whole.
			if info, err := os.Stat(name); err != nil || info.Mode()&0o100 == 0 {
				continue
			}
			list = append(list, maildropped(t, conf, name))
			assert.Must(t, os.Remove(name))
		}
		return sorted(list)
	}
	return m
}

// maildropped reads a file of Postfix's maildrop.
func maildropped(t *testing.T, conf, name string) message {
	t.Helper()
	records := assert.Get(exec.Command("/usr/sbin/postcat", "-c", conf, "-e", name).Output())(t)
	var m message
	for line := range strings.Lines(string(records)) {
		line = strings.TrimSuffix(line, "\n")
		if v, ok := strings.CutPrefix(line, "sender: "); ok {
			m.sender = v
		}
		if v, ok := strings.CutPrefix(line, "recipient: "); ok {
			m.rcpts = append(m.rcpts, v)
		}
	}
	text := assert.Get(exec.Command("/usr/sbin/postcat", "-c", conf, "-bh", name).Output())(t)
	header, body, _ := strings.Cut("\n"+string(text), "\n\n")
	m.header, m.body = fields([]byte(strings.TrimPrefix(header, "\n")+"\n")), body
	return m
}

// wrap writes a shell script that runs a program with settings of the environment.
func wrap(t *testing.T, path, settings, program string) {
	t.Helper()
	assert.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+settings+" exec "+program+" \"$@\"\n"), 0o755))
}

func login(t *testing.T) string {
	t.Helper()
	u := assert.Get(user.Current())(t)
	return u.Username
}

// random are the fields and the addresses that differ from call to call.
var random = regexp.MustCompile(`(?i)^(date|message-id|user-agent|x-mailer|in-reply-to|references): .*`)

// fields returns a header's fields, with Bcc left out, which Postfix drops later, and random
// values blanked.
func fields(header []byte) []string {
	var list []string
	for _, f := range envelope.Fields(header) {
		if f.Name == "" && len(bytes.TrimSpace(f.Raw)) == 0 || strings.EqualFold(f.Name, "Bcc") {
			continue
		}
		list = append(list, random.ReplaceAllString(f.Name+": "+strings.Join(strings.Fields(f.Value()), " "), "$1"))
	}
	return list
}

// sorted sorts recipients, each once, and messages.
func sorted(list []message) []message {
	for i := range list {
		slices.Sort(list[i].rcpts)
		list[i].rcpts = slices.Compact(list[i].rcpts)
	}
	slices.SortFunc(list, func(a, b message) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return list
}

// run runs a command, which must succeed, and returns what it said.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// need skips a test where a program is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
}
