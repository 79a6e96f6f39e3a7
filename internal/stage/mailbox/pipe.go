package mailbox

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
)

// Pipe is how programs are run (channel pipe).
type Pipe struct {
	// User runs the programs that root's files name, PIPEUSER; "": they are not run.
	User string
	// Nobody: programs of files that others may write are run, as nobody (PIPENOBODY).
	Nobody bool
	// Limit is how long a program may run before it is killed; 0: 15 minutes.
	Limit time.Duration
	// Head are the lines on top of what a program reads, of HeadLines.
	Head []string
}

// HeadLines returns the lines that can precede what a program reads.
func HeadLines() []string { return []string{"from", "return-path", "delivered-to"} }

const defaultPipeLimit = 15 * time.Minute

// isPipe reports whether a recipient is a program. ZMailer's router gives those to the
// channel local, as it does with files.
func isPipe(r *agent.Recipient) bool {
	return r.Channel == "pipe" || r.Channel == "local" && strings.HasPrefix(r.Host, "pipe.") && !strings.Contains(r.Host, "@")
}

// toPipe gives the message to a program on its standard input.
func (m *Mailbox) toPipe(d *agent.Delivery, r *agent.Recipient) agent.Result {
	a, err := m.runsAs(r)
	if err != nil {
		return m.result(d, r, err)
	}
	command, ok := strings.CutPrefix(r.Address, "|")
	if command = strings.TrimSpace(command); !ok || command == "" || strings.ContainsRune(command, 0) {
		return m.result(d, r, &fault{code: status.BadAddress, text: "not a bar and a program"})
	}
	// No look for loops as at a mailbox: the address before the alias is not known apart
	// from the client's ORCPT, which may be a foreign one that the mail came from.
	p := program{command: command, dir: workingDir(a.home), limit: m.c.Pipe.Limit, env: environment(a, r, d.ID().String())}
	if m.creds.root {
		p.as = &identity{uid: a.uid, gid: a.gid}
	}
	l := message{delivery: d, recipient: r, all: []*agent.Recipient{r}, now: m.c.Now(), creds: m.creds, top: m.pipeHead(r)}
	if r.Sent != nil {
		// It is unknown whether an agent that died has run the program.
		if err := d.InDoubt(r); err != nil {
			return m.result(d, r, err)
		}
	}
	in, err := inputFile(filepath.Join(m.c.PostOffice, "transport"), l.write)
	if err != nil {
		return m.result(d, r, err)
	}
	defer func() { _ = in.Close() }() // it was only read
	// Crash: before the program starts, or while it runs; what it has done is unknown,
	// and it is run again.
	if err := l.sent(); err != nil {
		return m.result(d, r, err)
	}
	e, err := p.run(in)
	if err != nil {
		return m.result(d, r, err)
	}
	res := e.result()
	if res.Outcome == status.Deferred {
		m.c.Log.Warn("local-trouble", "id", d.ID(), "rcpt", r.Address, "channel", r.Channel, "status", res.Code, "reason", res.Reply)
	}
	return res
}

// runsAs returns the account that a recipient's program runs as: the owner of the file that
// names it (M48). Never root's, and that of the user nobody only if PIPENOBODY is set.
func (m *Mailbox) runsAs(r *agent.Recipient) (account, error) {
	uid := privilege(r.Privilege)
	refuse := func(text string) (account, error) {
		return account{}, &fault{code: configTrouble, text: "the program is not run: " + text}
	}
	gid, err := m.users.group(uid)
	if err != nil {
		return account{}, err
	}
	a := account{uid: uid, gid: gid}
	if uid == 0 {
		if m.c.Pipe.User == "" {
			return refuse("a file of root names it; set PIPEUSER in zmailer.conf to the user that is to run such programs")
		}
		u, err := user.Lookup(m.c.Pipe.User)
		if err != nil {
			return refuse(fmt.Sprintf("PIPEUSER in zmailer.conf cannot be looked up: %v", err))
		}
		if a.uid, a.gid, err = ids(u); err != nil || a.uid == 0 {
			return refuse("PIPEUSER in zmailer.conf is root")
		}
	}
	if uid == nobody && !m.c.Pipe.Nobody {
		return refuse("the file that names it may be written by other users, or is owned by the user nobody; chmod go-w it and zmctl reroute the message, or set PIPENOBODY=yes in zmailer.conf")
	}
	if !m.creds.root && a.uid != os.Geteuid() {
		return refuse(fmt.Sprintf("uid %d is to run it, and the agent, uid %d, is not root's", a.uid, os.Geteuid()))
	}
	a.login, a.home = strconv.Itoa(a.uid), "/"
	u, err := m.users.byID(a.uid)
	if err != nil {
		return account{}, err
	}
	if u != nil {
		a.login, a.home = u.Username, u.HomeDir
	}
	return a, nil
}

func ids(u *user.User) (uid, gid int, err error) {
	if uid, err = strconv.Atoi(u.Uid); err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	return uid, gid, err
}

// workingDir returns where a program runs: its user's home if there is one.
func workingDir(home string) string {
	if info, err := os.Stat(home); home == "" || err == nil && !info.IsDir() || os.IsNotExist(err) {
		return "/"
	}
	return home
}

// pipeHead returns the lines on top of what a program reads.
func (m *Mailbox) pipeHead(r *agent.Recipient) []byte {
	sender, original := sender(r), original(r)
	var b []byte
	for _, line := range m.c.Pipe.Head {
		switch line {
		case "from":
			from := sender
			if from == "" {
				from = "MAILER-DAEMON"
			}
			b = fmt.Appendf(b, "From %s %s\n", strings.ReplaceAll(from, " ", "-"), m.c.Now().Format(time.ANSIC))
		case "return-path":
			b = fmt.Appendf(b, "Return-Path: <%s>\n", sender)
		case "delivered-to":
			if original != "" {
				b = fmt.Appendf(b, "Delivered-To: %s\n", original)
			}
		}
	}
	return b
}

// sender returns the envelope's sender as this recipient's report goes to; "": none.
func sender(r *agent.Recipient) string {
	s := r.Group.Sender
	s.Address = s.For(r.Address)
	return senderAddress(s)
}

// original returns the address that the message was sent to, before an alias led to the
// program; "" if that is not known.
func original(r *agent.Recipient) string {
	kind, text, ok := strings.Cut(r.Param("ORCPT"), ";")
	if !ok || !strings.EqualFold(kind, "rfc822") {
		return "" // RFC 6533 §3: \x{HEX} says more than a shell should read
	}
	s, err := address.DecodeXText(text)
	if err != nil || strings.ContainsAny(s, "\r\n\x00") {
		return ""
	}
	return s
}

// searchPath is where programs are looked for.
const searchPath = "/usr/local/bin:/usr/bin:/bin"

// environment returns all that a program gets besides the message. What others have chosen
// is made harmless for a shell that reads it without quotes.
func environment(a account, r *agent.Recipient, id string) []string {
	to := original(r)
	local, domain := to, ""
	if i := strings.LastIndexByte(to, '@'); i >= 0 {
		local, domain = to[:i], to[i+1:]
	}
	_, extension, _ := strings.Cut(local, "+")
	return []string{
		"PATH=" + searchPath, "SHELL=/bin/sh", "HOME=" + a.home, "USER=" + a.login, "LOGNAME=" + a.login,
		"SENDER=" + harmless(sender(r)), "RECIPIENT=" + harmless(to), "LOCAL=" + harmless(local),
		"DOMAIN=" + harmless(domain), "EXTENSION=" + harmless(extension), "SPOOLID=" + id,
	}
}

// harmless has _ for every byte that means something to a shell, and for the hyphen of what would be
// an option of the program that the shell gives it to.
func harmless(s string) string {
	if strings.HasPrefix(s, "-") {
		s = "_" + s[1:]
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f || strings.ContainsRune("\"'`$\\;&|<>(){}[]*?~#!^", r) {
			return '_'
		}
		return r
	}, s)
}
