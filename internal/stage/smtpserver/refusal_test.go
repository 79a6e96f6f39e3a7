package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/policy"
)

// M2, S21, and the trap "a local fault answered with 5xx": a fault of ours keeps the
// message with the client and leaves nothing here; when it is over the same connection
// goes on.
func TestStorageErrorIsAnsweredTemporarily(t *testing.T) {
	for _, op := range []string{"open", "write", "writeat", "chmod", "fsync", "rename"} {
		for errno, want := range map[unix.Errno]string{
			unix.ENOSPC: "452 4.3.1", unix.EDQUOT: "452 4.3.1", unix.EIO: "451 4.3.0",
			unix.EMFILE: "451 4.3.0", unix.EEXIST: "451 4.3.0",
		} {
			t.Run(op+" "+errno.Error(), func(t *testing.T) {
				var f fault
				r := start(t, func(c *Config) { c.FS = &troubled{before: f.before} })
				body := "Subject: x\r\n\r\n" + strings.Repeat("0123456789\r\n", 8<<10)
				p := r.dial()
				p.say("EHLO c", "250")
				f.set(op, errno)
				for range 2 {
					p.say("MAIL FROM:<a@b>", "250")
					p.say("RCPT TO:<c@d>", "250")
					p.say("DATA", "354")
					p.send(body + ".\r\n")
					p.expect(want)
					r.nothing()
				}
				p.say("MAIL FROM:<a@b>", "250")
				p.say("RCPT TO:<c@d>", "250")
				p.say(fmt.Sprintf("BDAT %d LAST\r\n%s", len(body), body[:len(body)-2]), want)
				r.nothing()
				f.set("", nil)
				p.say("MAIL FROM:<a@b>", "250")
				p.say("RCPT TO:<c@d>", "250")
				p.say("DATA", "354")
				p.send(body + ".\r\n")
				p.expect("250 2.0.0")
				if got, want := r.content(), strings.ReplaceAll(body, "\r\n", "\n"); got != want {
					t.Errorf("got %d bytes, want %d", len(got), len(want))
				}
				// K12: the trouble is logged once, and once that it is over.
				log := r.log.String()
				if a, b := strings.Count(log, "msg=storage-trouble"), strings.Count(log, "msg=storage-recovered"); a != 1 || b != 1 {
					t.Errorf("said %d times, recovered %d times; want once each", a, b)
				}
			})
		}
	}
}

// S21: the chunk in whose time the trouble came is answered with it; those that were
// sent behind it are refused and skipped, whatever stands in them.
func TestChunksBehindATroubleAreSkipped(t *testing.T) {
	var f fault
	r := start(t, func(c *Config) { c.FS = &troubled{before: f.before} })
	f.set("write", unix.ENOSPC)
	p := r.dial()
	p.say("EHLO c", "250")
	chunk := strings.Repeat("RSET\r\n", 20<<10)
	all := "MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\n"
	for _, last := range []string{"", "", " LAST"} {
		all += fmt.Sprintf("BDAT %d%s\r\n%s", len(chunk), last, chunk)
	}
	p.send(all + "NOOP\r\n")
	p.expect("250", "250", "452 4.3.1", "503", "503", "250 2.0.0")
	r.nothing()
}

// S21 with sync=strict: an unsynced directory is no acceptance.
func TestUnsyncedDirectoryIsNoAcceptance(t *testing.T) {
	var f fault
	r := start(t, func(c *Config) { c.Strict, c.FS = true, &troubled{before: f.before} })
	f.set("syncdir", unix.EIO)
	p := r.dial()
	p.transaction()
	p.say("x\r\n.", "451")
	r.nothing()
}

// M2: an incomplete message leaves nothing.
func TestDroppedConnectionLeavesNothing(t *testing.T) {
	large := strings.Repeat("0123456789abcde\r\n", 16<<10)
	for name, said := range map[string]string{
		"in DATA":               "DATA\r\nSubject: x\r\n\r\nha",
		"in DATA, large":        "DATA\r\n" + large,
		"before the last CRLF":  "DATA\r\nSubject: x\r\n\r\nhalf\r\n.",
		"between chunks":        "BDAT 6\r\nhalf\r\n",
		"in a chunk":            "BDAT 60\r\nhalf",
		"in the last chunk":     "BDAT 60 LAST\r\nhalf",
		"in a large last chunk": fmt.Sprintf("BDAT %d LAST\r\n%s", len(large)+1, large),
		"after an empty chunk":  "BDAT 0\r\n",
		"before the last":       "BDAT 4\r\nhalfBDAT 4 LAST\r\nhal",
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil)
			p := r.dial()
			p.say("EHLO c", "250")
			p.say("MAIL FROM:<a@b>", "250")
			p.say("RCPT TO:<c@d>", "250")
			p.send(said)
			if tcp, ok := p.Conn.(*net.TCPConn); ok {
				if err := tcp.CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			rest, err := io.ReadAll(p.r)
			if err != nil || strings.Contains(string(rest), "queued as S") {
				t.Errorf("the server says %q, %v", rest, err)
			}
			r.stop()
			if err := r.ended(); err != nil {
				t.Error(err)
			}
			r.nothing()
		})
	}
}

func TestResetDropsTheTransaction(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.say("EHLO c", "250")
	for _, between := range []string{"RSET", "EHLO again", "HELO again"} {
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<c@d>", "250")
		p.say("BDAT 4\r\nha", "250")
		p.say(between, "250")
		p.say("BDAT 0 LAST", "503")
		p.say("DATA", "503")
	}
	p.say("MAIL FROM:<a@b>", "250")
	p.say("MAIL FROM:<e@f>", "503 5.5.1")
	p.say("RCPT TO:<c@d>", "250")
	p.say("DATA", "354")
	p.say("x\r\n.", "250")
	if got := r.only(); !strings.Contains(got, "from <a@b>\n") {
		t.Errorf("got %q", got)
	}
}

func TestMessageAboveTheSizeIsRefused(t *testing.T) {
	const size = 100 << 10
	exact := strings.Repeat("0123456789abcd\r\n", size/16)
	r := start(t, func(c *Config) { c.MaxSize = size })
	p := r.dial()
	if got := p.say("EHLO c", "250"); !strings.Contains(got, fmt.Sprintf("SIZE %d\r\n", size)) {
		t.Errorf("EHLO says %q", got)
	}
	p.say(fmt.Sprintf("MAIL FROM:<a@b> SIZE=%d", size+1), "552 5.3.4")
	try := func(data, want string) {
		t.Helper()
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<c@d>", "250")
		p.say("DATA", "354")
		p.send(data + ".\r\n")
		p.expect(want)
	}
	try(exact+"x\r\n", "552 5.3.4")
	try(strings.Repeat(exact, 5), "552 5.3.4")
	r.nothing()
	for _, last := range []string{"", " LAST"} {
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<c@d>", "250")
		p.say("BDAT 3\r\nx", "250")
		p.send(fmt.Sprintf("BDAT %d%s\r\n%s", len(exact), last, exact))
		p.expect("552 5.3.4")
		p.say("RSET", "250")
	}
	// RFC 1870 §4: line ends are counted, stuffed dots are not.
	try("."+exact[:0]+"."+exact[1:], "250")
	if got := r.content(); len(got) != size-size/16 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestTooManyRecipientsAreDeferred(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxRecipients = 3 })
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b>", "250")
	for range 3 {
		p.say("RCPT TO:<c@d>", "250")
	}
	p.say("RCPT TO:<c@d>", "452 4.5.3")
	p.say("DATA", "354")
	p.say("x\r\n.", "250")
	if got := strings.Count(r.only(), "to <c@d>\n"); got != 3 {
		t.Errorf("%d recipients", got)
	}
}

func TestBadCommandsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct{ said, want string }{
		"bad sender":             {"MAIL FROM:<a@@b>", "501"},
		"bad sender's domain":    {"MAIL FROM:<a@b_.-c>", "501"},
		"null recipient":         {"MAIL FROM:<a@b>\r\nRCPT TO:<>", "501"},
		"two at":                 {"MAIL FROM:<a@b>\r\nRCPT TO:<c@d@e>", "501"},
		"control character":      {"MAIL FROM:<a@b>\r\nRCPT TO:<c\x01@d>", "501"},
		"UTF-8 without SMTPUTF8": {"MAIL FROM:<ä@b>", "553 5.6.7"},
		"UTF-8 recipient":        {"MAIL FROM:<a@b>\r\nRCPT TO:<ä@b>", "553 5.6.7"},
		"no UTF-8":               {"MAIL FROM:<\xff@b> SMTPUTF8", "501"},
		"RCPT first":             {"RCPT TO:<c@d>", "50"},
		"DATA without recipient": {"MAIL FROM:<a@b>\r\nDATA", "50"},
		"bad ENVID":              {"MAIL FROM:<a@b> ENVID=+4", "501"},
		"bad NOTIFY":             {"MAIL FROM:<a@b>\r\nRCPT TO:<c@d> NOTIFY=NEVER,DELAY", "501"},
		"bad chunk":              {"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT x LAST", "501"},
		"chunk with extra":       {"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 9 LAST x", "501"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil)
			p := r.dial()
			p.say("EHLO c", "250")
			lines := strings.Split(tt.said, "\r\n")
			for _, l := range lines[:len(lines)-1] {
				p.say(l, "250")
			}
			if got := p.say(lines[len(lines)-1], tt.want); strings.Count(got, "\n") != 1 {
				t.Errorf("reply %q", got)
			}
			p.say("NOOP", "250")
			r.nothing()
		})
	}
}

func TestCommandLinesAreLimited(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("NOOP "+strings.Repeat("x", 4096-7), "250")
	for _, end := range []string{"\r\n", ""} {
		p := r.dial()
		p.send("NOOP " + strings.Repeat("x", 4096) + end)
		p.expect("500")
		p.end()
	}
	p = r.dial()
	for range 3 {
		p.say("XYZW", "500")
	}
	p.say("XYZW", "500")
	p.expect("500")
	p.end()
}

func TestChunkRefusedByItsSyntaxIsNotAMessage(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RCPT TO:<c@d>", "250")
	// go-smtp takes what follows a BDAT that it cannot read for commands.
	p.send("BDAT 18 LAST x\r\nDATA\r\nhi\r\n.\r\nNOOP\r\n")
	p.expect("501", "354", "250 2.0.0", "250")
	if got := r.content(); got != "hi\n" {
		t.Errorf("got %q", got)
	}
}

func TestUnauthenticatedClientsSendToLocalDomainsOnly(t *testing.T) {
	names := filepath.Join(t.TempDir(), "localnames")
	r := start(t, func(c *Config) { c.Access.RelayNets, c.Access.LocalNamesFile = nil, names })
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RCPT TO:<c@here.example>", "550 5.7.1")
	p.say("RCPT TO:<c@MX.Example.ORG>", "250") // HOSTNAME
	p.say("RCPT TO:<postmaster>", "250")
	p.say("RCPT TO:<c@localhost>", "250") // the built-in file
	write := func(s string) {
		if err := os.WriteFile(names, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The file is read again when it has settled.
	until := func(line, prefix string) {
		t.Helper()
		eventually(t, line, func() bool {
			p.send(line + "\r\n")
			return strings.HasPrefix(p.reply(), prefix)
		})
	}
	write("# ours\nHere.Example. some text\nbücher.example\n")
	until("RCPT TO:<c@here.EXAMPLE>", "250")
	p.say("RCPT TO:<c@xn--bcher-kva.example>", "250")
	p.say("RCPT TO:<c@localhost>", "550 5.7.1")
	p.say("RCPT TO:<c@sub.here.example>", "550 5.7.1")
	write("there.example\n")
	until("RCPT TO:<c@there.example>", "250")
	p.say("RCPT TO:<c@here.example>", "550 5.7.1")
	write("here.example\nno domain..\n..\n")
	eventually(t, "the bad line is logged", func() bool {
		p.say("RCPT TO:<c@here.example>", "550 5.7.1")
		return strings.Contains(r.log.String(), "msg=table-refused")
	})
	// What was read last holds.
	p.say("RCPT TO:<d@there.example>", "250")
	if err := os.Remove(names); err != nil {
		t.Fatal(err)
	}
	until("RCPT TO:<c@localhost>", "250") // the built-in file again
	p.say("RCPT TO:<c@there.example>", "550 5.7.1")
	p.say("RCPT TO:<c@[127.0.0.1]>", "550 5.7.1")
	p.say("RCPT TO:<\"c@mx.example.org\"@there.example>", "550 5.7.1")
	p.say("RCPT TO:<@mx.example.org:c@there.example>", "550 5.7.1")
}

// With the built-in file in the place of one that cannot be read, every domain of ours
// would be answered 550.
func TestLocalNamesThatCannotBeReadAreNoStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bad"), []byte("example.org\nno..domain\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, file := range map[string]string{"a directory": dir, "a bad line": filepath.Join(dir, "bad")} {
		for how, c := range map[string]Config{
			"beside zmailer.conf": {Access: policy.Config{LocalNamesFile: file}}, "in LOCALNAMES": {Access: policy.Config{LocalNames: []string{file}}},
		} {
			c.PostOffice, c.Hostname = t.TempDir(), "mx.example.org"
			disk, err := durable.NewOS(c.PostOffice)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { disk.Close() })
			if err := postoffice.Init(disk); err != nil {
				t.Fatal(err)
			}
			bad := (*config.Error)(nil)
			if err := Run(t.Context(), c); !errors.As(err, &bad) || bad.File != file {
				t.Errorf("%s %s: %v", what, how, err)
			}
		}
	}
}

// K15: a silent client gets 421 and is closed; nothing of it stays.
func TestSilentClientIsCutOff(t *testing.T) {
	for name, said := range map[string]string{
		"after the greeting": "",
		"in a command":       "NOO",
		"in a transaction":   "EHLO c\r\nMAIL FROM:<a@b>\r\n",
		"in DATA":            "EHLO c\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nhalf",
		"in a chunk":         "EHLO c\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 9 LAST\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.ReadTimeout = 50 * time.Millisecond })
			p := r.dial()
			p.send(said)
			all, err := io.ReadAll(p.r)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.SplitAfter(string(all), "\r\n")
			if last := lines[len(lines)-2]; !strings.HasPrefix(last, "421 4.4.2") || strings.Count(string(all), "\n421") > 1 {
				t.Errorf("the server says %q", all)
			}
			r.stop()
			if err := r.ended(); err != nil {
				t.Error(err)
			}
			r.nothing()
		})
	}
}

func TestUnusableConfigurationIsNamed(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	r := start(t, nil)
	for name, tt := range map[string]struct {
		c    Config
		code int
		text string
	}{
		"no postoffice": {Config{PostOffice: "/nonexistent", Listen: []string{"127.0.0.1:0"}}, config.ExitConfig, "/nonexistent"},
		"no directory":  {Config{PostOffice: t.TempDir(), Listen: []string{"127.0.0.1:0"}}, config.ExitConfig, "zmctl init"},
		"busy address":  {Config{PostOffice: r.dir, Listen: []string{busy.Addr().String()}}, 1, "SMTPLISTEN"},
		"no address":    {Config{PostOffice: r.dir}, 1, "SMTPLISTEN"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Run(context.Background(), tt.c)
			if got := config.Exit(err); got != tt.code {
				t.Errorf("exit code %d, want %d", got, tt.code)
			}
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v does not say %s", err, tt.text)
			}
		})
	}
}
