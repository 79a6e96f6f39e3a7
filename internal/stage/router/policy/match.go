package policy

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"sync"

	"go.starlark.net/starlark"
)

// Bounds of match: what they allow takes less than a second at worst, for the expressions
// are RE2's and take time that grows with the text alone.
const (
	maxPattern  = 1000     // bytes
	maxNodes    = 2000     // of the expression, repetitions written out
	maxSearched = 64 << 10 // bytes of the text that are looked through
	maxPatterns = 1000     // that are kept compiled
)

// patterns are the expressions of a program, compiled.
type patterns struct {
	mu   sync.Mutex
	kept map[string]*regexp.Regexp
}

func (p *patterns) of(s string) (*regexp.Regexp, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if re := p.kept[s]; re != nil {
		return re, nil
	}
	if len(s) > maxPattern {
		return nil, fmt.Errorf("pattern of %d bytes, at most %d", len(s), maxPattern)
	}
	tree, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if nodes(tree) > maxNodes {
		return nil, fmt.Errorf("pattern %.80q: its repetitions make it too large", s)
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return nil, err
	}
	if p.kept == nil || len(p.kept) >= maxPatterns {
		p.kept = map[string]*regexp.Regexp{}
	}
	p.kept[s] = re
	return re, nil
}

// nodes returns how large an expression is.
func nodes(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += nodes(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxNodes+1)
}

// match is match(pattern, text): None, or a tuple of what fitted, and each of its groups.
func match(t *starlark.Thread, b *starlark.Builtin, a starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var pattern, text string
	if err := starlark.UnpackArgs(b.Name(), a, kw, "pattern", &pattern, "text", &text); err != nil {
		return nil, err
	}
	re, err := callOf(t).prog.patterns.of(pattern)
	if err != nil {
		return nil, fmt.Errorf("match: %w", err)
	}
	text = text[:min(len(text), maxSearched)]
	found := re.FindStringSubmatchIndex(text)
	if found == nil {
		return starlark.None, nil
	}
	groups := make(starlark.Tuple, len(found)/2)
	for i := range groups {
		groups[i] = starlark.None
		if from := found[2*i]; from >= 0 {
			groups[i] = starlark.String(text[from:found[2*i+1]])
		}
	}
	return groups, nil
}
