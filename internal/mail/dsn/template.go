package dsn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode/utf8"
)

const (
	maxTemplate = 64 << 10 // of a text's file. Bytes
	maxRendered = 1 << 20  // of the result. Bytes
	maxNested   = 4        // ranges within ranges
)

// parseText reads a template and tries it.
func parseText(text string) (*template.Template, error) {
	switch {
	case len(text) > maxTemplate:
		return nil, &TextError{Reason: fmt.Sprintf("it is longer than %d bytes", maxTemplate)}
	case !utf8.ValidString(text):
		return nil, &TextError{Reason: "it is not UTF-8"}
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	first, rest, _ := strings.Cut(text, "\n")
	second, _, _ := strings.Cut(rest, "\n")
	if s, ok := strings.CutPrefix(first, "Subject:"); !ok || strings.TrimSpace(s) == "" {
		return nil, &TextError{1, "it must begin with a line \"Subject: ...\""}
	}
	if strings.TrimSpace(second) != "" {
		return nil, &TextError{2, "an empty line must follow the subject"}
	}
	tmpl, err := template.New("text").Option("missingkey=error").Parse(wholeLines(text))
	if err != nil {
		return nil, textError(err)
	}
	if len(tmpl.Templates()) > 1 {
		return nil, &TextError{Reason: "define and block are not allowed"}
	}
	c := checker{tree: tmpl.Tree}
	if err := c.list(tmpl.Root, 0); err != nil {
		return nil, err
	}
	for _, sample := range samples() {
		if _, err := render(tmpl, sample); err != nil {
			return nil, textError(err)
		}
	}
	return tmpl, nil
}

// wholeLines removes the line end behind actions that are alone on their line and
// print nothing, by moving it into the last one: line numbers stay.
func wholeLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if s := strings.TrimSpace(line); strings.HasSuffix(line, "\n") && silent(s) {
			b.WriteString(strings.TrimSuffix(s, "}}"))
			b.WriteString("\n}}")
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// silent reports whether a line has only actions that print nothing themselves.
func silent(s string) bool {
	if s == "" {
		return false
	}
	for s != "" {
		rest, ok := strings.CutPrefix(s, "{{")
		action, after, closed := strings.Cut(rest, "}}")
		word, _, _ := strings.Cut(strings.TrimSpace(action), " ")
		if !ok || !closed || !slices.Contains([]string{"if", "else", "end", "range", "with"}, word) {
			return false
		}
		s = strings.TrimSpace(after)
	}
	return true
}

// textError takes the line out of an error of text/template.
func textError(err error) error {
	if e := (*TextError)(nil); errors.As(err, &e) {
		return e
	}
	m := regexp.MustCompile(`(?s)^template: text:(\d+)(?::\d+)?: (.*)$`).FindStringSubmatch(err.Error())
	if m == nil {
		return &TextError{Reason: err.Error()}
	}
	line, _ := strconv.Atoi(m[1]) // digits alone
	return &TextError{line, strings.TrimPrefix(m[2], `executing "text" `)}
}

// checker refuses what could run for long: loops over anything but the report's
// recipients, and functions that make long strings.
type checker struct{ tree *parse.Tree }

func (c *checker) bad(n parse.Node, format string, args ...any) error {
	where, _ := c.tree.ErrorContext(n)
	line := 0
	if f := strings.Split(where, ":"); len(f) > 1 {
		line, _ = strconv.Atoi(f[1]) // 0 if the library has another format
	}
	return &TextError{line, fmt.Sprintf(format, args...)}
}

func (c *checker) list(l *parse.ListNode, depth int) error {
	if l == nil {
		return nil
	}
	for _, n := range l.Nodes {
		var err error
		switch n := n.(type) {
		case *parse.TextNode, *parse.CommentNode, *parse.BreakNode, *parse.ContinueNode:
		case *parse.ActionNode:
			err = c.pipe(n.Pipe)
		case *parse.IfNode:
			err = c.branch(&n.BranchNode, depth)
		case *parse.WithNode:
			err = c.branch(&n.BranchNode, depth)
		case *parse.RangeNode:
			if err = c.loop(n, depth); err == nil {
				err = c.branch(&n.BranchNode, depth+1)
			}
		default:
			err = c.bad(n, "%s is not allowed", n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) branch(n *parse.BranchNode, depth int) error {
	return errors.Join(c.pipe(n.Pipe), c.list(n.List, depth), c.list(n.ElseList, depth))
}

func (c *checker) loop(n *parse.RangeNode, depth int) error {
	var path []string
	if len(n.Pipe.Cmds) == 1 && len(n.Pipe.Cmds[0].Args) == 1 {
		switch arg := n.Pipe.Cmds[0].Args[0].(type) {
		case *parse.FieldNode:
			path = arg.Ident
		case *parse.VariableNode:
			path = arg.Ident
		}
	}
	if len(path) == 0 || !slices.Contains([]string{"Groups", "Recipients", "Said"}, path[len(path)-1]) {
		return c.bad(n, "range goes over .Groups, .Recipients or .Said alone")
	}
	if depth >= maxNested {
		return c.bad(n, "more than %d ranges within each other", maxNested)
	}
	return nil
}

func (c *checker) pipe(p *parse.PipeNode) error {
	if p == nil {
		return nil
	}
	for _, cmd := range p.Cmds {
		for _, arg := range cmd.Args {
			if err := c.argument(arg); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *checker) argument(n parse.Node) error {
	switch n := n.(type) {
	case *parse.IdentifierNode:
		if !slices.Contains([]string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len"}, n.Ident) {
			return c.bad(n, "%s is not allowed; there are and, or, not, eq, ne, lt, le, gt, ge, len", n.Ident)
		}
	case *parse.FieldNode:
		return c.names(n, n.Ident)
	case *parse.VariableNode:
		return c.names(n, n.Ident[1:])
	case *parse.ChainNode:
		return errors.Join(c.argument(n.Node), c.names(n, n.Field))
	case *parse.PipeNode:
		return c.pipe(n)
	}
	return nil
}

func (c *checker) names(n parse.Node, idents []string) error {
	for _, name := range idents {
		if !slices.Contains(names(), name) {
			return c.bad(n, ".%s is not known; there are %s", name, strings.Join(names(), ", "))
		}
	}
	return nil
}

// render runs a template. Its output is bounded.
func render(tmpl *template.Template, p *page) (string, error) {
	var b bytes.Buffer
	if err := tmpl.Execute(&bounded{&b, maxRendered}, p); err != nil {
		return "", err
	}
	return b.String(), nil
}

// bounded returns an error for a text that is too long.
type bounded struct {
	w    io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, &TextError{Reason: fmt.Sprintf("it makes more than %d bytes", maxRendered)}
	}
	return b.w.Write(p)
}
