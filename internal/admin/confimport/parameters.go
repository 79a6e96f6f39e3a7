package confimport

import (
	_ "embed" // the parameters
	"path"
	"strings"
)

//go:embed parameters.txt
var parameterText string

// parameters are those of one block of parameters.txt.
type parameters struct {
	outcome  Outcome
	page     string // "": none
	text     string
	patterns []string
}

// knownParameters reads parameters.txt.
func knownParameters() (list []parameters) {
	for line := range strings.Lines(parameterText) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '\t':
			last := &list[len(list)-1]
			last.patterns = append(last.patterns, strings.Fields(line)...)
		default:
			f := strings.SplitN(line, " ", 3)
			list = append(list, parameters{outcome: map[string]Outcome{"n": NotNeeded, "h": ByHand}[f[0]], page: strings.TrimPrefix(f[1], "-"), text: f[2]})
		}
	}
	return list
}

// parameter returns the block of a parameter; nil: it is not known.
func parameter(list []parameters, name string) *parameters {
	names := []string{name}
	if rest, lmtp := strings.CutPrefix(name, "lmtp_"); lmtp {
		names = append(names, "smtp_"+rest)
	}
	for _, name := range names {
		for i := range list {
			for _, pattern := range list[i].patterns {
				if ok, _ := path.Match(pattern, name); ok {
					return &list[i]
				}
			}
		}
	}
	return nil
}
