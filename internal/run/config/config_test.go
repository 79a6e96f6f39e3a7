package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// loadText loads a zmailer.conf with this text.
func loadText(t testing.TB, text string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return Load(path)
}

func TestValuesAreReadAsWritten(t *testing.T) {
	tests := map[string]struct{ line, want string }{
		"bare":                          {`POSTMASTER=joe`, "joe"},
		"blanks around":                 {"  POSTMASTER = joe \t", "joe"},
		"comment behind":                {`POSTMASTER=joe # not joan`, "joe"},
		"number sign inside a word":     {`POSTMASTER=joe#1`, "joe#1"},
		"double quotes":                 {`POSTMASTER="j#oe" # c`, "j#oe"},
		"escapes in double quotes":      {`POSTMASTER="a\"b\\c\$d\e"`, `a"b\c$d\e`},
		"single quotes take all":        {`POSTMASTER='${X}\"'`, `${X}\"`},
		"reference":                     {`POSTMASTER=root@${HOSTNAME}.org`, "root@mx.org"},
		"reference in double quotes":    {`POSTMASTER="root@${HOSTNAME}"`, "root@mx"},
		"dollar without braces":         {`POSTMASTER=$HOME`, "$HOME"},
		"carriage return at the end":    {"POSTMASTER=joe\r", "joe"},
		"equals sign in the value":      {`POSTMASTER=a=b`, "a=b"},
		"the later of two":              {"POSTMASTER=a\nPOSTMASTER=b", "b"},
		"reference to its earlier self": {"POSTMASTER=a\nPOSTMASTER=${POSTMASTER}b", "ab"},
		"empty means default":           {`POSTMASTER=`, "default"},
		"only a comment means default":  {`POSTMASTER= # none`, "default"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := assert.Get(loadText(t, "# file\n\nHOSTNAME=mx\n"+tt.line+"\n"))(t)
			assert.Equal(t, c.String("POSTMASTER", "default"), tt.want)
		})
	}
}

func TestBadLineIsNamedWithFileLineAndReason(t *testing.T) {
	tests := map[string]struct{ line, want string }{
		"unknown name":           {`HASHLVELS=1`, "HASHLVELS is not a setting; did you mean HASHLEVELS?"},
		"lower case":             {`hostname=x`, "did you mean HOSTNAME?"},
		"a name of Postfix":      {`myhostname = mx`, "there is HOSTNAME"},
		"in capitals":            {`RELAYHOST=[mx]`, "file routes"},
		"one that few set":       {`smtpd_proxy_timeout = 1s`, "coming-from-postfix.md"},
		"a misspelt DNS list":    {`DNSBL_SITE=x`, "did you mean DNSBL_SITES?"},
		"no equals sign":         {`HOSTNAME mx`, "not NAME=value"},
		"shell syntax":           {`export HOSTNAME=mx`, "not NAME=value"},
		"no name":                {`=x`, "not NAME=value"},
		"open quote":             {`HOSTNAME="mx`, `no closing "`},
		"text behind a quote":    {`HOSTNAME="m"x`, "text after the closing quote"},
		"comment glued on":       {`HOSTNAME="m"#x`, "text after the closing quote"},
		"later value":            {`HOSTNAME=${POSTMASTER}`, "${POSTMASTER} is not set above this line"},
		"environment":            {`HOSTNAME=${HOME}`, "${HOME} is not set above this line"},
		"open brace":             {`HOSTNAME=${HOME`, "${ without }"},
		"control character":      {"HOSTNAME=a\x00b", "no text"},
		"not UTF-8":              {"HOSTNAME=a\xff", "no text"},
		"relative postoffice":    {`POSTOFFICE=var/spool`, "it must be a path from the root"},
		"hash levels":            {`HASHLEVELS=3`, "HASHLEVELS=3 cannot be used: it must be one of 0, 1, 2"},
		"interval":               {`ROUTERPOLL=soon`, "it must be like 90, 15s"},
		"interval of nothing":    {`ROUTERPOLL=0`, "longer than nothing"},
		"size":                   {`MAXSIZE=big`, "it must be a number of bytes"},
		"port":                   {`SMTPPORT=70000`, "it must be a port"},
		"name server":            {`RESOLVER=127.0.0.1`, "it must be host:port"},
		"two words":              {`HOSTNAME="a b"`, "one word"},
		"negative worker":        {`ROUTERWORKERS=-1`, "above 0"},
		"users that are no file": {`LOCALUSERS=ldap`, "it must be passwd or a path"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := loadText(t, "POSTOFFICE=/x\n"+tt.line+"\nPOSTMASTER=late\n")
			var bad *Error
			if !errors.As(err, &bad) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if filepath.Base(bad.File) != "zmailer.conf" || bad.Line != 2 || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, want line 2 and %q", err, tt.want)
			}
			assert.Equal(t, Exit(err), ExitConfig, "exit code")
		})
	}
}

func TestUnreadableFileIsNamedOnce(t *testing.T) {
	_, err := Load("/nonexistent/zmailer.conf")
	assert.Equal(t, err.Error(), "/nonexistent/zmailer.conf: cannot be read: no such file or directory")
	if !errors.Is(err, os.ErrNotExist) || Exit(err) != ExitConfig {
		t.Errorf("got %v, exit code %d", err, Exit(err))
	}
}

func TestTypedValueNamesItsLine(t *testing.T) {
	c := assert.Get(loadText(t, "\nTRUSTED=maybe\n"))(t)
	_, intErr := c.Int("TRUSTED", 1)
	_, boolErr := c.Bool("TRUSTED", true)
	_, durationErr := c.Duration("TRUSTED", 1)
	_, sizeErr := c.Size("TRUSTED", 1)
	for _, err := range []error{intErr, boolErr, durationErr, sizeErr} {
		if bad := (*Error)(nil); !errors.As(err, &bad) || bad.Line != 2 || !strings.Contains(err.Error(), "TRUSTED=maybe") {
			t.Errorf("got %v, want an *Error for TRUSTED=maybe on line 2", err)
		}
	}
	if n, err := c.Int("HASHLEVELS", 2); n != 2 || err != nil {
		t.Errorf("default: got %d, %v", n, err)
	}
}

func TestDurations(t *testing.T) {
	tests := map[string]time.Duration{
		"90": 90 * time.Second, "15s": 15 * time.Second, "1h5m20s": time.Hour + 5*time.Minute + 20*time.Second,
		"3d": 72 * time.Hour, "1w": 168 * time.Hour, "1m30": 90 * time.Second, "0": 0,
	}
	for text, want := range tests {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "s", "1x", "1s1h", "1h1h", "-1", "1.5h", "1 h", "999999999999999w", "106752d9999999h"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestSizes(t *testing.T) {
	tests := map[string]int64{
		"0": 0, "1000": 1000, "64k": 64 << 10, "100M": 100 << 20, "1G": 1 << 30, "2t": 2 << 40,
		"9223372036854775807": 1<<63 - 1, "8388607T": 8388607 << 40,
	}
	for text, want := range tests {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "k", "-1", "1kb", "1.5M", "9223372036854775808", "8388608T"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestListsSplitAtCommasAndBlanks(t *testing.T) {
	c := assert.Get(loadText(t, `TRUSTED=" a, b,,c  d "`))(t)
	assert.Equal(t, strings.Join(c.List("TRUSTED"), "|"), "a|b|c|d")
	if got := c.List("RELAYNETS"); len(got) != 0 {
		t.Errorf("not set: got %q, want none", got)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("HOSTNAME=mx\nPOSTMASTER=\"root@${HOSTNAME}\" # x\n")
	f.Add("POSTMASTER='a'\nLOG=\n#\n")
	f.Add("POSTMASTER=\"\\")
	f.Add("POSTMASTER=${")
	f.Fuzz(func(t *testing.T, text string) {
		c := &Config{values: map[string]value{}}
		if err := c.parse("f", text); err != nil {
			if bad := (*Error)(nil); !errors.As(err, &bad) || bad.Line == 0 {
				t.Fatalf("%q: got %v, want an *Error with a line", text, err)
			}
			return
		}
		// What was read can be written so that it is read again.
		for name, v := range c.values {
			again := &Config{values: map[string]value{}}
			if err := again.parse("f", name+"="+quote(v.text)+"\n"); err != nil {
				t.Fatalf("%s: %q written as %s: %v", name, v.text, quote(v.text), err)
			}
			if got := again.values[name].text; got != v.text {
				t.Fatalf("%s: got %q, want %q", name, got, v.text)
			}
		}
	})
}

// A name of an earlier version is reported and ignored, whatever it was set to.
func TestRetiredSettingIsIgnored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(path, []byte("SMTPWINDOW=no number\nSMTPPORT=26\n"), 0o644))
	c := assert.Get(Load(path))(t)
	if got := c.Retired(); len(got) != 1 || got[0].Line != 1 || !strings.HasPrefix(got[0].Reason, "SMTPWINDOW ") {
		t.Errorf("got %v", got)
	}
	if port, err := c.Int("SMTPPORT", 25); port != 26 || err != nil {
		t.Errorf("got %d, %v", port, err)
	}
}
