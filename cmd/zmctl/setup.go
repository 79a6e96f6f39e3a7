package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/setup"
	"zmailer/internal/lookup/passwd"
	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/term"
)

func initCommand() *cli.Command {
	return &cli.Command{
		Name:      "init",
		Usage:     "create the postoffice's directories, and initial configuration files",
		UsageText: "zmctl init [--config-dir DIR]",
		Description: `Creates the missing directories of the postoffice, including those that ROUTERDIRS names, and
changes nothing else. If root calls it and zmailer.conf has DAEMONUSER, the postoffice is given
to that user; message files keep their owners (docs/privileges.md).
With --config-dir it writes zmailer.conf, scheduler.conf, replies, routes, aliases, fqdnaliases
and localnames into DIR, each unless it exists. They contain the built-in defaults, with a
comment for each setting; a new zmailer.conf names this postoffice. If --config or ZCONFIG names
a zmailer.conf that does not exist, they are written beside it without that flag.

    zmctl --postoffice /var/spool/postoffice init --config-dir /etc/zmailer`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config-dir", Usage: "write the missing configuration files into `DIR`, with the defaults"},
		},
		Action: runInit,
	}
}

func runInit(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, missing, err := config.ForInit(c)
	if err != nil {
		return err
	}
	conf, err := configDir(c, missing)
	if err != nil {
		return err
	}
	dir := settings.PostOffice()
	if err := setup.Init(settings); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "postoffice", dir)
	if conf == "" {
		return nil
	}
	if err := config.WriteDefaults(conf, "POSTOFFICE="+dir); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "configuration", filepath.Join(conf, config.Files()[0]))
	return nil
}

// configDir returns where configuration files are written: the directory of --config-dir,
// else of the zmailer.conf that is named and missing; "": nowhere.
func configDir(c *cli.Context, missing string) (string, error) {
	if dir := c.String("config-dir"); dir != "" {
		return filepath.Abs(dir)
	}
	if missing == "" {
		return "", nil
	}
	if name := config.Files()[0]; filepath.Base(missing) != name {
		return "", &config.Error{File: missing, Reason: "does not exist; zmctl init makes files with the name " + name +
			" only, and writes them into the directory of --config-dir"}
	}
	return filepath.Dir(missing), nil
}

func dkimCommand() *cli.Command {
	return &cli.Command{
		Name:        "dkim",
		Usage:       "make keys for DKIM signatures",
		UsageText:   "zmctl dkim newkey [flags] DOMAIN SELECTOR",
		Description: `Mail is signed for the domains in the file dkim beside zmailer.conf (docs/dkim.md).`,
		Subcommands: []*cli.Command{{
			Name:      "newkey",
			Usage:     "make a private key, and print the DNS record to publish",
			UsageText: "zmctl dkim newkey [--type rsa|ed25519] [--bits N] [--out FILE] DOMAIN SELECTOR",
			Description: `Writes a private key into keys/SELECTOR.DOMAIN.pem beside zmailer.conf, readable by the owner
of the postoffice only, and prints the DNS record with the public key and the line for the
file dkim (docs/dkim.md). An existing file is never overwritten.

    zmctl --config /etc/zmailer/zmailer.conf dkim newkey example.org s2026

Exit codes: 0 done, 1 it could not be written, 64 bad arguments, 78 bad configuration.`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "type", Value: "rsa", Usage: "`TYPE` of the key: rsa, which every receiver supports, or ed25519 in addition"},
				&cli.IntFlag{Name: "bits", Value: 2048, Usage: "size of an RSA key, `N` between 2048 and 4096; some DNS packets cannot hold records of more than 2048 bits"},
				&cli.StringFlag{Name: "out", Usage: "write the key into `FILE`"},
			},
			Action: runNewkey,
		}},
	}
}

func runNewkey(c *cli.Context) error {
	if c.NArg() != 2 {
		return cli.Exit("zmctl dkim newkey needs a domain and a selector; see --help", config.ExitUsage)
	}
	domain, err := dnsName(c.Args().Get(0))
	if err != nil {
		return cli.Exit("domain: "+err.Error(), config.ExitUsage)
	}
	selector, err := dnsName(c.Args().Get(1))
	if err != nil {
		return cli.Exit("selector: "+err.Error(), config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	path := c.String("out")
	if path == "" {
		if path = settings.Path(filepath.Join("keys", selector+"."+domain+".pem")); path == "" {
			return cli.Exit("there is no configuration directory: set --config to zmailer.conf, or --out to a file", config.ExitUsage)
		}
	}
	kind, bits := setup.KeyType(c.String("type")), c.Int("bits")
	switch {
	case kind != setup.RSA && kind != setup.Ed25519:
		return cli.Exit("--type is rsa or ed25519", config.ExitUsage)
	case kind == setup.RSA && (bits < 2048 || bits > 4096):
		return cli.Exit("--bits is between 2048 and 4096", config.ExitUsage)
	}
	record, err := setup.NewKey(path, kind, bits, settings.PostOffice())
	if err != nil {
		return err
	}
	table := settings.Path("dkim")
	if rel, err := filepath.Rel(filepath.Dir(table), path); err == nil && table != "" && !strings.HasPrefix(rel, "..") {
		path = rel
	}
	out := c.App.Writer
	fmt.Fprintf(out, "publish in DNS:\n\n%s._domainkey.%s. IN TXT ( %s )\n\n", selector, domain, quoted(record))
	fmt.Fprintf(out, "and when it is published, add to the file dkim:\n\n%s %s %s\n", domain, selector, path)
	return nil
}

func dnsName(s string) (string, error) {
	m := address.Mailbox{Local: "x", Domain: s}
	name, err := m.ASCIIDomain()
	if err == nil && (name == "" || name[0] == '[') {
		err = errors.New("not a domain name: " + s)
	}
	return name, err
}

// quoted splits a record into strings of at most 255 bytes (RFC 1035 section 3.3).
func quoted(record string) string {
	var parts []string
	for len(record) > 250 {
		parts = append(parts, `"`+record[:250]+`"`)
		record = record[250:]
	}
	return strings.Join(append(parts, `"`+record+`"`), "\n    ")
}

func passwdCommand() *cli.Command {
	return &cli.Command{
		Name:      "passwd",
		Usage:     "set a user's password for submission",
		UsageText: "zmctl passwd [--scram] [--file FILE] USER | zmctl passwd --remove USER",
		Description: `Writes the user's line in the file of accounts that AUTH=file:PATH in zmailer.conf names:
an argon2id hash, and with --scram the keys for SCRAM-SHA-256 too. zmctl asks for the password
on the terminal, twice, or reads it from the first line of standard input.

    zmctl passwd jane
    printf '%s\n' "$PASSWORD" | zmctl passwd --file /etc/zmailer/users jane@example.org

The file is replaced in one step and keeps its owner and mode; a new one has mode 0640. If root
calls the command, the group of the daemons' user (DAEMONUSER) may read the file, also one that
only root could read before. smtpserver reads it again within a second.

Exit codes: 0 done, 1 it could not be written, 64 bad arguments, 78 no file is named.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Usage: "change `FILE` instead of the file of AUTH"},
			&cli.BoolFlag{Name: "scram", Usage: "make keys for SCRAM-SHA-256 too"},
			&cli.BoolFlag{Name: "remove", Usage: "remove the user"},
		},
		Action: runPasswd,
	}
}

func runPasswd(c *cli.Context) error {
	if c.NArg() != 1 {
		return cli.Exit("zmctl passwd needs one user; see --help", config.ExitUsage)
	}
	change := passwd.Change{User: c.Args().First(), SCRAM: c.Bool("scram")}
	if err := passwd.CheckUser(change.User); err != nil {
		return cli.Exit(err, config.ExitUsage)
	}
	settings, err := accountsSettings(c)
	if err != nil {
		return err
	}
	path, err := accountsFile(c, settings)
	if err != nil {
		return err
	}
	if !c.Bool("remove") {
		in := c.App.Reader
		if in == nil {
			in = os.Stdin
		}
		if change.Password, err = term.ReadPassword(c.Context, in, c.App.ErrWriter); err != nil {
			return err
		}
	}
	known, err := setup.ChangeAccounts(path, change, setup.ReadersGroup(settings))
	if err != nil {
		return err
	}
	switch {
	case c.Bool("remove") && !known:
		return cli.Exit(fmt.Sprintf("%s has no user %s", path, change.User), 1)
	case c.Bool("remove"):
		fmt.Fprintf(c.App.Writer, "%s: %s removed\n", path, change.User)
	case known:
		fmt.Fprintf(c.App.Writer, "%s: %s has a new password\n", path, change.User)
	default:
		fmt.Fprintf(c.App.Writer, "%s: %s added\n", path, change.User)
	}
	return nil
}

// accountsSettings loads the configuration. A file of accounts that a flag names can be made before
// zmailer.conf, and while one of its lines is wrong.
func accountsSettings(c *cli.Context) (*config.Config, error) {
	if c.String("file") == "" {
		return config.FromCLI(c)
	}
	settings, _, err := config.ForInit(c)
	if settings == nil {
		return nil, err
	}
	return settings, nil
}

func accountsFile(c *cli.Context, settings *config.Config) (string, error) {
	if path := c.String("file"); path != "" {
		return filepath.Abs(path)
	}
	path, ok := strings.CutPrefix(settings.String("AUTH", ""), "file:")
	if !ok {
		return "", settings.Invalid("AUTH", "does not name a file of accounts", errors.New("set AUTH=file:users, or use --file"))
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(settings.Dir, path)
	}
	return filepath.Abs(path)
}
