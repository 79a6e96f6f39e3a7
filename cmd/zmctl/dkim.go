package main

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

func dkimCommand() *cli.Command {
	return &cli.Command{
		Name:        "dkim",
		Usage:       "make keys that mail is signed with",
		UsageText:   "zmctl dkim newkey [flags] DOMAIN SELECTOR",
		Description: `Mail is signed for the domains in the file dkim beside zmailer.conf (docs/dkim.md).`,
		Subcommands: []*cli.Command{{
			Name:      "newkey",
			Usage:     "make a private key, and print the DNS record to publish",
			UsageText: "zmctl dkim newkey [--type rsa|ed25519] [--bits N] [--out FILE] DOMAIN SELECTOR",
			Description: `Writes a private key into keys/SELECTOR.DOMAIN.pem beside zmailer.conf, which only the
postoffice's owner may read, and prints the DNS record that publishes the other half and the
line for the file dkim (docs/dkim.md). A file that is there is never overwritten.

    zmctl --config /etc/zmailer/zmailer.conf dkim newkey example.org s2026

Exit codes: 0 done, 1 it could not be written, 64 bad arguments, 78 bad configuration.`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "type", Value: "rsa", Usage: "`TYPE`: rsa, which every receiver knows, or ed25519 beside it"},
				&cli.IntFlag{Name: "bits", Value: 2048, Usage: "`N` bits for an RSA key, 2048 to 4096; records of more than 2048 do not fit into one DNS packet everywhere"},
				&cli.StringFlag{Name: "out", Usage: "write the key into `FILE`"},
			},
			Action: runNewkey,
		}},
	}
}

func runNewkey(c *cli.Context) error {
	if c.NArg() != 2 {
		return cli.Exit("want a domain and a selector; --help tells more", config.ExitUsage)
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
			return cli.Exit("there is no configuration directory: name zmailer.conf by --config, or a file by --out", config.ExitUsage)
		}
	}
	private, record, err := makeKey(c.String("type"), c.Int("bits"))
	if err != nil {
		return err
	}
	if err := writeKey(path, private, settings.PostOffice()); err != nil {
		return err
	}
	table := settings.Path("dkim")
	if rel, err := filepath.Rel(filepath.Dir(table), path); err == nil && table != "" && !strings.HasPrefix(rel, "..") {
		path = rel
	}
	out := c.App.Writer
	fmt.Fprintf(out, "publish in DNS:\n\n%s._domainkey.%s. IN TXT ( %s )\n\n", selector, domain, quoted(record))
	fmt.Fprintf(out, "and when it is there, put into the file dkim:\n\n%s %s %s\n", domain, selector, path)
	return nil
}

func dnsName(s string) (string, error) {
	m := address.Mailbox{Local: "x", Domain: s}
	name, err := m.ASCIIDomain()
	if err == nil && (name == "" || name[0] == '[') {
		err = errors.New("no name: " + s)
	}
	return name, err
}

// makeKey makes a pair: the private half, and the record of the other (RFC 6376 §3.6.1,
// RFC 8463 §4).
func makeKey(kind string, bits int) (private crypto.PrivateKey, record string, err error) {
	switch {
	case kind == "ed25519":
		public, k, err := ed25519.GenerateKey(rand.Reader)
		return k, "v=DKIM1; k=ed25519; p=" + base64.StdEncoding.EncodeToString(public), err
	case kind != "rsa":
		return nil, "", cli.Exit("--type is rsa or ed25519", config.ExitUsage)
	case bits < 2048 || bits > 4096:
		return nil, "", cli.Exit("--bits is 2048 to 4096", config.ExitUsage)
	}
	k, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		return nil, "", fmt.Errorf("make a key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&k.PublicKey)
	return k, "v=DKIM1; k=rsa; p=" + base64.StdEncoding.EncodeToString(public), err
}

// writeKey writes a new key file for the owner of the postoffice, whose daemons read it.
func writeKey(path string, private crypto.PrivateKey, postoffice string) (err error) {
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return fmt.Errorf("write key %s: %w", path, err)
	}
	if err := makeKeyDir(filepath.Dir(path), postoffice); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already; a key is never overwritten: choose another selector", path)
	}
	if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	// Crash: until the end a part of the file may be there, which is no key: it is
	// refused where it is read, and is to be removed by hand.
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write key: %w", err), os.Remove(path))
		}
	}()
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err = errors.Join(err, handOver(path, postoffice), f.Sync(), f.Close()); err != nil {
		return err
	}
	// Crash: before this the name may be gone; its record is told after it alone.
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func makeKeyDir(dir, postoffice string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// Crash: before this the directory may be gone, and the key with it.
	return errors.Join(handOver(dir, postoffice), syncDir(filepath.Dir(dir)))
}

// handOver gives what root has made to the owner of the postoffice.
func handOver(path, postoffice string) error {
	info, err := os.Stat(postoffice)
	if os.Geteuid() != 0 || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return os.Chown(path, int(owner.Uid), int(owner.Gid))
}

// quoted parts a record into strings of at most 255 bytes (RFC 1035 §3.3).
func quoted(record string) string {
	var parts []string
	for len(record) > 250 {
		parts = append(parts, `"`+record[:250]+`"`)
		record = record[250:]
	}
	return strings.Join(append(parts, `"`+record+`"`), "\n    ")
}
