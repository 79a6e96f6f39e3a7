package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// orderHead is what an order's file says before the messages.
type orderHead struct {
	ID       postoffice.OperationID `json:"order"`
	Time     time.Time          `json:"time"`
	Who      string             `json:"who"`
	Verb     string             `json:"verb"`
	Selector string             `json:"selector"`
	Reason   string             `json:"reason,omitempty"`
	Until    string             `json:"until,omitempty"`
	Flags    string             `json:"flags,omitempty"` // silent, report, failed, told
	Messages int                `json:"messages"`
	Undone   string             `json:"undone,omitempty"` // when, by whom
}

// head is the beginning of an act's order.
func (a *act) head() *orderHead {
	h := &orderHead{Time: a.now, Who: who(a.c.Context), Verb: a.v.name, Selector: a.sel.String(), Reason: a.c.String("reason")}
	if a.from != nil {
		h.Selector = a.from.String()
	}
	if !a.until.IsZero() {
		h.Until = a.until.Format(time.RFC3339)
	}
	var flags []string
	for _, name := range []string{"silent", "report", "failed", "told"} {
		if a.c.Bool(name) {
			flags = append(flags, name)
		}
	}
	h.Flags = strings.Join(flags, " ")
	return h
}

// bytes are the lines of the file, with the empty one behind them.
func (h *orderHead) bytes() []byte {
	var b bytes.Buffer
	for _, f := range [][2]string{{"time", h.Time.Format(time.RFC3339Nano)}, {"who", h.Who}, {"verb", h.Verb}, {"selector", h.Selector},
		{"reason", h.Reason}, {"until", h.Until}, {"flags", h.Flags}} {
		if f[1] != "" {
			fmt.Fprintf(&b, "%s %s\n", f[0], human.Clean(view.OneLine(f[1])))
		}
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// has tells whether a flag was given.
func (h *orderHead) has(flag string) bool { return slices.Contains(strings.Fields(h.Flags), flag) }

// readOrder reads an order's file, and calls fn with each spool ID in it.
func readOrder(po *postoffice.PostOffice, id postoffice.OperationID, fn func(id string) error) (*orderHead, error) {
	f, err := po.Operations.Open(id)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := &orderHead{ID: id, Time: id.Time(), Verb: id.Verb()}
	r := bufio.NewReader(f)
	body := false
	for {
		line, err := r.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return h, fmt.Errorf("read order %s: %w", id, err)
		}
		text, whole := strings.CutSuffix(line, "\n")
		key, value, _ := strings.Cut(text, " ")
		switch {
		case !whole || err != nil: // torn, or the end
			return h, nil
		case !body && text == "":
			body = true
		case !body:
			h.take(key, value)
		case key == "undone":
			h.Undone = value
		default:
			if _, err := postoffice.ParseSpoolID(key); err != nil {
				continue
			}
			h.Messages++
			if fn != nil {
				if err := fn(key); err != nil {
					return h, err
				}
			}
		}
	}
}

func (h *orderHead) take(key, value string) {
	switch key {
	case "time":
		if t, err := time.Parse(time.RFC3339, value); err == nil {
			h.Time = t
		}
	case "who":
		h.Who = value
	case "verb":
		h.Verb = value
	case "selector":
		h.Selector = value
	case "reason":
		h.Reason = value
	case "until":
		h.Until = value
	case "flags":
		h.Flags = value
	}
}

// verbOf is the verb of an order, nil if there is none of that name.
func verbOf(name string) *verb {
	for _, v := range append(verbs(), resubmitVerb(), discardVerb()) {
		if v.name == name {
			return v
		}
	}
	return nil
}

func ordersCommand() *cli.Command {
	return &cli.Command{
		Name:      "orders",
		Usage:     "list what was ordered about queued mail, and what zmctl undo takes back",
		UsageText: "zmctl orders [--json] [ORDER...]",
		Description: `Lists each use of hold, release, freeze, thaw, retry, flush, expire, remove and reroute, and
of zmctl resubmit, freezer and postman, the oldest first. With an order's name, the spool IDs
of its messages. Orders are files in orders/, and are dropped after REMOVEDKEEP.

    20261121-031502-hold-4711  12m ago by root  hold  312 messages
        host mx.example.com, "their disk is full"
    20261121-032001-hold-4790  7m ago by root  hold  1 message  undone
        id S10117782A2CnLkQ0vB8C

    zmctl orders 20261121-031502-hold-4711
    zmctl undo 20261121-031502-hold-4711`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each order"}},
		Action: runOrders,
	}
}

func runOrders(c *cli.Context) error {
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	out := newStream(c.App.Writer)
	if c.NArg() > 0 {
		var errs []error
		for _, arg := range c.Args().Slice() {
			id, ok := postoffice.ParseOperationID(arg)
			if !ok {
				return cli.Exit("zmctl orders "+arg+": no order is named so; zmctl orders lists them", config.ExitUsage)
			}
			_, err := readOrder(po, id, func(id string) error {
				_, err := fmt.Fprintln(out, id)
				return err
			})
			errs = append(errs, err)
		}
		return quiet(errors.Join(append(errs, out.flush())...))
	}
	list, err := po.Operations.List()
	errs := []error{err}
	now := time.Now()
	for _, id := range list {
		h, err := readOrder(po, id, nil)
		if errors.Is(err, postoffice.ErrGone) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if c.Bool("json") {
			errs = append(errs, jsonLines(out).Encode(h))
			continue
		}
		h.print(out, now)
	}
	if !c.Bool("json") {
		fmt.Fprintln(out, human.Count(len(list), "order"))
	}
	return quiet(errors.Join(append(errs, out.flush())...))
}

func (h *orderHead) print(w io.Writer, now time.Time) {
	p := term.For(w)
	text := h.Verb
	if h.Flags != "" {
		text += " " + h.Flags
	}
	if h.Until != "" {
		text += " until " + h.Until
	}
	text += "  " + human.Count(h.Messages, "message")
	switch v := verbOf(h.Verb); {
	case h.Undone != "":
		text += "  undone " + h.Undone
	case v == nil || v.undo == "":
		text += "  cannot be undone"
	}
	fmt.Fprintf(w, "%s  %s ago by %s  %s\n    %s", p.Bold(string(h.ID)), human.Span(now.Sub(h.Time)), h.Who, text, human.Cut(h.Selector, 300))
	if h.Reason != "" {
		fmt.Fprintf(w, ", %q", h.Reason)
	}
	fmt.Fprintln(w)
}
