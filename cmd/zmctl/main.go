// Command zmctl creates a postoffice, runs its daemons, and shows and changes its mail.
//
// A file of this package parses the flags of a command, calls a package below
// internal/admin, and prints what that returns. It keeps no state between calls. Files that
// root creates are given to the owner of the directory, so that the daemons can use them.
package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
)

const description = `The postoffice is a directory in which every message is a file and every state of a
message a file name (docs/spool.md). zmctl works on the one that --postoffice, the
environment's POSTOFFICE or zmailer.conf names:

    zmctl --postoffice /var/spool/postoffice init --config-dir /etc/zmailer
    zmctl --config /etc/zmailer/zmailer.conf run
    zmctl --config /etc/zmailer/zmailer.conf queue

A message is named by its spool ID, like S10117782A2CnLkQ0vB8C, as queue, the logs and
the reports show it. Output goes to standard output, errors to standard error.

Exit codes: 0 done, 1 not done, 64 bad arguments, 71 a daemon's program is missing, 75 try
again (hold to reroute, undo), 78 bad configuration or no postoffice; check has its own.`

func main() {
	os.Args = calledAs(os.Args)
	config.Main(app())
}

func app() *cli.App {
	return &cli.App{
		Name:            "zmctl",
		Usage:           "create, run and manage a postoffice",
		UsageText:       "zmctl [flags] COMMAND [arguments]",
		Description:     description,
		Flags:           append(config.Flags(), colorFlag()),
		Before:          setColour,
		HideHelpCommand: true,
		Writer:          os.Stdout,
		Commands: slices.Concat([]*cli.Command{
			initCommand(), runCommand(), statusCommand(), queueCommand(), showCommand(), whyCommand(), historyCommand(),
			threadCommand(), eventsCommand(), topCommand(), traceCommand(), exportCommand(), logCommand(),
		}, serviceCommands(), verbCommands(), []*cli.Command{
			suspendCommand(), resumeCommand(), etrnCommand(), routeCommand(), verifyCommand(), ratesCommand(), ordersCommand(), undoCommand(), removedCommand(), resubmitCommand(), freezerCommand(), postmanCommand(), cleanupCommand(), checkCommand(), simulateCommand(), settleCommand(), webCommand(),
			checkConfigCommand(), testCommand(), newdbCommand(), passwdCommand(), dkimCommand(), tlsrptCommand(), importCommand(), importConfigCommand(), reloadCommand(), freezeServiceCommand(), thawServiceCommand(),
			tryCommand(), completionCommand(), versionCommand(),
		}),
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return cli.Exit("unknown command "+c.Args().First()+"; --help lists the commands", config.ExitUsage)
			}
			return cli.ShowAppHelp(c)
		},
	}
}

// calledAs returns the arguments as zmctl takes them, for one that is called by a name of
// sendmail's: mailq lists the queue; newaliases reports whether the tables can be used, which
// are read again by themselves when they change.
func calledAs(args []string) []string {
	switch filepath.Base(args[0]) {
	case "mailq":
		// sendmail's own options (-v, -Ac, -qQ) mean nothing here.
		rest := slices.DeleteFunc(slices.Clone(args[1:]), func(arg string) bool {
			return len(arg) > 1 && arg[0] == '-' && arg != "-h" && !strings.HasPrefix(arg, "--")
		})
		return append([]string{"zmctl", "queue", "--readable"}, rest...)
	case "newaliases":
		return []string{"zmctl", "check-config"}
	}
	return args
}
