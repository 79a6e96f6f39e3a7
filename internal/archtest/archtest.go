// Package archtest holds the rules of the source tree as data and a check of them
// that runs as a test: who may import whom, how long a file may be, what every
// package must say about itself.
//
// It owns nothing and reads the sources alone.
//
// Diagnostics: Check gives every violation with file and line; its error means that
// the tree cannot be read or parsed.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Module is the path of the module whose tree is checked.
const Module = "zmailer"

// Violation is one breach of a rule.
type Violation struct {
	File string // below the root of the tree
	Line int
	Text string
}

func (v Violation) String() string { return fmt.Sprintf("%s:%d: %s", v.File, v.Line, v.Text) }

// source is one parsed file.
type source struct {
	name    string // "internal/stage/router/router.go"
	pkg     string // "internal/stage/router"
	test    bool
	lines   int
	text    []byte
	tree    *ast.File
	fileset *token.FileSet
}

func (s *source) line(p token.Pos) int { return s.fileset.Position(p).Line }

// Check checks all Go files of a tree.
func Check(tree fs.FS) ([]Violation, error) {
	sources, err := load(tree)
	if err != nil {
		return nil, err
	}
	var found []Violation
	for _, s := range sources {
		found = append(found, checkImports(s)...)
		found = append(found, checkLength(s)...)
		found = append(found, checkCalls(s)...)
	}
	found = append(found, checkComments(sources)...)
	slices.SortFunc(found, func(a, b Violation) int {
		if a.File != b.File {
			return strings.Compare(a.File, b.File)
		}
		return a.Line - b.Line
	})
	return found, nil
}

// load parses every Go file that the go command would build.
func load(tree fs.FS) ([]*source, error) {
	var sources []*source
	fileset := token.NewFileSet()
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != "." && (base[0] == '.' || base[0] == '_' || base == "testdata" || base == "vendor" || name == "bin" || name == "var") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || base[0] == '.' || base[0] == '_' {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(fileset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse %s: %w", name, err)
		}
		sources = append(sources, &source{
			name: name, pkg: path.Dir(name), test: strings.HasSuffix(base, "_test.go"),
			lines: strings.Count(string(text), "\n"), text: text, tree: parsed, fileset: fileset,
		})
		return nil
	})
	return sources, err
}
