package main

import (
	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
)

// caller opens the postoffice and calls its scheduler.
func caller(c *cli.Context) (*view.SchedulerClient, error) {
	settings, err := config.FromCLI(c)
	if err != nil {
		return nil, err
	}
	return view.CallScheduler(c.Context, settings.PostOffice())
}
