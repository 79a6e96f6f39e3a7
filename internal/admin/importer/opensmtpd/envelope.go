package opensmtpd

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/admin/importer"
	ours "zmailer/internal/mail/envelope"
)

// envelope is what one file says: one recipient of a message.
type envelope struct {
	kind       string // mta, mda, bounce
	bounce     string // of a bounce: failed, delayed, delivered
	sender     string
	dest       string
	created    time.Time
	envID, ret string
	orcpt      string
	notify     int
	program    bool // the recipient's own program or file, from his .forward
}

// Flags of dsn-notify.
const (
	notifySuccess = 1 << iota
	notifyFailure
	notifyDelay
	notifyNever
)

// parseEnvelope reads "field: value" lines.
func parseEnvelope(text []byte) (*envelope, error) {
	f := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if !ok || strings.ContainsAny(name, "\x00\x1b") {
			return nil, errors.New("not plain text; encrypted queues are not supported")
		}
		f[strings.ToLower(strings.TrimSpace(name))] = strings.TrimSpace(value)
	}
	if f["version"] == "" {
		return nil, errors.New("truncated or not plain text; encrypted queues are not supported")
	}
	e := &envelope{kind: strings.ToLower(f["type"]), bounce: strings.ToLower(f["bounce-type"]), sender: mailbox(f["sender"]), dest: mailbox(f["dest"]),
		envID: f["dsn-envid"], ret: strings.ToUpper(f["dsn-ret"]), orcpt: f["dsn-orcpt"],
		program: f["mda-exec"] != "" || f["mda-buffer"] != ""}
	if e.dest == "" {
		return nil, errors.New("it has no recipient")
	}
	n, err := strconv.ParseInt(f["ctime"], 10, 64)
	const last = 1 << 40
	if err != nil || n < 0 || n > last {
		return nil, fmt.Errorf("its time is %.40q", f["ctime"])
	}
	e.created = time.Unix(n, 0)
	// Absent: nothing was asked for.
	e.notify, _ = strconv.Atoi(f["dsn-notify"])
	if e.ret != "FULL" && e.ret != "HDRS" {
		e.ret = ""
	}
	return e, nil
}

// mailbox returns an address; the null sender is written as "@".
func mailbox(s string) string {
	if s == "@" {
		return ""
	}
	return s
}

// group is a message's envelopes.
type group struct {
	list     []*envelope
	arrival  time.Time // the earliest
	failed   int       // recipients that had failed
	reports  int       // of delay or success, left out
	programs int
}

func (g *group) add(e *envelope) {
	if e.kind == "bounce" {
		if e.bounce != "failed" && e.bounce != "error" {
			g.reports++
			return
		}
		g.failed++
	}
	// A report is younger than its message; alone it has no other time.
	if g.arrival.IsZero() || e.created.Before(g.arrival) {
		g.arrival = e.created
	}
	if e.program {
		g.programs++
	}
	g.list = append(g.list, e)
}

// parts returns the recipients by sender and wishes about reports.
func (g *group) parts() []importer.Part {
	var parts []importer.Part
	for _, e := range g.list {
		envID := importer.EnvID(e.envID)
		i := slices.IndexFunc(parts, func(p importer.Part) bool { return p.Sender == e.sender && p.EnvID == envID && p.Ret == e.ret })
		if i < 0 {
			i = len(parts)
			parts = append(parts, importer.Part{Sender: e.sender, EnvID: envID, Ret: e.ret})
		}
		p := &parts[i]
		if slices.ContainsFunc(p.Recipients, func(r ours.Recipient) bool { return r.Address == e.dest }) {
			continue
		}
		w := importer.Wishes{Never: e.notify&notifyNever != 0, Success: e.notify&notifySuccess != 0,
			Failure: e.notify&notifyFailure != 0, Delay: e.notify&notifyDelay != 0}
		orcpt := mailbox(e.orcpt)
		if orcpt != "" && !strings.Contains(orcpt, ";") {
			orcpt = "rfc822;" + orcpt
		}
		p.Recipients = append(p.Recipients, ours.Recipient{Address: e.dest, DSN: w.DSN(orcpt)})
	}
	return parts
}

func (g *group) notes() []string {
	var notes []string
	say := func(n int, text string) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d", text, n))
		}
	}
	say(g.failed, "recipients that had failed without a report to the sender, and are tried again")
	say(g.reports, "reports of delay or success that were not sent yet, and are left out")
	say(g.programs, "recipients that are programs of .forward files; the users' .forward files are read again")
	return notes
}
