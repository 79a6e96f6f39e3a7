package mailbox

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/hostile"
	"zmailer/internal/stage/agent"
	"zmailer/internal/workspec"
)

// No name of a user, domain or virtual mailbox leads a delivery out of its directory: every text is one,
// also where a user of that name exists.
func TestNoTextLeadsADeliveryOutOfItsDirectory(t *testing.T) {
	p := newPost(t, "$MAIL/%d/%u")
	users, logins := []string{"jim"}, map[string]bool{}
	texts := append(hostile.Texts(t), "../jim", "x/../../jim", "jim/", "jim\x00", ".", "..", "...", " ..", ".. ")
	for _, s := range texts {
		if !strings.ContainsAny(s, "\r\n") {
			users = append(users, s)
			logins[s] = true
		}
	}
	p.must(os.WriteFile(p.mailbox.users.list, []byte(strings.Join(users, "\n")+"\n"), 0o644))
	base := filepath.Join(p.mail, "vmail")
	p.mailbox.c.Virtual = Virtual{Base: base, MinimumUID: 1}
	owner := strconv.Itoa(max(os.Getuid(), 4711))
	found := 0
	check := func(r workspec.Recipient, dir string) {
		t.Helper()
		got, err := p.mailbox.target(&agent.Recipient{Recipient: &r, Group: &workspec.Group{}})
		if err != nil {
			return
		}
		found++
		bare := strings.TrimSuffix(got.path, "/")
		if path.Clean(bare) != bare || strings.ContainsRune(got.path, 0) || dir != "" && path.Dir(bare) != dir || dir == "" && !strings.HasPrefix(bare, base+"/") {
			t.Errorf("%s %q %q: %q, not in %q", r.Channel, r.Address, r.Host, got.path, dir)
		}
	}
	var rcpts []workspec.Recipient
	for _, s := range texts {
		r := mailTo(hostile.Quoted(s) + "@a.example")
		check(r, p.mail+"/a.example")
		check(mailTo(s+"@a.example"), p.mail+"/a.example")
		check(mailTo("jim@"+s), p.mail+"/"+s)
		for _, at := range []string{s, base + "/" + s, base + "/v/" + s + "/", base + s} {
			v := workspec.VirtualStore{Mailbox: s, GID: 5, Quota: -1, Path: at}
			check(workspec.Recipient{Channel: workspec.Virtual, Host: v.Host(), Address: "x@a.example", Privilege: owner}, "")
		}
		check(workspec.Recipient{Channel: workspec.Virtual, Host: s, Address: "x@a.example", Privilege: owner}, "")
		if !strings.ContainsFunc(s, unicode.IsSpace) && len(rcpts) < 60 {
			rcpts = append(rcpts, r)
		}
	}
	if found < 400 {
		t.Errorf("%d mailboxes", found)
	}
	p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", rcpts...))
	files := 0
	p.must(filepath.WalkDir(p.mail, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files++
			if filepath.Dir(name) != p.mail+"/a.example" || !logins[filepath.Base(name)] {
				t.Errorf("written: %q", name)
			}
		}
		return err
	}))
	if files < 20 {
		t.Errorf("%d files", files)
	}
}

// What a program gets of sender and recipient is one word for a shell that reads it without quotes,
// expands to nothing else, and is no option of the program that it gives it to.
func TestNoTextIsMoreThanAWordForAProgram(t *testing.T) {
	names := []string{"SENDER", "RECIPIENT", "LOCAL", "DOMAIN", "EXTENSION"}
	script := "set +f\n"
	for _, name := range names {
		script += "set -- $" + name + `; echo "` + name + ` $# $1"` + "\n"
	}
	for _, s := range append(hostile.Texts(t), "-rf", "--", "-", "x+-rf", "x@-rf") {
		for _, a := range []string{s, hostile.Quoted(s) + "@x.example", "x@" + s} {
			to := workspec.Recipient{Address: "|x", Notary: "ORCPT=rfc822;" + strings.NewReplacer("+", "+2B", "=", "+3D", " ", "+20").Replace(a)}
			env := environment(account{}, &agent.Recipient{Recipient: &to, Group: &workspec.Group{Sender: workspec.Sender{Address: a}}}, "S1A1")
			for _, v := range env {
				if strings.ContainsAny(v, "\r\n\x00") {
					t.Errorf("%q: %q", a, v)
				}
			}
			if strings.ContainsRune(a, 0) {
				continue
			}
			shell := exec.Command("/bin/sh", "-c", script)
			shell.Dir, shell.Env = "/", env
			out := string(assert.Get(shell.Output())(t))
			for i, line := range strings.Split(strings.TrimSuffix(out, "\n"), "\n") {
				f := strings.SplitN(line, " ", 3)
				value := ""
				for _, v := range env {
					if text, is := strings.CutPrefix(v, names[i]+"="); is {
						value = text
					}
				}
				if f[0] != names[i] || f[1] != "1" && (f[1] != "0" || value != "") || f[2] != value || strings.HasPrefix(value, "-") {
					t.Fatalf("%q: %s is %q and the shell has %q", a, names[i], value, line)
				}
			}
		}
	}
}
