package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/ui/web"
)

// defaultWeb is WEBLISTEN's default.
const defaultWeb = "127.0.0.1:2580"

// flags returns those of zmctl web.
func flags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "write", Usage: "allow operators to change queued mail; otherwise the pages are read-only"},
		&cli.StringFlag{Name: "listen", Usage: "serve on `HOST:PORT`"},
		&cli.StringFlag{Name: "token-file", Usage: "read the token from `FILE`, created if it is missing; off: no token"},
		&cli.StringFlag{Name: "accounts", Usage: "read names and passwords from `FILE`; pam:SERVICE: use the accounts of this machine"},
	}
}

// webSettings are the flags and the settings of zmailer.conf.
type webSettings struct {
	listen, token, accounts string
	write                   bool
	hosts                   []string
	readers, writers        []string
	cert, key               string
	keys                    config.Keeper // opens keys that this process may not read; may be nil
	log                     *slog.Logger  // of certificates; nil: none
}

func webSettingsFrom(c *cli.Context, settings *config.Config) (webSettings, error) {
	of := func(flag, text string) string {
		if s := c.String(flag); s != "" {
			return s
		}
		return text
	}
	w := webSettings{
		listen: of("listen", settings.String("WEBLISTEN", defaultWeb)), token: of("token-file", settings.String("WEBTOKEN", "")),
		accounts: of("accounts", settings.String("WEBACCOUNTS", "")), hosts: settings.List("WEBHOSTS"),
		readers: settings.List("WEBREADERS"), writers: settings.List("WEBWRITERS"),
		cert: settings.String("WEBCERT", ""), key: settings.String("WEBKEY", ""),
	}
	write, err := settings.Bool("WEBWRITE", false)
	w.write = write || c.Bool("write")
	switch {
	case err != nil:
	case (w.cert == "") != (w.key == ""):
		err = settings.Invalid("WEBCERT", "cannot be used", errors.New("WEBCERT and WEBKEY belong together"))
	case w.token == "off" && w.accounts == "":
		err = cli.Exit("without a token there must be accounts", config.ExitUsage)
	}
	return w, err
}

// page listens, and sets who may use the pages.
func (w *webSettings) page(settings *config.Config, dir string) (*web.Config, net.Listener, error) {
	hostname, err := settings.Hostname()
	if err != nil {
		return nil, nil, err
	}
	ln, secure, err := w.open(settings)
	if err != nil {
		return nil, nil, err
	}
	page := &web.Config{Hosts: w.names(ln.Addr(), hostname), Secure: secure, Cookie: portOf(ln.Addr()), Hostname: hostname, Now: time.Now}
	if err := w.access(page, dir); err != nil {
		return nil, nil, errors.Join(err, ln.Close())
	}
	return page, ln, nil
}

// banner prints the page's address. The token itself is printed on a terminal only:
// anything else may be a log.
func (w *webSettings) banner(c *cli.Context, page *web.Config, at net.Addr, dir string) {
	scheme := "http"
	if page.Secure {
		scheme = "https"
	}
	orders := "refused; --write takes them"
	if w.write {
		orders = "taken"
	}
	text := fmt.Sprintf("postoffice  %s\npage        %s://%s/\norders      %s\n", dir, scheme, at, orders)
	if w.token != "" {
		text += "token       in " + w.token + "\n"
		if out, ok := c.App.Writer.(*os.File); ok && isatty.IsTerminal(out.Fd()) {
			text += "            " + page.Token + "\n"
		}
	}
	if w.accounts != "" {
		text += "accounts    " + w.accounts + "\n"
	}
	fmt.Fprint(c.App.Writer, text+"stop        Ctrl-C or kill "+strconv.Itoa(os.Getpid())+"\n")
}
