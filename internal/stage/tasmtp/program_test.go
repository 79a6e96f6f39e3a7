package tasmtp_test

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/test/suite"
)

// Z2, Z4: a message of 100 MB goes through in constant memory, every byte of it.
func TestBigMessageInConstantMemory(t *testing.T) {
	const (
		lines = 1 << 20
		limit = 64 << 20
	)
	sink := (&Sink{Discard: true}).Start(t, "", "")
	spool := NewSpool(t)
	name := spool.NewName()
	f, err := os.Create(filepath.Join(spool.Dir, "queue", name))
	assert.Must(t, err)
	stored := bufio.NewWriterSize(f, 1<<20)
	fmt.Fprint(stored, Envelope(), "\n")
	sum := crc32.NewIEEE()
	sent := bufio.NewWriterSize(sum, 1<<20)
	fmt.Fprint(sent, "Subject: test\r\n\r\n")
	total := int64(len("Subject: test\r\n\r\n"))
	for i := range lines {
		line := strings.Repeat(string(rune('a'+i%26)), 100)
		if i%5 == 0 {
			line = "." + line[:99]
			n, _ := sent.WriteString(".")
			total += int64(n)
		}
		stored.WriteString(line + "\n")
		n, _ := sent.WriteString(line + "\r\n")
		total += int64(n)
	}
	fmt.Fprint(sent, ".\r\n")
	total += int64(len(".\r\n"))
	sent.Flush()
	assert.Must(t, stored.Flush())
	assert.Must(t, f.Close())
	spool.Specify(name, Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}, int64(len(Envelope())+1))

	p := start(t, spool, conf(spool, sink), "--slots=4", "smtp")
	for range 4 {
		p.Answers()
	}
	p.Say(name + "\t[127.0.0.1]\n")
	Only(t, p.Answers(), taproto.OK3, "")
	if m := sink.Messages(); m[0].Bytes != total || m[0].Sum != sum.Sum32() {
		t.Errorf("got %d bytes with sum %x, want %d with %x", m[0].Bytes, m[0].Sum, total, sum.Sum32())
	}
	if got := (suite.Process{Pid: p.Process.Pid}).Peak(); got == 0 || got > limit {
		t.Errorf("peak memory %d bytes, want at most %d", got, limit)
	}
}

// A17: a signal, or the end of its input, lets the agent finish what it has begun:
// the recipient is marked and answered, and the server hears QUIT.
func TestStopFinishesTheMessageAtHand(t *testing.T) {
	stops := map[string]func(*Process) error{
		"SIGTERM":      func(p *Process) error { return p.Process.Signal(syscall.SIGTERM) },
		"SIGINT":       func(p *Process) error { return p.Process.Signal(syscall.SIGINT) },
		"end of input": func(p *Process) error { return p.In.Close() },
		"empty line":   func(p *Process) error { _, err := io.WriteString(p.In, "\n"); return err },
	}
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			atDot, goOn := make(chan struct{}, 2), make(chan struct{})
			sink := (&Sink{Answer: func(command string) string {
				if command == "." {
					atDot <- struct{}{}
					<-goOn
				}
				return ""
			}}).Start(t, "", "")
			spool := NewSpool(t)
			first, second := spool.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}), spool.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")})
			p := start(t, spool, conf(spool, sink), "smtp")
			p.Answers()
			p.Say(first + "\t[127.0.0.1]\n" + second + "\t[127.0.0.1]\n")
			<-atDot
			assert.Must(t, stop(p))
			close(goOn)
			Only(t, p.Answers(), taproto.OK3, "")
			// Whether the second was begun depends on what came first; what was begun
			// was finished.
			assert.Equal(t, p.End(), 0, "exit code: %s", p.Log.String())
			assert.Equal(t, spool.Tags(first), "+", "tag")
			if got := spool.Tags(second); got != " " && got != "+" {
				t.Errorf("tag %q of the one that was not begun", got)
			}
			sink.WaitQuits(1)
		})
	}
}

// A22: connections, descriptors and slots after many messages are as few as before.
func TestManyMessagesLeaveNothingOpen(t *testing.T) {
	const messages, slots = 300, 4
	sink := new(Sink).Start(t, "", "")
	spool := NewSpool(t)
	p := start(t, spool, conf(spool, sink), "--slots=4", "--idle=1m", "smtp")
	for range slots {
		p.Answers()
	}
	job := func(n int) {
		for range n {
			p.Say(spool.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}) + "\t[127.0.0.1]\n")
		}
		for range n {
			Only(t, p.Answers(), taproto.OK3, "")
		}
	}
	job(2 * slots)
	before := suite.Process{Pid: p.Process.Pid}.Descriptors()
	job(messages)
	if got := sink.Connects(); got > slots {
		t.Errorf("%d connections, want at most %d", got, slots)
	}
	if got := (suite.Process{Pid: p.Process.Pid}).Descriptors(); got > before+slots {
		t.Errorf("%d descriptors, %d before", got, before)
	}
	assert.Equal(t, len(sink.Messages()), messages+2*slots, "messages")
}

func TestBadStart(t *testing.T) {
	cases := map[string]struct {
		conf string
		args []string
		dir  string // below the postoffice; "": transport
		code int
		text string
	}{
		"unknown channel":  {"", []string{"local"}, "", config.ExitUsage, "channel local"},
		"no slots":         {"", []string{"--slots=0", "smtp"}, "", config.ExitUsage, "--slots"},
		"unknown flag":     {"", []string{"--sluts=1"}, "", config.ExitUsage, "--help"},
		"bad port":         {"SMTPPORT=x\n", []string{"smtp"}, "", config.ExitConfig, "zmailer.conf:1"},
		"bad host name":    {"\nHOSTNAME=a..b\n", []string{"smtp"}, "", config.ExitConfig, "zmailer.conf:2: HOSTNAME=a..b"},
		"not in transport": {"HOSTNAME=here.test\n", []string{"smtp"}, ".", config.ExitConfig, "transport/"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spool := NewSpool(t)
			cmd := command(t, spool, c.conf, c.args...)
			if c.dir != "" {
				cmd.Dir = filepath.Join(spool.Dir, c.dir)
			}
			out, err := cmd.CombinedOutput()
			exit, ok := err.(*exec.ExitError)
			if !ok || exit.ExitCode() != c.code || !strings.Contains(string(out), c.text) {
				t.Errorf("got %v, %s; want exit code %d, %s", err, out, c.code, c.text)
			}
		})
	}
}
