// Command count prints how large the tree is: lines of product and of tests, the folders
// with the most files, the types with the most methods and fields, and the words of the
// old vocabulary that are left.
//
//	go run ./scripts/count [-words]
//
// With -words it prints each line that has such a word.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// old are words that have a standard term: see "Terms" in docs/HACKING.md.
var old = regexp.MustCompile(`(?i)\b(counsels?|crews?|lookouts?|starters?|twins?|stewards?|errands?|nursery|nurseries|obsoleters?|acquaintances?|sheets?|nobody|strangers?|tells|so manieth|a person|is told|as it is said|whose it is|who it is from)\b`)

// account is what is not counted: the Unix user nobody, quoted names of older versions,
// and "is told apart". Identifiers that name the user are left out by withoutAccount.
var account = regexp.MustCompile("(?i)[\"`/']nobody[\"`:/'@0-9]|\\bnobody[@:=+]|\\bnobody-(here|listens)|\\b(as|such as|not|user|users|userid|uid|gid|aliases|nouser|AUTH|=) ?nobody\\b|[`.]nursery|`starter`|// nobody is the uid|is told apart|nobody →|→ nobody|(?-i:[a-z,;:] Nobody\\b|// Nobody is the privilege)")

// size is a number and what it counts.
type size struct {
	n    int
	what string
}

// counter collects what the files of the tree have.
type counter struct {
	product, tests, others int
	files                  map[string]int // of a folder, without tests
	methods, fields        map[string]int // of a type
	words                  map[string]int
	list                   bool
}

func main() {
	list := flag.Bool("words", false, "print the lines that have a word of the old vocabulary")
	flag.Parse()
	c := &counter{files: map[string]int{}, methods: map[string]int{}, fields: map[string]int{}, words: map[string]int{}, list: *list}
	if err := filepath.WalkDir(".", c.visit); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("lines of Go: %d product (cmd, internal), %d tests (_test.go, and folders in internal named …test), %d programs and helpers for tests\n", c.product, c.tests, c.others)
	show("files without tests in a folder", c.files)
	show("methods of a type", c.methods)
	show("fields of a struct", c.fields)
	show("words of the old vocabulary", c.words)
}

func (c *counter) visit(path string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if d.IsDir() {
		if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "var" || name == "bin") {
			return filepath.SkipDir
		}
		return nil
	}
	if !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".md") && !strings.HasSuffix(path, ".html") {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if path != filepath.Join("scripts", "count", "main.go") {
		c.vocabulary(path, string(withoutAccount(path, text)))
	}
	if strings.HasSuffix(path, ".go") {
		return c.source(path, text)
	}
	return nil
}

// withoutAccount returns the text of a file without what names the Unix user nobody.
func withoutAccount(path string, text []byte) []byte {
	text = slices.Clone(text)
	if strings.HasSuffix(path, ".go") {
		var s scanner.Scanner
		fset := token.NewFileSet()
		file := fset.AddFile(path, -1, len(text))
		s.Init(file, text, nil, 0)
		for pos, tok, lit := s.Scan(); tok != token.EOF; pos, tok, lit = s.Scan() {
			if tok == token.IDENT && strings.EqualFold(lit, "nobody") {
				copy(text[file.Offset(pos):], "userid")
			}
		}
	}
	return account.ReplaceAll(text, []byte("it"))
}

func (c *counter) vocabulary(path, text string) {
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		found := old.FindAllString(lines.Text(), -1)
		for _, w := range found {
			c.words[strings.ToLower(w)]++
		}
		if c.list && len(found) > 0 {
			fmt.Printf("%s:%d: %s\n", path, n, strings.TrimSpace(lines.Text()))
		}
	}
}

func (c *counter) source(path string, text []byte) error {
	lines := strings.Count(string(text), "\n")
	dir := filepath.Dir(path)
	switch {
	case strings.HasSuffix(path, "_test.go"):
		c.tests += lines
		return nil
	case strings.HasPrefix(path, "internal") && strings.HasSuffix(dir, "test"):
		c.tests += lines
	case strings.HasPrefix(path, "internal") && strings.HasSuffix(dir, "test"):
		c.tests += lines // helpers that several packages' tests share
	case strings.HasPrefix(path, "cmd") || strings.HasPrefix(path, "internal"):
		c.product += lines
	default:
		c.others += lines
	}
	c.files[dir]++
	tree, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
	if err != nil {
		return err
	}
	for _, decl := range tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				c.methods[dir+"."+receiver(d.Recv.List[0].Type)]++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				t, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if s, ok := t.Type.(*ast.StructType); ok {
					c.fields[dir+"."+t.Name.Name] = s.Fields.NumFields()
				}
			}
		}
	}
	return nil
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// show prints the largest of some counts.
func show(title string, counts map[string]int) {
	var sizes []size
	total := 0
	for what, n := range counts {
		sizes = append(sizes, size{n, what})
		total += n
	}
	slices.SortFunc(sizes, func(a, b size) int {
		if a.n != b.n {
			return b.n - a.n
		}
		return strings.Compare(a.what, b.what)
	})
	fmt.Printf("%s:\n", title)
	for _, s := range sizes[:min(len(sizes), 12)] {
		fmt.Printf("%8d  %s\n", s.n, s.what)
	}
}
