package conf

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func testEnv(name string) (string, bool) {
	v, ok := map[string]string{"LOGDIR": "/var/log/mail", "EVIL": "$host"}[name]
	return v, ok
}

func mustConf(t testing.TB, text string) *File {
	t.Helper()
	c, err := Parse("scheduler.conf", []byte(text), testEnv)
	assert.Must(t, err)
	return c
}

// dump writes settings as one block of text.
func dump(channel, host string, s *Settings) string {
	if s == nil {
		return fmt.Sprintf("%s %s: no clause\n\n", channel, host)
	}
	argv, env := s.Command.Build(channel, host)
	return fmt.Sprintf("%s %s: interval %v retries %v expiry %v expiry2 %v idlemax %v\n"+
		"  maxta %d maxchannel %d maxring %d maxthr %d overfeed %d ageorder %v bychannel %v\n"+
		"  start %d rate %v hostrate %v jitter %d minage %v notbefore %q onexpiry %d sources %q helo %q\n"+
		"  reporttimes %v queueonly %v wakeuprestartonly %v user %q group %q nice %d\n"+
		"  clause %s command %q %q ring %q\n\n",
		channel, host, s.Interval, s.Retries, s.Expiry, s.Expiry2, s.IdleMax,
		s.MaxTA, s.MaxChannel, s.MaxRing, s.MaxThread, s.Overfeed, s.AgeOrder, s.ByChannel,
		s.Start, s.Rate, s.HostRate, s.Jitter, s.MinAge, s.NotBefore, s.OnExpiry, s.Sources, s.Helo,
		s.ReportTimes, s.QueueOnly, s.JoinWaiting, s.User, s.Group, s.Nice,
		s.Clause, env, argv, s.RingKey(channel, host))
}

// M30: golden configurations. A line "#? channel host" in one asks for a match.
func TestGoldenConfigurations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatal("no configurations", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			assert.Must(t, err)
			c, err := Parse(filepath.Base(file), text, testEnv)
			assert.Must(t, err)
			got := fmt.Sprintf("report interval %v, copy undeliverable %v, mailqsock %q, authfile %q\n\n",
				c.ReportInterval, c.CopyUndeliverable, c.MailQSock, c.AuthFile)
			got += fmt.Sprintf("without effect: %q\n\n", c.NoEffect)
			for line := range strings.Lines(string(text)) {
				if ask, ok := strings.CutPrefix(line, "#? "); ok {
					f := strings.Fields(ask)
					got += dump(f[0], f[1], c.Match(f[0], f[1]))
				}
			}
			golden(t, strings.TrimSuffix(file, ".conf")+".golden", got)
		})
	}
}

// M30: every error of a bad configuration is reported, with file, line and column.
func TestGoldenErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatal("no configurations", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			assert.Must(t, err)
			_, err = Parse(filepath.Base(file), text, testEnv)
			if config.Exit(err) != config.ExitConfig {
				t.Fatalf("got %v, want an error that ends a program with exit code %d", err, config.ExitConfig)
			}
			golden(t, strings.TrimSuffix(file, ".conf")+".golden", err.Error()+"\n")
		})
	}
}

// golden compares with a file, or rewrites it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		assert.Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	assert.Must(t, err)
	assert.Same(t, got, string(want))
}

func TestBuiltInConfigurationServesEveryChannel(t *testing.T) {
	c, err := Parse("built-in scheduler.conf", config.Default("scheduler.conf"), testEnv)
	assert.Must(t, err)
	for _, channel := range []string{"smtp", "smtpx", "lmtp", "local", "file"} {
		s := c.Match(channel, "host.example")
		if s == nil || s.MaxThread < 2 || s.Expiry != 72*time.Hour {
			t.Errorf("%s: got %+v", channel, s)
			continue
		}
		argv, _ := s.Command.Build(channel, "host.example")
		if argv[len(argv)-1] != channel {
			t.Errorf("%s: command %q does not name it", channel, argv)
		}
	}
}

func FuzzParseConf(f *testing.F) {
	for _, names := range []string{"testdata/*.conf", "testdata/bad/*.conf"} {
		files, err := filepath.Glob(names)
		assert.Must(f, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			assert.Must(f, err)
			f.Add(string(text), "smtp", "mx.example.org")
		}
	}
	f.Add("a/[!]b]{x,y}\n command=\"[A=$host] 'b c' $channel\"\n", "a", "bx")
	f.Fuzz(func(t *testing.T, text, channel, host string) {
		c, err := Parse("f", []byte(text), testEnv)
		if err != nil {
			for _, err := range Errors(err) {
				var bad *config.Error
				if !errors.As(err, &bad) {
					t.Fatalf("%v is no *config.Error", err)
				}
				if bad.Line > strings.Count(text, "\n")+1 || bad.Column < 0 || bad.Column > len(text)+1 {
					t.Fatalf("%v stands outside of %q", err, text)
				}
			}
			return
		}
		s := c.Match(channel, host)
		if s == nil {
			return
		}
		if s != c.Match(channel, host) {
			t.Fatal("the same question has two answers")
		}
		if s.MaxThread > 0 && s.Start > s.MaxThread || s.Start < 1 || s.Rate.N > 0 && s.Rate.Per <= 0 {
			t.Fatalf("bounds that cannot hold: %+v", s)
		}
		if len(s.Command.Words) == 0 || s.Interval <= 0 || len(s.Retries) == 0 || s.IdleMax < 0 {
			t.Fatalf("settings that cannot work: %+v", s)
		}
		s.Command.Build(channel, host)
		s.RingKey(channel, host)
	})
}

// M30: users that are not there are told before mail waits for them.
func TestUnknownUserIsNamedWithItsPlace(t *testing.T) {
	conf := mustConf(t, "*/*\n\tinterval=1m user=no-such-user\nsmtp/* group=no-such-group command=\"x\"\nlocal/* user=root command=y\n")
	want := []string{
		"scheduler.conf:2:14: ",
		"scheduler.conf:3:8: ",
	}
	errs := conf.CheckIdentities(os.Geteuid() == 0)
	if os.Geteuid() == 0 && len(errs) != len(want) || len(errs) < len(want) {
		t.Fatalf("got %q, want %q", errs, want)
	}
	for i := range want {
		if bad := (*config.Error)(nil); !strings.HasPrefix(errs[i].Error(), want[i]) || !errors.As(errs[i], &bad) {
			t.Errorf("got %q, want %q", errs[i], want[i])
		}
	}
}

// Without maxunproven half of the places are kept, whichever limit says how many there are.
func TestAtk3HalfOfThePlacesAreKept(t *testing.T) {
	for clause, want := range map[string]int{
		`maxta=50 maxring=100 command="a --slots=20"`:                50,
		`maxta=50 maxring=100 maxunproven=80 command="a --slots=20"`: 80,
		`maxta=50 maxring=100 maxunproven=0 command="a --slots=20"`:  0,
		`maxta=50 maxring=100 maxchannel=31 command="a --slots=20"`:  16,
		`maxta=1 maxring=100 command="a --slots=20"`:                 10,
		`maxta=50 maxring=100 command=a`:                             25,
		`maxta=0 maxring=0 command=a`:                                0,
		`maxta=10 maxring=0 command=a`:                               5,
		`maxring=1 command=a`:                                        1,
		`maxring=2 command=a`:                                        2,
		`maxring=3 command=a`:                                        2,
	} {
		conf := mustConf(t, "*/* "+clause+"\n")
		assert.Equal(t, conf.Match("smtp", "h").MaxUnproven, want, clause)
	}
}

// Z8: Service agrees with the engine on who serves a channel and host, also if no clause does.
func TestServiceOfEachChannelAndHostIsTold(t *testing.T) {
	conf, err := Parse("/etc/scheduler.conf", []byte(`*/* maxthr=3
smtp/slow.example
	command="a"
smtp/*
smtpx/*
	command="a"
uucp/*
	queueonly command="a"
`), func(string) (string, bool) { return "", false })
	assert.Must(t, err)
	tests := map[string]Service{
		"smtp slow.example":  {Served: true, Clause: "smtp/slow.example", Where: "/etc/scheduler.conf:2"},
		"smtp Slow.EXAMPLE":  {Served: true, Clause: "smtp/slow.example", Where: "/etc/scheduler.conf:2"},
		"smtp x.example":     {Served: true, Clause: "smtp/*", Where: "/etc/scheduler.conf:4"},
		"smtpx x.example":    {Served: true, Clause: "smtpx/*", Where: "/etc/scheduler.conf:5"},
		"uucp far":           {Served: true, Clause: "uucp/*", Where: "/etc/scheduler.conf:7"},
		"pigeon far":         {},
		"pigeon":             {},
		"error nouser":       {Served: true, Code: "5.1.1"},
		"bitbucket -":        {Served: true},
		"bitbucket expanded": {Served: true},
		"hold age:2h":        {Served: true},
		"hold nonsense":      {},
	}
	for line, want := range tests {
		want.Channel, want.Host, _ = strings.Cut(line, " ")
		got := conf.Service(want.Channel, want.Host)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Service{}, "Text")); diff != "" {
			t.Errorf("%s: want -, got +\n%s", line, diff)
		}
		// That is what the scheduler would do.
		if served := conf.Match(want.Channel, want.Host) != nil; want.Channel != "error" && want.Channel != "bitbucket" && want.Channel != "hold" && served != got.Served {
			t.Errorf("%s: told that served is %v", line, got.Served)
		}
	}
}

// Each of as many clauses as a file may have sets what it says, and more are refused.
func TestDel9ManyClauses(t *testing.T) {
	const most = 1 << 16
	var text strings.Builder
	for i := range most {
		fmt.Fprintf(&text, "smtp/h%d\n\tinterval=%ds command=\"x\"\n", i, i+1)
	}
	c, err := Parse("scheduler.conf", []byte(text.String()), nil)
	assert.Must(t, err)
	for _, i := range []int{0, 255, 256, most / 2, most - 257, most - 1} {
		if s := c.Match("smtp", fmt.Sprintf("h%d", i)); s == nil || s.Interval != time.Duration(i+1)*time.Second {
			t.Errorf("clause %d: got %+v", i, s)
		}
	}
	text.WriteString("smtp/*\n\tcommand=\"x\"\n")
	if _, err := Parse("scheduler.conf", []byte(text.String()), nil); err == nil {
		t.Error("a file with one clause more is read")
	}
}
