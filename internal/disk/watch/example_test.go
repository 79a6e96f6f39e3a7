package watch_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/disk/watch"
)

// A daemon waits for files in a directory. The first hint has no name: it looks at the whole
// directory once.
func Example() {
	dir, err := os.MkdirTemp("", "watch")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	visible := func(name string) bool { return !strings.HasPrefix(name, ".") }
	w := watch.New(ctx, []string{dir}, time.Second, visible, slog.New(slog.DiscardHandler))
	fmt.Printf("first hint: %q\n", (<-w.C()).Name)

	os.WriteFile(filepath.Join(dir, "4711"), nil, 0o600)
	for hint := range w.C() {
		if list, _ := os.ReadDir(filepath.Clean(dir)); len(list) > 0 {
			fmt.Println("found", list[0].Name(), "after a hint in its directory:", hint.Dir == dir || hint.Name == "")
			break
		}
	}
	stop()
	w.Wait()
	// Output:
	// first hint: ""
	// found 4711 after a hint in its directory: true
}
