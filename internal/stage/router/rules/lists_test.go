package rules

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// system is the user database that most tests ask: logins with their uid and home.
type system map[string]User

func (s system) Lookup(login string) (User, bool, error) {
	u, ok := s[login]
	u.Login = login
	return u, ok, nil
}

func (s system) LookupUID(uid uint32) (User, bool, error) {
	for login, u := range s {
		if u.UID == uid {
			u.Login = login
			return u, true, nil
		}
	}
	return User{}, false, nil
}

// newSystem is newConf with a user database instead of the file users.
func newSystem(t testing.TB, users system, files map[string]string, change func(*Config)) *conf {
	t.Helper()
	c := newConf(t, files)
	k := c.config()
	k.Passwd = users
	if change != nil {
		change(&k)
	}
	r := assert.Get(New(k))(t)
	c.Rules = r
	return c
}

func TestOwnerOfAListThatNobodyOwnsIsThePostmaster(t *testing.T) {
	c := newSystem(t, system{"carol": {UID: 70001}}, map[string]string{"lists/staff": "carol\n"}, func(k *Config) { k.Postmaster = "carol" })
	if got, want := c.resolve("owner-staff", false), "local carol@mx.example.org carol@mx.example.org "; len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Each owner is tried before his mail is given to him, and that may lead to the next one.
func TestChainOfOwnersIsFollowedOnce(t *testing.T) {
	files := map[string]string{}
	var aliases strings.Builder
	const n = 25
	for i := range n {
		files[fmt.Sprintf("lists/l%d", i)] = "carol\n"
		fmt.Fprintf(&aliases, "owner-l%d: l%d-request\n", i, i+1)
	}
	fmt.Fprintf(&aliases, "l%d-request: carol\n", n)
	files["aliases"] = aliases.String()
	asked := 0
	c := newSystem(t, system{"carol": {UID: 70001}}, files, func(k *Config) { k.Passwd = counted{k.Passwd, &asked} })
	if got, want := c.resolve("l0-request", false), "local carol@mx.example.org carol@mx.example.org "; len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if asked > 100*n {
		t.Errorf("got %d lookups of users for %d lists: want them to grow no faster than the square", asked, n)
	}
}

// counted counts lookups.
type counted struct {
	Users
	n *int
}

func (c counted) LookupUID(uid uint32) (User, bool, error) {
	*c.n++
	return c.Users.LookupUID(uid)
}

func TestListsThatComeLaterAreSeen(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n"})
	if got := c.resolve("staff", false)[0]; !strings.HasPrefix(got, "error nouser") {
		t.Fatalf("no lists: got %q", got)
	}
	c.write("lists/staff", "carol\n")
	c.advance(period)
	if got := c.resolve("staff", false)[0]; !strings.HasPrefix(got, "local carol@") {
		t.Errorf("got %q, want carol's mailbox", got)
	}
	c.write("lists/staff", "carol\nx y\n")
	c.advance(period)
	m := address.Mailbox{Local: "staff"}
	_, err := collect(c.Tables(), m, false)
	if trouble, ok := IsTrouble(err); !ok || trouble.Why != "lists" || !strings.Contains(err.Error(), "staff:2: bad line of a list") {
		t.Errorf("got %v, want trouble with lists, file and line", err)
	}
}

// largeList writes a list that is not kept in memory.
func (c *conf) largeList(name string, n int) {
	var b strings.Builder
	b.WriteString(verpMark + "\n")
	for i := range n {
		fmt.Fprintf(&b, "member%06d@list.example\n", i)
	}
	c.write(name, b.String())
}

func TestLargeListIsReadWhileItIsExpanded(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n"})
	const n = 5000
	c.largeList("lists/large", n)
	c.write("aliases", "more: :include:"+filepath.Join(c.dir, "lists/large")+"\n")
	c.advance(period)
	for _, rcpt := range []string{"large", "more"} {
		list, err := collect(c.Tables(), address.Mailbox{Local: rcpt}, false)
		if err != nil || len(list) != n {
			t.Fatalf("%s: got %d targets, %v, want %d", rcpt, len(list), err, n)
		}
		assert.Equal(t, list[n-1].User, fmt.Sprintf("member%06d@list.example", n-1), "last of %s", rcpt)
		assert.Equal(t, list[0].VERP, rcpt == "large", "%s: VERP", rcpt)
	}
	stop := errors.New("enough")
	got := 0
	err := c.Tables().Resolve(t.Context(), Query{Recipient: address.Mailbox{Local: "large"}}, func(Target) error {
		if got++; got == 10 {
			return stop
		}
		return nil
	})
	if got != 10 || err != stop {
		t.Errorf("got %d targets and %v, want 10 and the error that give returned", got, err)
	}
	// Nothing of it is kept.
	allocs := testing.AllocsPerRun(1, func() {
		_ = c.Tables().Resolve(t.Context(), Query{Recipient: address.Mailbox{Local: "large"}}, func(Target) error { return nil })
	})
	if per := allocs / n; per > 20 {
		t.Errorf("got %.1f allocations a member, want 20 at most", per)
	}
}

func TestListThatChangesWhileItIsReadIsOldWholeOrTrouble(t *testing.T) {
	const n = 5000
	count := func(c *conf, rcpt string, change func()) (int, error) {
		got := 0
		err := c.Tables().Resolve(t.Context(), Query{Recipient: address.Mailbox{Local: rcpt}}, func(Target) error {
			if got++; got == 1 {
				change()
			}
			return nil
		})
		return got, err
	}
	tests := map[string]struct {
		change func(path string) error
		large  bool // trouble; else all of the old
	}{
		"appended to": {func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("late@list.example\n")
			return errors.Join(err, f.Close())
		}, true},
		"truncated":    {func(path string) error { return os.Truncate(path, 70000) }, true},
		"written over": {func(path string) error { return os.WriteFile(path, []byte("one@list.example\n"), 0o644) }, true},
		"replaced by a rename": {func(path string) error {
			return errors.Join(os.WriteFile(path+"~", []byte("one@list.example\n"), 0o644), os.Rename(path+"~", path))
		}, false},
		"removed": {os.Remove, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConf(t, map[string]string{"users": "carol\n", "lists/small": "a@list.example\nb@list.example\n"})
			c.largeList("lists/large", n)
			change := func(list string) func() {
				return func() {
					assert.Must(t, tt.change(filepath.Join(c.dir, "lists", list)))
				}
			}
			got, err := count(c, "large", change("large"))
			trouble, ok := IsTrouble(err)
			switch {
			case tt.large && (!ok || trouble.Why != "lists" || !errors.Is(err, errChanging)):
				t.Errorf("large: got %d targets, %v, want trouble: it is being changed", got, err)
			case !tt.large && (err != nil || got != n):
				t.Errorf("large: got %d targets, %v, want the %d that there were", got, err, n)
			}
			if got, err := count(c, "small", change("small")); err != nil || got != 2 {
				t.Errorf("small: got %d targets, %v, want the 2 that there were", got, err)
			}
		})
	}
}

// While the directory is being replaced, the answer is never that there is no such list.
func TestListsThatAreGoneAreTrouble(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n", "lists/staff": "a@list.example\n"})
	want := c.resolve("staff", false)
	dir := filepath.Join(c.dir, "lists")
	assert.Must(t, os.Rename(dir, dir+".old"))
	for _, name := range []string{"staff", "nosuch"} {
		c.advance(time.Hour)
		list, err := collect(c.Tables(), address.Mailbox{Local: name}, false)
		if trouble, ok := IsTrouble(err); !ok || trouble.Why != "lists" {
			t.Errorf("%s: got %v, %v, want trouble with the lists", name, list, err)
		}
	}
	assert.Must(t, os.Rename(dir+".old", dir))
	if got := c.resolve("staff", false); !cmp.Equal(got, want) {
		t.Errorf("back again: got %q, want %q", got, want)
	}
}

func TestListThatIsBeingWrittenIsWaitedFor(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n", "lists/staff": "a@list.example\n"})
	c.Tables().rolls.tries = 2
	c.touch("lists/staff", 0) // it never settles, since the clock stands still
	list, err := collect(c.Tables(), address.Mailbox{Local: "staff"}, false)
	if _, ok := IsTrouble(err); !ok || !errors.Is(err, errChanging) {
		t.Errorf("got %v, %v, want trouble: it is being changed", list, err)
	}
	// Each look at the clock is a moment later: it settles while somebody waits.
	k := c.config()
	k.Now = func() time.Time { return time.Unix(0, c.now.Add(int64(settle/4))) }
	r := assert.Get(New(k))(t)
	c.Rules = r
	c.touch("lists/staff", 0)
	if got, want := c.resolve("staff", false), []string{"smtp list.example a@list.example 65534"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestListWithALineWithoutEndIsTrouble(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n", "lists/large": "a@list.example\n" + strings.Repeat("x", 2*maxLine)})
	_, err := collect(c.Tables(), address.Mailbox{Local: "large"}, false)
	bad := (*config.Error)(nil)
	if _, ok := IsTrouble(err); !ok || !errors.As(err, &bad) || bad.Line != 2 {
		t.Errorf("got %v, want trouble with line 2", err)
	}
}

// A file that includes itself by other names is read once, however many there are.
func TestIncludedFileIsKnownByMoreThanItsName(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n", "aliases": "x: :include:@DIR/f\n",
		"f": ":include:@DIR/./f\n:include:@DIR//f\n:include:@DIR/link\na@example.net\n"})
	assert.Must(t, os.Symlink("f", filepath.Join(c.dir, "link")))
	got := c.resolve("x", false)
	if len(got) != 4 || got[3] != "smtp example.net a@example.net 65534" {
		t.Errorf("want three loops and an address, got %d: %q", len(got), got)
	}
}
