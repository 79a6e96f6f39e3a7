package conf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Command is the command of a clause: [VAR=x] program arguments. ${NAME} is replaced when
// the file is read, $channel and $host when an agent is started.
type Command struct {
	Env          []string // VAR=x
	Words        []string
	NamesChannel bool
	NamesHost    bool
}

// Line returns the command as one line, for display.
func (c *Command) Line() string { return strings.Join(c.Words, " ") }

// Build returns the arguments, program first, and the environment for a channel and host.
func (c *Command) Build(channel, host string) (argv, env []string) {
	expand := func(list []string) []string {
		out := make([]string, len(list))
		for i, w := range list {
			out[i] = expandWord(w, func(name string) string {
				if name == "channel" {
					return channel
				}
				return host
			})
		}
		return out
	}
	return expand(c.Words), expand(c.Env)
}

// expandWord replaces $channel and $host.
func expandWord(w string, value func(name string) string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(w, '$')
		if i < 0 {
			b.WriteString(w)
			return b.String()
		}
		b.WriteString(w[:i])
		w = w[i:]
		name, rest := reference(w[1:])
		if name == "" {
			b.WriteByte('$')
			w = w[1:]
			continue
		}
		b.WriteString(value(name))
		w = rest
	}
}

// reference cuts channel or host from the start of s.
func reference(s string) (name, rest string) {
	for _, name := range []string{"channel", "host"} {
		if rest, ok := strings.CutPrefix(s, name); ok && (rest == "" || !isNameByte(rest[0])) {
			return name, rest
		}
	}
	return "", s
}

func isNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// parseCommand parses a command. Blanks outside of ' and " separate words.
func parseCommand(s string, getenv func(string) (string, bool)) (Command, error) {
	s, err := expandEnv(s, getenv)
	if err != nil {
		return Command{}, err
	}
	var c Command
	for s = strings.TrimLeft(s, " \t"); strings.HasPrefix(s, "["); s = strings.TrimLeft(s, " \t") {
		inside, rest, ok := strings.Cut(s[1:], "]")
		if !ok {
			return Command{}, errors.New("[ without ]")
		}
		sets, err := splitWords(inside)
		if err != nil {
			return Command{}, err
		}
		for _, set := range sets {
			if name, _, ok := strings.Cut(set, "="); !ok || name == "" || strings.Trim(name, nameBytes) != "" {
				return Command{}, fmt.Errorf("[%s]: want VAR=value", set)
			}
			c.Env = append(c.Env, set)
		}
		s = rest
	}
	if c.Words, err = splitWords(s); err != nil {
		return Command{}, err
	}
	if len(c.Words) == 0 || c.Words[0] == "" {
		return Command{}, errors.New("no program is given")
	}
	for _, list := range [][]string{c.Env, c.Words} {
		for _, w := range list {
			expandWord(w, func(name string) string {
				c.NamesChannel = c.NamesChannel || name == "channel"
				c.NamesHost = c.NamesHost || name == "host"
				return ""
			})
		}
	}
	return c, nil
}

const nameBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

// expandEnv replaces ${NAME}, and refuses other uses of $ than $channel and $host, so that
// no typing error reaches an agent.
func expandEnv(s string, getenv func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		b.WriteString(s[:i])
		s = s[i:]
		if name, rest := reference(s[1:]); name != "" {
			b.WriteString("$" + name)
			s = rest
			continue
		}
		name, rest, ok := strings.Cut(s[1:], "}")
		if !ok || !strings.HasPrefix(name, "{") {
			return "", fmt.Errorf("%.20q is neither $channel, $host nor ${NAME}", s)
		}
		value, ok := getenv(name[1:])
		if !ok {
			return "", fmt.Errorf("${%s} is not set", name[1:])
		}
		if strings.ContainsAny(value, "$\n\x00") {
			return "", fmt.Errorf("${%s} holds a $ or a line end", name[1:])
		}
		b.WriteString(value)
		s = rest
	}
}

func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, open := byte(0), false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case in != 0 && c == in:
			in = 0
		case in != 0:
			word.WriteByte(c)
		case c == '\'' || c == '"':
			in, open = c, true
		case c == ' ' || c == '\t':
			if open {
				words = append(words, word.String())
				word.Reset()
				open = false
			}
		default:
			word.WriteByte(c)
			open = true
		}
	}
	if in != 0 {
		return nil, fmt.Errorf("no closing %c", in)
	}
	if open {
		words = append(words, word.String())
	}
	return words, nil
}

// Slots returns how many deliveries an agent does at once by its command line.
func (c *Command) Slots() int {
	for i, word := range c.Words {
		value, ok := strings.CutPrefix(word, "--slots=")
		if !ok && word == "--slots" && i+1 < len(c.Words) {
			value, ok = c.Words[i+1], true
		}
		if n, err := strconv.Atoi(value); ok && err == nil && n > 0 {
			return n
		}
	}
	return 1
}
