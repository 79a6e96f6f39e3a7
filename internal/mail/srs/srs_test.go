package srs

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
)

var ours = Rewriter{Domain: "srs.example", Separator: '=', HashLength: 4, HashMin: 4, MaxAge: 21}

func mailbox(t testing.TB, s string) address.Mailbox { return assert.Get(address.Parse(s))(t) }

// judge is a postsrsd with a secret.
type judge struct{ forward, reverse net.Conn }

func newJudge(t *testing.T, secret string, args ...string) judge {
	program, err := exec.LookPath("/usr/sbin/postsrsd")
	if err != nil {
		t.Skip("no postsrsd; install postsrsd")
	}
	file := filepath.Join(t.TempDir(), "secret")
	assert.Must(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	ports := [2]int{}
	for i := range ports {
		l := assert.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
		ports[i] = l.Addr().(*net.TCPAddr).Port
		assert.Must(t, l.Close())
	}
	cmd := exec.Command(program, append([]string{"-4", "-s" + file, "-dsrs.example", "-f" + strconv.Itoa(ports[0]), "-r" + strconv.Itoa(ports[1])}, args...)...)
	assert.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	dial := func(port int) (c net.Conn) {
		logtest.Eventually(t, "postsrsd listens", func() (ok bool) {
			c, err = net.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(port))
			return err == nil
		})
		t.Cleanup(func() { c.Close() })
		return c
	}
	return judge{dial(ports[0]), dial(ports[1])}
}

// ask asks a tcp_table(5) server; "": it has no answer.
func ask(t *testing.T, c net.Conn, key string) string {
	t.Helper()
	assert.Must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err := fmt.Fprintf(c, "get %s\n", strings.ReplaceAll(key, "%", "%25"))
	assert.Must(t, err)
	line := assert.Get(bufio.NewReader(c).ReadString('\n'))(t)
	if answer, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "200 "); ok {
		return strings.ReplaceAll(answer, "%25", "%")
	}
	return ""
}

// What postsrsd makes we reverse, and the other way around.
func TestAddressesAreThoseOfPostsrsd(t *testing.T) {
	const secret = "a secret that both have"
	for name, tt := range map[string]struct {
		r    Rewriter
		args []string
	}{
		"defaults":      {ours, nil},
		"separator +":   {Rewriter{"srs.example", '+', 4, 4, 21}, []string{"-a+"}},
		"separator -":   {Rewriter{"srs.example", '-', 4, 4, 21}, []string{"-a-"}},
		"a longer hash": {Rewriter{"srs.example", '=', 10, 8, 21}, []string{"-n10", "-N8"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJudge(t, secret, tt.args...)
			secrets := Secrets{[]byte("another, newer secret"), []byte(secret)}
			for _, from := range []string{
				"ann@far.example", "Ann.Lee@FAR.example", "a=b@far.example", "a+tag@far.example", "SRS0=abcd=AB=x.example=y@first.example", "srs0+abcd=AB=x.example=y@first.example",
				"SRS0-abcd=AB=x.example=y@first.example", "SRS1=abcd=first.example==efgh=AB=x.example=y@second.example", "SRS2=x@far.example", "x@xn--bcher-kva.example", "SRS0=a@far.example",
			} {
				theirs := ask(t, j.forward, from)
				m, err := tt.r.Forward(Secrets{[]byte(secret)}, mailbox(t, from), time.Now())
				mine := ""
				if err == nil {
					mine = m.String()
				}
				if !strings.EqualFold(mine, theirs) {
					t.Errorf("%s: we make %q, postsrsd %q", from, mine, theirs)
				}
				if theirs == "" {
					continue
				}
				back, err := tt.r.Reverse(secrets, mailbox(t, theirs).Local, time.Now())
				want := ask(t, j.reverse, mine)
				if err != nil || !strings.EqualFold(back.String(), want) {
					t.Errorf("%s: %s leads us to %q (%v), postsrsd to %q", from, theirs, back.String(), err, want)
				}
				small := strings.ToLower(theirs) // as some hosts write it
				if back, err = tt.r.Reverse(secrets, mailbox(t, small).Local, time.Now()); err != nil || !strings.EqualFold(back.String(), want) {
					t.Errorf("%s leads to %q (%v)", small, back.String(), err)
				}
				forged := strings.Replace(mine, "=", "=x", 1)
				if tt.r.Separator == '=' {
					forged = strings.Replace(mine, "SRS0=", "SRS0=x", 1)
				}
				if _, err = tt.r.Reverse(secrets, mailbox(t, forged).Local, time.Now()); err == nil && forged != mine || forged != mine && ask(t, j.reverse, forged) != "" {
					t.Errorf("%s is reversed", forged)
				}
			}
		})
	}
}

func TestAddressesExpireAndSecretsChange(t *testing.T) {
	then := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	old, new := Secrets{[]byte("the old secret")}, Secrets{[]byte("the new secret"), []byte("the old secret")}
	m := assert.Get(ours.Forward(old, mailbox(t, "ann@far.example"), then))(t)
	for name, tt := range map[string]struct {
		secrets Secrets
		local   string
		at      time.Time
		want    error
	}{
		"at once":              {old, m.Local, then, nil},
		"after 21 days":        {old, m.Local, then.AddDate(0, 0, 21), nil},
		"after 22 days":        {old, m.Local, then.AddDate(0, 0, 22), ErrExpired},
		"with a newer secret":  {new, m.Local, then, nil},
		"without its secret":   {new[:1], m.Local, then, ErrHash},
		"no hash":              {old, "SRS0==AB=far.example=ann", then, ErrHash},
		"a short hash":         {old, strings.Replace(m.Local, m.Local[5:9], m.Local[5:8], 1), then, ErrHash},
		"another user":         {old, m.Local + "a", then, ErrHash},
		"no user":              {old, "SRS0=abcd=AB=far.example", then, ErrSyntax},
		"nothing":              {old, "SRS0=", then, ErrSyntax},
		"SRS1 of nothing":      {old, "SRS1=abcd=x", then, ErrSyntax},
		"not one":              {old, "ann", then, ErrSyntax},
		"a day that is none":   {old, "SRS0=" + hash(old[0], 4, "11", "a.example", "b") + "=11=a.example=b", then, ErrExpired},
		"signed, no address":   {old, "SRS0=" + hash(old[0], 4, stamp(then), "..", "b") + "=" + stamp(then) + "=..=b", then, ErrSyntax},
		"a wrap of the stamps": {old, assert.Get(ours.Forward(old, mailbox(t, "a@b.c"), time.Unix(1023*86400, 0)))(t).Local, time.Unix(1025*86400, 0), nil},
	} {
		_, err := ours.Reverse(tt.secrets, tt.local, tt.at)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

func TestBadSecretsAreNamedWithTheirLine(t *testing.T) {
	for text, line := range map[string]int{"": 1, "\n\n": 2, "a good secret\nshort\n": 2} {
		_, err := ParseSecrets("f", []byte(text))
		bad := (*config.Error)(nil)
		if !errors.As(err, &bad) || bad.Line != line {
			t.Errorf("%q: %v, want line %d", text, err, line)
		}
	}
	assert.Equal(t, len(assert.Get(ParseSecrets("f", []byte("one secret\r\n\nanother secret")))(t)), 2)
}

// Whatever comes back: no panic, and only what was signed is reversed.
func FuzzReverse(f *testing.F) {
	f.Add("SRS0=abcd=AB=far.example=ann")
	f.Add("SRS1=abcd=x.example==efgh=AB=far.example=ann")
	f.Fuzz(func(t *testing.T, local string) {
		if m, err := ours.Reverse(Secrets{[]byte("a secret of the fuzzer")}, local, time.Unix(1_700_000_000, 0)); err == nil {
			t.Errorf("%q is reversed to %s", local, m)
		}
	})
}
