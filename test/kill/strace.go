package kill

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"zmailer/test/inject"
)

// parseCall reads a line of strace's output, as -f -y -Y write it:
//
//	123<router> renameat2(6</po>, "router/12", 6</po>, "router/12-7", RENAME_NOREPLACE) = 0
//
// false: the line begins no call, or one that changes nothing.
func parseCall(line string, c inject.Classes) (inject.Pair, bool) {
	line = strings.TrimSuffix(strings.TrimSpace(line), "<unfinished ...>")
	_, rest, ok1 := strings.Cut(line, "<")
	program, rest, ok2 := strings.Cut(rest, "> ")
	name, rest, ok3 := strings.Cut(rest, "(")
	if !ok1 || !ok2 || !ok3 || strings.ContainsAny(name, "<? ") {
		return inject.Pair{}, false // "<... write resumed>" is the end of a call, "???(" of strace
	}
	args := arguments(rest)
	var classes []string
	switch {
	case slices.Contains([]string{"write", "writev", "pwrite64", "pwritev", "sendto", "sendmsg"}, name):
		if len(args) < 2 || strings.HasPrefix(args[0], "2<") {
			return inject.Pair{}, false // the log
		}
		text := quoted(args[1])
		classes = []string{inject.Stream(c.Of(described(args[0])), []byte(text), []byte(text))}
	case name == "splice" || name == "copy_file_range":
		if len(args) > 2 {
			classes = []string{c.Of(described(args[2]))}
		}
	default:
		for _, path := range paths(args) {
			classes = append(classes, c.Of(path))
		}
		if len(classes) == 0 && len(args) > 0 {
			classes = []string{c.Of(described(args[0]))}
		}
	}
	p := inject.Pair{Program: program, Name: name, Path: strings.Join(classes, " -> ")}
	opens := (name == "open" || name == "openat") && !strings.Contains(rest, "O_CREAT") && !strings.Contains(rest, "O_TRUNC") && !strings.Contains(rest, "O_TMPFILE")
	return p, p.Path != "" && !opens && !inject.Ignored(p.Name, p.Path)
}

// arguments splits what follows a call's opening parenthesis.
func arguments(text string) []string {
	var list []string
	start, depth, inside := 0, 0, byte(0)
	for i := 0; i < len(text); i++ {
		b := text[i]
		switch {
		case inside == '"' && b == '\\':
			i++
		case inside == '"' && b == '"', inside == '<' && b == '>':
			inside = 0
		case inside != 0:
		case b == '"' || b == '<':
			inside = b
		case strings.IndexByte("([{", b) >= 0:
			depth++
		case b == ')' && depth == 0:
			return append(list, strings.TrimSpace(text[start:i]))
		case strings.IndexByte(")]}", b) >= 0:
			depth--
		case b == ',' && depth == 0:
			list = append(list, strings.TrimSpace(text[start:i]))
			start = i + 1
		}
	}
	return append(list, strings.TrimSpace(text[start:])) // the rest of the line was not written yet
}

// described returns what strace says of a descriptor: 6</po/router/12>.
func described(arg string) string {
	_, rest, _ := strings.Cut(arg, "<")
	end := strings.LastIndexByte(rest, '>')
	if end < 0 {
		return ""
	}
	return rest[:end]
}

// paths returns the path arguments, made absolute with the directory before each.
func paths(args []string) []string {
	var list []string
	for i, a := range args {
		if !strings.HasPrefix(a, `"`) {
			continue
		}
		path := quoted(a)
		if i > 0 && !filepath.IsAbs(path) {
			path = filepath.Join(described(args[i-1]), path)
		}
		list = append(list, path)
	}
	return list
}

// quoted returns the first string of an argument, which may be a struct iovec.
func quoted(arg string) string {
	_, rest, ok := strings.Cut(arg, `"`)
	if !ok {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(rest) && rest[i] != '"'; i++ {
		if rest[i] != '\\' || i+1 == len(rest) {
			b.WriteByte(rest[i])
			continue
		}
		i++
		if at := strings.IndexByte("nrtvf", rest[i]); at >= 0 {
			b.WriteByte("\n\r\t\v\f"[at])
			continue
		}
		end := i
		for end < min(i+3, len(rest)) && rest[end] >= '0' && rest[end] <= '7' {
			end++
		}
		if n, err := strconv.ParseUint(rest[i:end], 8, 8); err == nil {
			b.WriteByte(byte(n))
			i = end - 1
			continue
		}
		b.WriteByte(rest[i])
	}
	return b.String()
}
