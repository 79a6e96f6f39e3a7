package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"zmailer/internal/run/config"
)

// A program reads its settings, each with the default that holds where the file has none.
func Example() {
	dir, err := os.MkdirTemp("", "config")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "zmailer.conf")
	for _, text := range []string{"POSTOFFICE=/srv/mail\nROUTERPOLL=1m30s\n", "POSTOFFICE=/srv/mail\nMAXSIZE=much\n"} {
		os.WriteFile(file, []byte(text), 0o600)
		c, err := config.Load(file)
		var bad *config.Error
		if errors.As(err, &bad) {
			fmt.Printf("line %d is wrong: exit code %d\n", bad.Line, config.Exit(err))
			break
		}
		poll, err := c.Duration("ROUTERPOLL", time.Minute)
		fmt.Println(c.PostOffice(), poll, err)
		levels, err := c.Int("HASHLEVELS", 0)
		fmt.Println(levels, err)
	}
	// Output:
	// /srv/mail 1m30s <nil>
	// 0 <nil>
	// line 2 is wrong: exit code 78
}
