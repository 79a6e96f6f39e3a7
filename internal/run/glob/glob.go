// Package glob matches names with shell patterns: channels, hosts, addresses. It owns nothing.
//
// A pattern consists of literal characters, * for any text, ? for one character, [a-z] and
// [!a-z] for one of a class, and \ before a character that is meant literally. Unlike in
// path.Match, * matches / too: a host may be a path.
//
// Diagnostics: Check returns the error in a pattern; the other functions expect one that
// Check has accepted.
package glob

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// Match reports whether a pattern matches the whole of s. Its time is at most the product of
// both lengths, since it returns to the last * only.
func Match(pattern, s string) bool {
	star, retry := "", ""
	starred := false
	for {
		if strings.HasPrefix(pattern, "*") {
			pattern = pattern[1:]
			star, retry, starred = pattern, s, true
			continue
		}
		if n, size := matchOne(pattern, s); n > 0 {
			pattern, s = pattern[n:], s[size:]
			continue
		}
		if pattern == "" && s == "" {
			return true
		}
		if !starred || retry == "" {
			return false
		}
		retry = retry[1:]
		pattern, s = star, retry
	}
}

// matchOne matches the beginning of s with the first element of a pattern, and returns the
// length of both; 0 if it does not match.
func matchOne(pattern, s string) (n, size int) {
	if pattern == "" || s == "" {
		return 0, 0
	}
	switch pattern[0] {
	case '?':
		_, size = utf8.DecodeRuneInString(s)
		return 1, size
	case '[':
		end := classEnd(pattern)
		r, size := utf8.DecodeRuneInString(s)
		if inClass([]rune(pattern[1:end]), r) {
			return end + 1, size
		}
		return 0, 0
	case '\\':
		if pattern[1] == s[0] {
			return 2, 1
		}
	case s[0]:
		return 1, 1
	}
	return 0, 0
}

// Any reports whether one of the patterns matches s.
func Any(patterns []string, s string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Match(p, s) })
}

// Simple returns the pattern in which * and ? of a text have their meaning and every other
// character is literal.
func Simple(text string) string {
	return strings.NewReplacer("[", `\[`, `\`, `\\`).Replace(text)
}

// Pieces returns the elements of a pattern: characters, *, ?, classes and \ with a character.
func Pieces(pattern string) (list []string) {
	for pattern != "" {
		n := 1
		switch pattern[0] {
		case '[':
			n = classEnd(pattern) + 1
		case '\\':
			n = 2
		}
		list = append(list, pattern[:n])
		pattern = pattern[n:]
	}
	return list
}

// Expand returns the patterns that a pattern with {one,two} means.
func Expand(pattern string) []string {
	before, rest, ok := strings.Cut(pattern, "{")
	if !ok {
		return []string{pattern}
	}
	words, after, _ := strings.Cut(rest, "}")
	var list []string
	for word := range strings.SplitSeq(words, ",") {
		list = append(list, Expand(before+word+after)...)
	}
	return list
}

// Check returns the error in a pattern, which may have {one,two}.
func Check(pattern string) error {
	words := 1
	for len(pattern) > 0 {
		n := 1
		switch pattern[0] {
		case '[':
			if n = classEnd(pattern) + 1; n == 0 {
				return errors.New("[ without ]")
			}
			if strings.ContainsAny(pattern[:n], "{}") {
				return errors.New("{ and } are not allowed in [ ]")
			}
		case '{':
			end := strings.IndexByte(pattern, '}')
			if end < 0 {
				return errors.New("{ without }")
			}
			if strings.ContainsAny(pattern[1:end], `{*?[]\`) {
				return errors.New("only plain words are allowed in { }")
			}
			if words *= strings.Count(pattern[:end], ",") + 1; words > 1000 {
				return errors.New("more than 1000 combinations")
			}
			n = end + 1
		case '\\':
			if n = 2; len(pattern) < 2 {
				return errors.New(`\ at the end`)
			}
			if strings.ContainsAny(pattern[:n], "{}") {
				return errors.New(`{ and } cannot be literal`)
			}
		}
		pattern = pattern[n:]
	}
	return nil
}

// classEnd returns the place of the ] that ends a class, -1 if there is none. The first
// character of a class may be one.
func classEnd(pattern string) int {
	i := 1
	if i < len(pattern) && pattern[i] == '!' {
		i++
	}
	if i+1 < len(pattern) {
		if n := strings.IndexByte(pattern[i+1:], ']'); n >= 0 {
			return i + 1 + n
		}
	}
	return -1
}

func inClass(class []rune, c rune) bool {
	not := len(class) > 0 && class[0] == '!'
	if not {
		class = class[1:]
	}
	for i := 0; i < len(class); i++ {
		lo, hi := class[i], class[i]
		if i+2 < len(class) && class[i+1] == '-' {
			hi = class[i+2]
			i += 2
		}
		if lo <= c && c <= hi {
			return !not
		}
	}
	return not
}
