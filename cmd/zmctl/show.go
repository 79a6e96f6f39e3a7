package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/workspec"
)

func showCommand() *cli.Command {
	return &cli.Command{
		Name:      "show",
		Usage:     "tell everything about a message",
		UsageText: "zmctl show [--json] ID...",
		Description: `Shows the files of a message, its envelope and work specification as they stand, its
history, each recipient, and in plain words what happens next. ID is a spool ID as
zmctl queue and the logs have it.

    zmctl show S10117782A2CnLkQ0vB8C

An inode number is used again for other messages; the ID also holds the time of the
last write, so a message that is gone is told from one that took its number.

Exit codes: 0 told, 1 there is no such message, 64 bad arguments.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each message"}},
		Action: runShow,
	}
}

func runShow(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.Exit("zmctl show needs a spool ID; zmctl queue shows them", config.ExitUsage)
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	var ids []postoffice.SpoolID
	for _, arg := range c.Args().Slice() {
		id, err := postoffice.ParseSpoolID(arg)
		if err != nil {
			return cli.Exit(err, config.ExitUsage)
		}
		ids = append(ids, id)
	}
	var errs []error
	for i, id := range ids {
		s := newSpool(po, time.Now()).by(settings)
		m, err := s.shown(id)
		errs = append(errs, err)
		switch {
		case m == nil:
		case c.Bool("json"):
			errs = append(errs, jsonLines(c.App.Writer).Encode(s.everything(m)))
		default:
			if i > 0 {
				fmt.Fprintln(c.App.Writer)
			}
			s.showMessage(c.App.Writer, m)
		}
	}
	return errors.Join(errs...)
}

// shown finds a message to show.
func (s *spool) shown(id postoffice.SpoolID) (*message, error) {
	m, err := s.locate("show", id)
	if m == nil && err == nil {
		err = fmt.Errorf("show %s: no file of that message is here; it was delivered, reported or removed", id)
	}
	return m, err
}

// showMessage tells everything about a message.
func (s *spool) showMessage(w io.Writer, m *message) {
	// Trouble of the writer is met when it is flushed, or by the next command.
	_ = m.print(w, s.now)
	s.showFiles(w, m)
	s.showReasons(w, m)
	s.showEnvelope(w, m)
	if m.raw != nil {
		section(w, "work specification")
		for _, line := range textLines(m.raw) {
			fmt.Fprintln(w, "  "+line)
		}
	}
	showHistory(w, m)
	section(w, "what happens next")
	p := term.For(w)
	for i, line := range s.next(m) {
		if i == 0 {
			line = m.painted(p, line)
		}
		fmt.Fprintln(w, "  "+line)
	}
}

// showReasons prints why a message was put aside, each time.
func (s *spool) showReasons(w io.Writer, m *message) {
	if m.message.Dir == "" {
		return
	}
	list, err := s.po.Reasons(m.id)
	if len(list) == 0 && err == nil {
		return
	}
	section(w, "why it was put aside")
	for i := range list {
		fmt.Fprintf(w, "  %s  %s\n", list[i].Time.Local().Format(human.TimeFormat), reasonWords(&list[i]))
	}
	if err != nil {
		fmt.Fprintln(w, "  "+human.Clean(err.Error()))
	}
}

// reasonWords tells a line of reason.I.
func reasonWords(r *postoffice.Reason) string {
	text := human.Clean(r.What) + " by " + human.Clean(r.Who)
	if r.Text != "" {
		text += ": " + human.Clean(r.Text)
	}
	return text
}

func section(w io.Writer, title string) { fmt.Fprintf(w, "\n%s\n", term.For(w).Bold(title)) }

func (s *spool) showFiles(w io.Writer, m *message) {
	section(w, "files")
	for _, name := range m.Files {
		info, err := s.fs.Stat(name)
		if err != nil {
			fmt.Fprintf(w, "  %s  gone meanwhile\n", name)
			continue
		}
		fmt.Fprintf(w, "  %s  %d bytes, %v, uid %d, written %s\n", name, info.Size, lsMode(info.Mode), info.UID, info.ModTime.Format(human.TimeFormat))
	}
}

// maxShown bounds what is read of a message file to show its envelope. Bytes.
const maxShown = 1 << 20

// showEnvelope prints the envelope lines as they stand in the file.
func (s *spool) showEnvelope(w io.Writer, m *message) {
	if m.message.Dir == "" {
		return
	}
	section(w, "envelope")
	list, err := s.envelopeLines(m)
	if err != nil {
		fmt.Fprintln(w, "  "+human.Clean(err.Error()))
	}
	for _, line := range list {
		fmt.Fprintln(w, "  "+line)
	}
}

// envelopeLines are the envelope lines as they stand in the file, also of one that cannot
// be used.
func (s *spool) envelopeLines(m *message) ([]string, error) {
	h, err := s.fs.Open(m.message.path(), os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	head, err := envelope.Read(h)
	end := int64(maxShown)
	if err != nil {
		err = errors.New("BROKEN: " + err.Error())
	} else {
		end = head.HeaderOffset
	}
	b := make([]byte, min(end, maxShown))
	n, rerr := h.ReadAt(b, 0)
	if rerr != nil && !errors.Is(rerr, io.EOF) {
		return nil, errors.Join(err, rerr)
	}
	return textLines(b[:n]), err
}

// textLines are the lines of a file, fit for a terminal.
func textLines(b []byte) []string {
	var list []string
	for line := range bytes.Lines(b) {
		list = append(list, human.Clean(strings.TrimSuffix(string(line), "\n")))
	}
	return list
}

// showHistory prints events and diagnostics with their time and recipient in words.
func showHistory(w io.Writer, m *message) {
	if m.parsed == nil || len(m.parsed.History)+len(m.parsed.Diagnostics) == 0 {
		return
	}
	before := attempts{}
	address := map[int64]string{}
	for gi := range m.parsed.Groups {
		for ri := range m.parsed.Groups[gi].Recipients {
			r := &m.parsed.Groups[gi].Recipients[ri]
			address[r.Offset] = "<" + human.Clean(r.Address) + ">"
		}
	}
	section(w, "history")
	p := term.For(w)
	fmt.Fprintf(w, "  %s  accepted\n", m.Since.Format(human.TimeFormat))
	for i := range m.parsed.History {
		e := &m.parsed.History[i]
		var attrs strings.Builder
		for _, a := range e.Attrs {
			attrs.WriteString(" " + a.Key + "=" + a.Value)
		}
		name := address[e.Recipient]
		if e.Event == workspec.EventDeferred && name == "" {
			var names []string
			for r := range m.parsed.About(e) {
				names = append(names, human.Clean(r.Address))
			}
			name = named(names)
		}
		fmt.Fprintf(w, "  %s  %s %s%s %s%s\n", e.Time.Format(human.TimeFormat), p.State(e.Event, human.Clean(e.Event)), name,
			human.Clean(attrs.String()), human.Clean(oneLine(e.Text)), before.leftOut(m.parsed, e))
	}
	for i := range m.parsed.Diagnostics {
		d := &m.parsed.Diagnostics[i]
		told := "report is owed"
		if d.Reported {
			told = "reported"
		}
		fmt.Fprintf(w, "  %s  %s %s %s, %s: %s\n", d.Time.Format(human.TimeFormat), p.State(d.Notary.Action, human.Clean(d.Notary.Action)), address[d.Of],
			human.Clean(d.Notary.Status), told, human.Clean(answerOf(d)))
	}
}

// lsMode is a regular file's mode as ls(1) prints it: the sticky bit, which a daemon's
// message has, is a T at the end, or a t where others may execute the file.
func lsMode(m fs.FileMode) string {
	text := []byte("-" + m.Perm().String()[1:])
	if m&fs.ModeSticky != 0 {
		last := &text[len(text)-1]
		if *last == 'x' {
			*last = 't'
		} else {
			*last = 'T'
		}
	}
	return string(text)
}
