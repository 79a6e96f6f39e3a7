package table

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"zmailer/internal/run/config"
)

// patterns is a table of regular expressions, in the form of Postfix's regexp_table(5) and
// in RE2's syntax, in which the time for a key grows with its length and not faster.
type patterns struct {
	source string
	file   *config.File[[]pattern]
}

// pattern is a line of it.
type pattern struct {
	line   int
	expr   *regexp.Regexp
	not    bool    // it is met by keys that expr does not match
	result []piece // nil: an if
	inside int     // of an if: how many lines are between it and its endif
}

// piece is a piece of a result: text, or what a group of the pattern matched.
type piece struct {
	text  string
	group int // 0: text
}

// Limits of a table of patterns.
const (
	maxPatterns   = 10000
	maxPatternKey = 4096 // bytes of a key; what is longer is no address
)

func openPatterns(s Source, o Options) (Table, error) {
	file, err := config.OpenFile(s.Rest, parsePatterns, config.FileOptions{Required: true, Keeper: o.Keeper, Now: o.Now, Log: o.Log})
	if err != nil {
		return nil, err
	}
	return &patterns{source: s.Scheme + ":" + s.Rest, file: file}, nil
}

// Lookup returns the result of the first line that matches. Keys that stand for more than
// one address, such as @domain and .domain and those with the context of Part, are not looked up
// in patterns.
func (p *patterns) Lookup(ctx context.Context, key string) (Value, bool, error) {
	if key == "" || len(key) > maxPatternKey || key[0] == '@' || key[0] == '.' || ctx.Value(partKey{}) != nil {
		return Value{}, false, nil
	}
	lines := p.file.Current()
	for i := 0; i < len(lines); i++ {
		l := &lines[i]
		groups := l.expr.FindStringSubmatch(key)
		met := (groups != nil) != l.not
		switch {
		case l.result == nil && !met:
			i += l.inside
		case l.result != nil && met:
			if text, ok := fillResult(l.result, groups); ok {
				return Value{text, Nobody, fmt.Sprintf("%s:%d", p.source, l.line)}, true, nil
			}
		}
	}
	return Value{}, false, nil
}

// partKey is the key of Part.
type partKey struct{}

// Part returns the context for a key that is a part of what is looked up: the domain of an
// address, a domain above that, a network. Expressions are compared with the whole alone, as in
// regexp_table(5): "!/@example\.org$/" would be met by the domain of each address there.
func Part(ctx context.Context) context.Context { return context.WithValue(ctx, partKey{}, true) }

// Close does nothing.
func (p *patterns) Close() error { return nil }

// fillResult returns a result with its groups filled in; false if what one of them matched
// would be more than a part of an address there: a comma and a second address, a program,
// the name of a file.
func fillResult(result []piece, groups []string) (string, bool) {
	var b strings.Builder
	for _, p := range result {
		if p.group == 0 {
			b.WriteString(p.text)
			continue
		}
		for _, r := range groups[p.group] {
			if r < 0x80 && !isWordByte(byte(r)) && !strings.ContainsRune(".-+=@", r) || r == 0xfffd {
				return "", false
			}
		}
		b.WriteString(groups[p.group])
	}
	return b.String(), true
}

func isWordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

// parsePatterns reads the lines of a table of patterns:
//
//	/PATTERN/FLAGS RESULT, !/PATTERN/FLAGS RESULT, if /PATTERN/FLAGS, endif
func parsePatterns(name string, text []byte) ([]pattern, error) {
	var list []pattern
	var open []int // ifs without their endif yet
	var errs []error
	for _, l := range joinLines(string(text)) {
		bad := func(format string, args ...any) {
			errs = append(errs, &config.Error{File: name, Line: l.number, Reason: fmt.Sprintf(format, args...)})
		}
		if l.text == "endif" {
			if len(open) == 0 {
				bad("endif without an if")
				continue
			}
			begin := open[len(open)-1]
			list[begin].inside, open = len(list)-1-begin, open[:len(open)-1]
			continue
		}
		rest, condition := strings.CutPrefix(l.text, "if ")
		rest = strings.TrimSpace(rest)
		p, result, err := parsePattern(rest)
		if err != nil {
			bad("%v", err)
			continue
		}
		p.line = l.number
		switch {
		case condition && result != "":
			bad("text behind the pattern of an if: %q", result)
			continue
		case condition:
			open = append(open, len(list))
		case result == "":
			bad("no result behind the pattern")
			continue
		default:
			if p.result, err = parseResult(result, p); err != nil {
				bad("%v", err)
				continue
			}
		}
		if list = append(list, p); len(list) > maxPatterns {
			bad("more than %d patterns", maxPatterns)
			return nil, errors.Join(errs...)
		}
	}
	for _, i := range open {
		errs = append(errs, &config.Error{File: name, Line: list[i].line, Reason: "an if without its endif"})
	}
	return list, errors.Join(errs...)
}

// textLine is a line with those that continue it.
type textLine struct {
	text   string
	number int // of its first line
}

func joinLines(text string) []textLine {
	var list []textLine
	number := 0
	for line := range strings.Lines(text) {
		number++
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#':
		case (line[0] == ' ' || line[0] == '\t') && len(list) > 0:
			list[len(list)-1].text += strings.TrimRight(line, " \t\r\n")
		default:
			list = append(list, textLine{trimmed, number})
		}
	}
	return list
}

// parsePattern reads [!]/PATTERN/FLAGS and returns what follows; any character may take the
// place of the slashes.
func parsePattern(text string) (p pattern, rest string, err error) {
	body, not := strings.CutPrefix(text, "!")
	if body == "" || isWordByte(body[0]) {
		return p, "", fmt.Errorf("want /PATTERN/ and a result, not %q", text)
	}
	end := 1
	for ; end < len(body) && body[end] != body[0]; end++ {
		if body[end] == '\\' {
			end++
		}
	}
	if end >= len(body) {
		return p, "", fmt.Errorf("no second %c behind the pattern", body[0])
	}
	flags, rest, _ := strings.Cut(body[end+1:], " ")
	if tab := strings.IndexByte(flags, '\t'); tab >= 0 {
		flags, rest = flags[:tab], flags[tab+1:]+" "+rest
	}
	ignoreCase, lines := true, ""
	for _, flag := range flags {
		switch flag {
		case 'i':
			ignoreCase = !ignoreCase
		case 'm':
			lines = "m"
		case 'x': // extended syntax, which RE2 always has
		default:
			return p, "", fmt.Errorf("unknown flag %q; there are i, m and x", flag)
		}
	}
	mode := lines
	if ignoreCase {
		mode += "i"
	}
	expr := strings.ReplaceAll(body[1:end], `\`+body[:1], regexp.QuoteMeta(body[:1]))
	if mode != "" {
		expr = "(?" + mode + ")" + expr
	}
	if p.expr, err = regexp.Compile(expr); err != nil {
		return p, "", fmt.Errorf("%w; RE2 has no lookahead, lookbehind and backreferences", err)
	}
	p.not = not
	return p, strings.TrimSpace(rest), nil
}

// parseResult reads a result with $1, ${1}, $(1) for groups and $$ for a dollar sign.
func parseResult(text string, p pattern) ([]piece, error) {
	var list []piece
	for text != "" {
		plain, rest, found := strings.Cut(text, "$")
		if plain != "" {
			list = append(list, piece{text: plain})
		}
		if !found {
			break
		}
		if text, found = strings.CutPrefix(rest, "$"); found {
			list = append(list, piece{text: "$"})
			continue
		}
		digits := rest
		if rest != "" && (rest[0] == '{' || rest[0] == '(') {
			end := strings.IndexAny(rest, "})")
			if end < 0 {
				return nil, fmt.Errorf("no end of ${ in the result")
			}
			digits, text = rest[1:end], rest[end+1:]
		} else {
			end := 0
			for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
				end++
			}
			digits, text = rest[:end], rest[end:]
		}
		group, err := strconv.Atoi(digits)
		switch {
		case err != nil || group == 0:
			return nil, fmt.Errorf("$ in the result without the number of a group; $$ is a dollar sign")
		case p.not:
			return nil, fmt.Errorf("$%d: a pattern with ! matches nothing that could be filled in", group)
		case group > p.expr.NumSubexp():
			return nil, fmt.Errorf("$%d: the pattern has %d groups", group, p.expr.NumSubexp())
		}
		list = append(list, piece{group: group})
	}
	return list, nil
}
