package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/confimport"
	"zmailer/internal/run/config"
)

func importConfigCommand() *cli.Command {
	return &cli.Command{
		Name: "import-config", Usage: "make a configuration from that of another mail system", UsageText: "zmctl import-config postfix [--json] [--to DIR] PATH",
		Description: `Reads the configuration of another mail system and writes one with the same effect into a
new directory: zmailer.conf, the tables, and report.txt, which says of each setting what it
became, or why somebody has to decide. Nothing that is in use is changed. Look at the report
and run zmctl check-config there; docs/moving.md describes the move.

    zmctl import-config postfix --to /etc/zmailer.new /etc/postfix`,
		Subcommands: []*cli.Command{{
			Name: "postfix", Usage: "main.cf, master.cf and the tables that they name", UsageText: "zmctl import-config postfix [--json] [--to DIR] PATH",
			Description: `PATH is the directory of main.cf and master.cf. It may be a copy from another machine:
files in /etc/postfix are looked for in PATH. Without --to only the report is printed.

Exit codes: 0 everything was converted, 1 some settings are left to decide by hand, 64 PATH is no
such configuration, 73 DIR is not empty or cannot be written, 78 a file there cannot be read.`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "to", Usage: "write the files into `DIR`, which must be empty or not exist"},
				&cli.BoolFlag{Name: "json", Usage: "print the report as an array of objects"},
			},
			Action: importPostfixConfig,
		}},
		Action: needsVerb,
	}
}

func importPostfixConfig(c *cli.Context) error {
	if c.NArg() != 1 {
		return cli.Exit("want the directory of main.cf; see --help", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	dir := c.Args().First()
	// Where this mail system keeps its mail, and as whom it runs, stays as it is.
	keep := map[string]string{}
	for _, name := range []string{"POSTOFFICE", "DAEMONUSER", "LOGFILE"} {
		keep[name] = settings.String(name, "")
	}
	result, err := confimport.Postfix(dir, keep)
	if errors.Is(err, fs.ErrNotExist) {
		return cli.Exit(err, config.ExitUsage)
	}
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	if to := c.String("to"); to != "" {
		if err := writeConfiguration(to, result); err != nil {
			return cli.Exit(err, exitCantCreate)
		}
	}
	if c.Bool("json") {
		encoder := json.NewEncoder(c.App.Writer)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(result.Rows)
	} else {
		_, err = fmt.Fprint(c.App.Writer, result.Report())
	}
	if err == nil && result.Left() > 0 {
		err = cli.Exit("", 1)
	}
	return err
}

// exitCantCreate is EX_CANTCREAT of sysexits(3).
const exitCantCreate = 73

// writeConfiguration writes the new files into a directory that has none yet. Those with
// passwords are for their owner and group alone.
func writeConfiguration(dir string, r *confimport.Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(old) > 0 {
		return fmt.Errorf("%s is not empty: %s is there; name a new directory", dir, old[0].Name())
	}
	root, err := os.OpenRoot(dir) // whoever else may write there gets no other file written
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range append(r.Files, confimport.File{Name: "report.txt", Text: r.Report()}) {
		mode := os.FileMode(0o644)
		if f.Secret {
			mode = 0o640
		}
		file, err := root.OpenFile(f.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = file.WriteString(f.Text)
		if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}
