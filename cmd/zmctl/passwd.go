package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"zmailer/internal/admin/setup"
	"zmailer/internal/lookup/passwd"
	"zmailer/internal/run/config"
)

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

The file is replaced in one step and keeps its owner and mode; a new one has mode 0640.
smtpserver reads it again within a second.

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
	path, err := accountsFile(c)
	if err != nil {
		return err
	}
	if !c.Bool("remove") {
		in := c.App.Reader
		if in == nil {
			in = os.Stdin
		}
		if change.Password, err = readPassword(c.Context, in, c.App.ErrWriter); err != nil {
			return err
		}
	}
	known, err := setup.ChangeAccounts(path, change)
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

// accountsFile is the file of --file, or that of AUTH.
func accountsFile(c *cli.Context) (string, error) {
	if path := c.String("file"); path != "" {
		return filepath.Abs(path)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return "", err
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

// readPassword asks on a terminal, twice and without echo, or reads the first line. Ctrl-C
// ends it and restores the echo.
func readPassword(ctx context.Context, in io.Reader, prompts io.Writer) (string, error) {
	f, ok := in.(*os.File)
	ask := ok && terminal(f)
	lines := bufio.NewReader(in)
	read := func(prompt string) (string, error) {
		if ask {
			fmt.Fprint(prompts, prompt)
			defer fmt.Fprintln(prompts)
		}
		var line string
		var err error
		got := make(chan struct{})
		go func() {
			defer close(got)
			line, err = lines.ReadString('\n')
		}()
		select {
		case <-got:
		case <-ctx.Done():
			return "", errors.New("interrupted; nothing was changed")
		}
		if err != nil && (err != io.EOF || line == "") {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
	if ask {
		shown, err := hide(f)
		if err != nil {
			return "", err
		}
		defer shown()
	}
	password, err := read("Password: ")
	if err != nil {
		return "", err
	}
	if ask {
		again, err := read("Again: ")
		if err != nil {
			return "", err
		}
		if again != password {
			return "", errors.New("the two passwords differ; nothing was changed")
		}
	}
	switch {
	case password == "":
		return "", errors.New("the password is empty; nothing was changed")
	case len(password) > passwd.MaxPassword:
		return "", fmt.Errorf("the password is longer than %d bytes; nothing was changed", passwd.MaxPassword)
	case strings.ContainsRune(password, 0):
		return "", errors.New("the password contains a NUL; nothing was changed")
	}
	return password, nil
}

// hide switches the echo of a terminal off until the function that it returns is called.
func hide(f *os.File) (shown func(), err error) {
	was, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("hide the password: %w", err)
	}
	hidden := *was
	hidden.Lflag = hidden.Lflag&^unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETSF, &hidden); err != nil {
		return nil, fmt.Errorf("hide the password: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, was) }, nil
}
