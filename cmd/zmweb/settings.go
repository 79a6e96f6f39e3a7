package main

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/webconf"
	"zmailer/internal/ui/web"
)

// flags returns those of zmctl web.
func flags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "write", Usage: "allow operators to change queued mail; otherwise the pages are read-only"},
		&cli.StringFlag{Name: "listen", Usage: "serve on `HOST:PORT`"},
		&cli.StringFlag{Name: "token-file", Usage: "read the token from `FILE`, created if it is missing; off: no token"},
		&cli.StringFlag{Name: "accounts", Usage: "read names and passwords from `FILE`; pam:SERVICE: use the accounts of this machine"},
	}
}

// given returns the flags, which override zmailer.conf, also at a reload.
func given(c *cli.Context) webconf.Flags {
	return webconf.Flags{Listen: c.String("listen"), Token: c.String("token-file"), Accounts: c.String("accounts"), Write: c.Bool("write")}
}

// banner prints the page's address. The token itself is printed on a terminal only:
// anything else may be a log.
func banner(c *cli.Context, w webconf.Settings, page *web.Config, at net.Addr, dir string) {
	scheme := "http"
	if page.Secure {
		scheme = "https"
	}
	orders := "refused; --write takes them"
	if w.Write {
		orders = "taken"
	}
	text := fmt.Sprintf("postoffice  %s\npage        %s://%s/\norders      %s\n", dir, scheme, at, orders)
	if w.Token != "" {
		text += "token       in " + w.Token + "\n"
		if out, ok := c.App.Writer.(*os.File); ok && isatty.IsTerminal(out.Fd()) {
			text += "            " + page.Token + "\n"
		}
	}
	if w.Accounts != "" {
		text += "accounts    " + w.Accounts + "\n"
	}
	fmt.Fprint(c.App.Writer, text+"stop        Ctrl-C or kill "+strconv.Itoa(os.Getpid())+"\n")
}
