package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/router"
)

// shown is how many steps and targets of a recipient are told without --all.
const shown = 50

// Exit codes of --route, beside those of configuration.
const (
	exitNotAll = 1  // some recipient is not delivered by what there is
	exitLater  = 75 // nobody knows now
)

func routeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "route", Usage: "tell how the addresses, or a message's, would be routed, and exit; nothing is changed"},
		&cli.StringFlag{Name: "from", Usage: "with --route: the message comes from outside, with the sender `ADDRESS`"},
		&cli.StringFlag{Name: "message", Usage: "with --route: it is the one in `FILE`, with envelope lines or without; - for standard input"},
		&cli.BoolFlag{Name: "stdin", Usage: "with --route --json: read paths of message files below the postoffice, answer each with a line"},
		&cli.BoolFlag{Name: "json", Usage: "with --route: print JSON, a line for each message (docs/route.md)"},
		&cli.BoolFlag{Name: "all", Usage: "with --route: print everything of large lists"},
	}
}

// route answers what is asked on the command line.
func route(c *cli.Context, settings *config.Config, cfg router.Config) error {
	x, err := router.NewExplainer(cfg)
	if err != nil {
		return err
	}
	defer x.Close()
	if c.Bool("stdin") {
		if c.NArg() > 0 || c.IsSet("from") || c.IsSet("message") || !c.Bool("json") {
			return cli.Exit("--stdin goes with --json, and without addresses, --from and --message", config.ExitUsage)
		}
		return routeFiles(c, x, cfg.PostOffice)
	}
	questions, err := asked(c)
	if err != nil {
		return err
	}
	clauses := newClauses(c.Context, settings, c.App.ErrWriter)
	defer clauses.close()
	worst := 0
	answers := lines(c.App.Writer)
	var last []router.ExplainedStep
	for _, q := range questions {
		e := x.Explain(c.Context, q)
		e.Serve(clauses.ask)
		if c.Bool("json") {
			err = answers.Encode(e)
		} else {
			if slices.Equal(e.Steps, last) {
				e.Steps = nil // said above
			} else {
				last = e.Steps
			}
			err = e.Print(c.App.Writer)
		}
		if err != nil {
			return fmt.Errorf("print the route: %w", err)
		}
		worst = max(worst, exitOf(e))
	}
	if worst > 0 {
		return cli.Exit("", worst)
	}
	return nil
}

// asked makes questions of the command line: one for each address, or one for the
// message.
func asked(c *cli.Context) ([]router.Question, error) {
	q := router.Question{Steps: true, Most: shown}
	if c.Bool("all") {
		q.Most = 0
	}
	if c.IsSet("from") {
		from := c.String("from")
		q.From = &from
	}
	if name := c.String("message"); name != "" {
		m, err := messageFile(name)
		if err != nil {
			return nil, err
		}
		q.Message = m
	}
	if c.NArg() == 0 {
		if q.Message == nil {
			return nil, cli.Exit("--route: name addresses, or a message with --message", config.ExitUsage)
		}
		return []router.Question{q}, nil
	}
	var list []router.Question
	for _, to := range c.Args().Slice() {
		q.To = []string{to}
		list = append(list, q)
	}
	return list, nil
}

// messageFile opens what --message names.
func messageFile(name string) (*router.SpoolFile, error) {
	if name == "-" {
		return router.ReadMessage(os.Stdin)
	}
	path, err := filepath.EvalSymlinks(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("--message: %w", err)
	}
	dir, err := router.OpenMessages("/")
	if err != nil {
		return nil, err
	}
	m, err := dir.Message(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--message: %w", err), dir.Close())
	}
	m.Name = name
	return m, nil
}

// routeFiles answers each line of standard input.
func routeFiles(c *cli.Context, x *router.Explainer, postoffice string) error {
	dir, err := router.OpenMessages(postoffice)
	if err != nil {
		return &config.Error{File: postoffice, Reason: "POSTOFFICE cannot be used", Err: err}
	}
	defer dir.Close()
	in, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(c.App.Writer)
	answer := lines(out)
	for in.Scan() {
		err := answer.Encode(x.ExplainFile(c.Context, dir, in.Text()))
		if err == nil {
			err = out.Flush()
		}
		if err != nil {
			return fmt.Errorf("print the route: %w", err)
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read paths: %w", err)
	}
	return nil
}

// lines prints JSON, a line each, with < and > as they are.
func lines(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e
}

func exitOf(e *router.Explanation) int {
	switch e.Verdict {
	case router.VerdictDeferred:
		return exitLater
	case router.VerdictRouted:
		if e.Whole() {
			return 0
		}
	}
	return exitNotAll
}
