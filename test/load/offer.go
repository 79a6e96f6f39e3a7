package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zmailer/test/peer"
)

// patience bounds one try to submit.
const patience = 60 * time.Second

// sender is whom failures are reported to, a local user.
const sender = "bob@mta.example"

// The first words of addresses to which a mixed message goes as well.
const (
	mixedLater = "mixed-later"
	mixedFail  = "mixed-fail"
)

// The first words of addresses to which a long message goes as well.
const (
	longSecond = "long-second"
	longThird  = "long-third"
)

// from returns a kind's sender.
func from(kind Kind, round int) string {
	switch kind {
	case Null:
		return ""
	case Held:
		return heldSender
	case Greylisted:
		return strayName(round) + "@" + strayDomain
	}
	return sender
}

// client returns the address that a kind comes from by SMTP, "" for any.
func client(kind Kind) string {
	if kind == Greylisted {
		return "127.0.0.7"
	}
	return ""
}

// recipients returns all that a message goes to.
func recipients(kind Kind, token string) []string {
	list := []string{recipient(kind, token)}
	switch kind {
	case Long:
		list = append(list, longSecond+"."+token+"@sink.example", longThird+"."+token+"@sink.example")
	case Mixed:
		list = append(list, mixedLater+"."+token+"@sink.example", mixedFail+"."+token+"@sink.example")
	}
	return list
}

// recipient returns where a message of a kind goes.
func recipient(kind Kind, token string) string {
	switch kind {
	case Local, Greylisted:
		return "alice@mta.example"
	case Mbox:
		return "box@mta.example"
	case Three:
		return "three@mta.example"
	case Verified:
		return string(kind) + "." + token + "@" + askedDomain
	case NoUser:
		return "nouser." + token + "@mta.example"
	}
	return string(kind) + "." + token + "@sink.example"
}

// message returns the text with LF line ends; its last line shows that it is complete.
func (l *Load) message(kind Kind, token string) string {
	var b strings.Builder
	b.WriteString("From: " + sender + "\nSubject: " + string(kind) + "\nX-Load: " + token + "\n")
	line := strings.Repeat("x", 71) + "\n"
	for n := l.pad(token); n > 0; n -= len(line) {
		b.WriteString("X-Pad: " + line[:min(n, len(line)-1)] + "\n")
	}
	b.WriteString("\n" + l.body(token))
	return b.String()
}

// body is that of a message, with LF line ends. Each line is of this message alone and
// different from the others, so that what a disk mixes up is found.
func (l *Load) body(token string) string {
	var b strings.Builder
	b.WriteString(".dot\nFrom here\n")
	for n := 1; b.Len() < max(l.Size, 300); n++ {
		fmt.Fprintf(&b, "%s %06d %s\n", token, n, strings.Repeat("x", 56))
	}
	b.WriteString("end " + token + "\n")
	return b.String()
}

// pad returns how many bytes a message's header is made longer.
func (l *Load) pad(token string) int {
	if l.Pad == 0 {
		return 0
	}
	n, _ := strconv.Atoi(strings.Trim(token, "t"))
	return n * 97 % l.Pad
}

// bySMTP offers a message to smtpserver.
func (l *Load) bySMTP(ctx context.Context, kind Kind, round int, token string) (Fate, string, time.Time) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	wire := strings.ReplaceAll(strings.ReplaceAll(l.message(kind, token), "\n", "\r\n"), "\n.", "\n..")
	said, heard := "", time.Time{}
	src := peer.Source{
		Addr: l.Suite.SMTPAddr, Connections: 1, Messages: 1, From: from(kind, round), Local: client(kind),
		To:         func(int) string { return recipient(kind, token) },
		Body:       func(int) []byte { return []byte(wire) },
		OnAccepted: func(_ int, reply string, _ time.Time) { said, heard = reply, time.Now() },
	}
	err := src.Run(ctx)
	if said != "" {
		return Accepted, said, heard
	}
	heard = time.Now()
	if err == nil {
		return Unsure, "nothing was said", heard
	}
	// The source quotes a reply that it does not want.
	_, reply, replied := strings.Cut(err.Error(), `got "`)
	switch {
	case replied && strings.HasPrefix(reply, "4"):
		return Refused, reply, heard
	case replied:
		return Denied, reply, heard
	}
	return Unsure, err.Error(), heard
}

// bySubmit offers a message to submit.
func (l *Load) bySubmit(ctx context.Context, kind Kind, by string, round int, token string) (Fate, string) {
	cmd := l.Suite.Command("submit", append([]string{"-i", "--id", "-f", "<" + from(kind, round) + ">"}, recipients(kind, token)...)...)
	cmd.Stdin = strings.NewReader(l.message(kind, token))
	if by == ByUser && os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	start := cmd.Start
	if l.StartSubmit != nil {
		start = func() error { return l.StartSubmit(cmd) }
	}
	if err := start(); err != nil {
		return Refused, err.Error()
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	err := cmd.Wait()
	if cmd.ProcessState == nil {
		return Unsure, err.Error()
	}
	switch code := cmd.ProcessState.ExitCode(); code {
	case 0:
		return Accepted, out.String()
	case 75:
		return Refused, out.String()
	case -1: // by a signal
		return Unsure, cmd.ProcessState.String()
	default:
		exit := (*exec.ExitError)(nil)
		if errors.As(err, &exit) {
			return Denied, exit.Error() + ": " + out.String()
		}
		return Unsure, out.String()
	}
}
