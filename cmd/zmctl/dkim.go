package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/setup"
	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

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
