package whatif_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"zmailer/internal/admin/whatif"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router/route"
)

// An operator asks where mail for an address would go.
func Example() {
	dir, err := os.MkdirTemp("", "whatif")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := config.WriteDefaults(dir, "HOSTNAME=mx.example.org", "POSTOFFICE="+dir); err != nil {
		fmt.Println(err)
		return
	}
	settings, err := config.Load(filepath.Join(dir, "zmailer.conf"))
	if err != nil {
		fmt.Println(err)
		return
	}
	engine, err := whatif.Open(settings)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	sender := "a@example.net"
	answer := engine.Explain(context.Background(), route.Question{From: &sender, To: []string{"b@far.example"}})
	for _, r := range answer.Recipients {
		for _, target := range r.Targets {
			fmt.Println(r.Address, r.Verdict, target.Channel, target.Host, target.User)
		}
	}
	// Output: b@far.example routed smtp far.example b@far.example
}
