package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/ui/web/desk"
)

// webDeskCommand is what zmweb starts: it answers on standard output what the pages ask on
// standard input, until that ends.
func webDeskCommand() *cli.Command {
	return &cli.Command{
		Name: "web-desk", Hidden: true, Usage: "answer the questions of zmweb, which starts it",
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "write", Usage: "take orders"}},
		Action: runWebDesk,
	}
}

func runWebDesk(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	var orders desk.Orderer
	if c.Bool("write") {
		orders = &webOrders{args: callArguments(c, settings.File, dir)}
	}
	// Answers that zmweb does not live to read must not end the orders that it asked for.
	// Not ignored but caught: what is started here gets the default.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// A signal to all of a service is for zmweb: this ends when nobody asks any more.
	return desk.Serve(context.WithoutCancel(c.Context), c.App.Reader, c.App.Writer, &webSource{po: po, dir: dir, settings: settings}, orders)
}

// callArguments are what a command of ours is called with to mean the same postoffice.
func callArguments(c *cli.Context, conf, dir string) []string {
	// An empty one is the built-in configuration, also where the machine has one.
	return []string{c.App.Name, "--postoffice=" + dir, "--config=" + conf}
}
