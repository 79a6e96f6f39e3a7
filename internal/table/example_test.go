package table_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// Aliases are compiled, as "zmctl table make" does, and looked up, as the router does.
func Example() {
	dir, err := os.MkdirTemp("", "table")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	source, compiled := filepath.Join(dir, "aliases"), filepath.Join(dir, "aliases.db")
	os.WriteFile(source, []byte("postmaster: ann, bob@example.net\n"), 0o600)
	made, err := table.Compile(text.Aliases, source, compiled, func(string, int64, int64) {})
	fmt.Println("entries:", made.Entries, err)

	t, err := table.Open("db:aliases.db", table.Options{Name: "aliases", Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	for _, name := range []string{"Postmaster", "nobody"} {
		key, _ := text.Key(text.Aliases, name) // the form that is compared
		value, ok, err := t.Lookup(context.Background(), key)
		fmt.Printf("%s: %q %v %v\n", name, value.Text, ok, err)
	}
	// Output:
	// entries: 1 <nil>
	// Postmaster: "ann, bob@example.net" true <nil>
	// nobody: "" false <nil>
}
