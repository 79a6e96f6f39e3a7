package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/selector"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/workspec"
)

func removedCommand() *cli.Command {
	return &cli.Command{
		Name:      "removed",
		Usage:     "list what zmctl remove took out and zmctl undo can put back",
		UsageText: "zmctl removed [--json]",
		Description: `Lists the messages in removed/ and those in the queue of which recipients were removed,
the oldest removal first, with the recipients that undo would put back.

    S10117782A2CnLkQ0vB8C  removed 12m ago, dropped in 2d23h  4.1k  <sender@client.example.net>
        <ok@c.example.com>`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print a JSON array"}},
		Action: runRemoved,
	}
}

// removedEntry is one message of which something was removed.
type removedEntry struct {
	ID         string     `json:"id"`
	Removed    time.Time  `json:"removed"`
	Until      *time.Time `json:"until,omitempty"` // when it is dropped; nil: not yet in removed/, or never
	From       string     `json:"from"`            // directory that undo puts it back to
	Files      []string   `json:"files"`
	Size       int64      `json:"size"`
	Sender     string     `json:"sender"`
	Recipients []string   `json:"recipients"` // that undo puts back

	message *message
}

func runRemoved(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := newSpool(po, time.Now())
	list, err := s.removedEntries(c.Context, keep)
	if c.Bool("json") {
		return errors.Join(err, printJSON(c.App.Writer, list))
	}
	for _, r := range list {
		when := "removed " + human.Span(s.now.Sub(r.Removed)) + " ago"
		switch {
		case r.Until != nil:
			when += ", dropped in " + human.Span(r.Until.Sub(s.now))
		case r.From == postoffice.Queue && len(r.Files) > 0:
			when += ", still in the queue"
		}
		fmt.Fprintf(c.App.Writer, "%s  %s  %s  %s\n    %s\n", term.For(c.App.Writer).Bold(r.ID), when, human.Size(r.Size), r.message.sender(), brackets(r.Recipients))
	}
	_, perr := fmt.Fprintln(c.App.Writer, human.Count(len(list), "message"))
	return errors.Join(err, perr)
}

// removedEntries lists removed/ and what is removed in the queue.
func (s *spool) removedEntries(ctx context.Context, keep time.Duration) ([]removedEntry, error) {
	list := []removedEntry{}
	away, err := s.po.ListRemoved()
	errs := []error{err}
	for i := range away {
		r, err := s.shelved(&away[i], keep)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, r)
	}
	taken, err := selector.Column("state", removed)
	errs = append(errs, err)
	_, err = s.each(ctx, taken, func(m *message) error {
		if m.parsed == nil || m.ID == "" {
			return nil // gone meanwhile, or zmctl check tells
		}
		r := removedEntry{From: postoffice.Queue, Files: m.Files}
		if r.fill(m); len(r.Recipients) > 0 {
			r.Removed = m.parsed.Removal().Time
			list = append(list, r)
		}
		return nil
	})
	errs = append(errs, err)
	slices.SortStableFunc(list, func(a, b removedEntry) int { return a.Removed.Compare(b.Removed) })
	return list, errors.Join(errs...)
}

// shelved reads an entry of removed/.
func (s *spool) shelved(m *postoffice.RemovedMessage, keep time.Duration) (removedEntry, error) {
	r := removedEntry{Removed: m.Since, From: m.From}
	f := file{Dir: postoffice.Removed, Name: m.Name, Info: m.Info}
	if keep > 0 {
		until := m.Since.Add(keep)
		r.Until = &until
	}
	if m.Spec == "" {
		head, err := s.loadFile(f, m.From)
		if err != nil {
			return r, err
		}
		r.fill(head)
		for i := range head.Recipients {
			r.Recipients = append(r.Recipients, head.Recipients[i].Address)
		}
		return r, nil
	}
	spec, err := s.stat(postoffice.Removed, m.Spec)
	if err != nil {
		return r, err
	}
	out := &message{State: m.From, Name: m.Name, Files: []string{f.path(), spec.path()}, spec: spec}
	out.setMessage(s, f)
	if err := s.readSpec(out); err != nil {
		return r, err
	}
	r.fill(out)
	return r, nil
}

// fill takes what a message says of itself, and of a routed one the recipients that
// undo opens again.
func (r *removedEntry) fill(m *message) {
	r.message = m
	r.ID, r.Size, r.Sender, r.Files = m.ID, m.Size, m.Sender, m.Files
	if m.parsed == nil {
		return
	}
	removal := m.parsed.Removal()
	for gi := range m.parsed.Groups {
		for ri := range m.parsed.Groups[gi].Recipients {
			rcpt := &m.parsed.Groups[gi].Recipients[ri]
			if removal.Removed(rcpt) || m.spec.Dir == postoffice.Removed && removal.Tag(rcpt) == workspec.TagToDo {
				r.Recipients = append(r.Recipients, human.Clean(rcpt.Address))
			}
		}
	}
}

// removedByID is a message in removed/, nil if there is none of that ID.
func (s *spool) removedByID(id postoffice.SpoolID) *message {
	// What can be looked at is; zmctl removed tells the trouble.
	found, err := s.po.FindRemoved(id)
	if err != nil || found == nil {
		return nil
	}
	r, err := s.shelved(found, 0)
	if err != nil {
		return nil
	}
	r.message.State, r.message.Why = stateRemoved, found.From
	return r.message
}
