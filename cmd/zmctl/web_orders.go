package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/web/desk"
)

func webOrder(h *act.Operation) desk.Order {
	o := desk.Order{ID: string(h.ID), Time: h.Time, Who: human.Clean(h.Who), Verb: human.Clean(h.Verb), Selector: human.Clean(h.Selector), Reason: human.Clean(h.Reason),
		Until: human.Clean(h.Until), Flags: human.Clean(h.Flags), Messages: h.Messages, Undone: human.Clean(h.Undone)}
	if v := act.VerbOf(h.Verb); v != nil {
		o.Undo = v.Undo
	}
	return o
}

func (w *webSource) Orders(ctx context.Context, most int) ([]desk.Order, error) {
	ids, err := w.po.Operations.List()
	if err != nil {
		return nil, err
	}
	var list []desk.Order
	for _, id := range slices.Backward(ids) {
		if err := ctx.Err(); err != nil || len(list) == most {
			return list, err
		}
		h, err := act.ReadOperation(w.po, id, nil)
		if errors.Is(err, postoffice.ErrGone) {
			continue
		}
		if err != nil {
			return list, err
		}
		list = append(list, webOrder(h))
	}
	return list, nil
}

// webListed is how many messages of an order a page names.
const webListed = 200

func (w *webSource) Order(_ context.Context, id postoffice.OperationID) (*desk.Order, error) {
	var ids []string
	h, err := act.ReadOperation(w.po, id, func(id string) error {
		if len(ids) < webListed {
			ids = append(ids, id)
		}
		return nil
	})
	if errors.Is(err, postoffice.ErrGone) {
		return nil, fmt.Errorf("order %s: %w", id, desk.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	o := webOrder(h)
	o.IDs = ids
	return &o, nil
}

// webOrders gives orders by zmctl's own commands, one at a time.
type webOrders struct {
	args []string // that each command begins with
	mu   sync.Mutex
}

// call runs a command of zmctl in this process.
func (w *webOrders) call(ctx context.Context, who string, out io.Writer, args ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Nobody asks for it any more: who did was told so, and may have ordered it again.
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), desk.OrderTime)
	defer cancel()
	a := app()
	a.Writer, a.ErrWriter, a.Reader = out, io.Discard, strings.NewReader("")
	a.ExitErrHandler = func(*cli.Context, error) {}
	return a.RunContext(context.WithValue(ctx, person{}, who), slices.Concat(w.args, args))
}

// verbArguments are a command as zmctl takes it.
func verbArguments(c desk.Command, flags ...string) []string {
	args := append([]string{c.Verb}, flags...)
	for _, f := range [][2]string{{"where", c.Where}, {"reason", c.Reason}, {"until", c.Until}} {
		if f[1] != "" {
			args = append(args, "--"+f[0]+"="+f[1])
		}
	}
	if c.Silent {
		args = append(args, "--silent")
	}
	if c.Report {
		args = append(args, "--report")
	}
	return append(args, c.IDs...)
}

func (w *webOrders) Try(ctx context.Context, c desk.Command) (string, error) {
	var out bytes.Buffer
	err := w.call(ctx, "", &out, verbArguments(c, "--dry-run")...)
	return human.CleanLines(out.String()), err
}

func (w *webOrders) Give(ctx context.Context, who string, c desk.Command) (*desk.Given, error) {
	out := &givenReader{}
	err := w.call(ctx, who, out, verbArguments(c, "--yes", "--json")...)
	g := &out.given
	if out.more > 0 {
		g.Lines = append(g.Lines, "and "+human.Count(out.more, "more message"))
	}
	if err != nil {
		g.Error = human.Clean(err.Error())
	}
	return g, nil
}

func (w *webOrders) Undo(ctx context.Context, who string, id postoffice.OperationID) (string, error) {
	var out bytes.Buffer
	err := w.call(ctx, who, &out, "undo", string(id))
	return human.CleanLines(out.String()), err
}

// givenReader takes the lines of a verb's --json, and keeps the first of them.
type givenReader struct {
	given desk.Given
	more  int
	rest  []byte
}

func (g *givenReader) Write(b []byte) (int, error) {
	g.rest = append(g.rest, b...)
	for {
		line, rest, ok := bytes.Cut(g.rest, []byte{'\n'})
		if !ok {
			return len(b), nil
		}
		g.rest = rest
		var o act.Outcome
		if json.Unmarshal(line, &o) != nil {
			continue
		}
		if o.Order != "" {
			g.given.Order = o.Order
		}
		switch {
		case o.Text == "":
		case len(g.given.Lines) == webListed:
			g.more++
		default:
			g.given.Lines = append(g.given.Lines, o.ID+"  "+human.Clean(o.Text))
		}
	}
}
