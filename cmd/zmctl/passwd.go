package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/lookup/passwd"
	"zmailer/internal/run/config"
)

func passwdCommand() *cli.Command {
	return &cli.Command{
		Name:      "passwd",
		Usage:     "set a user's password for submission",
		UsageText: "zmctl passwd [--scram] [--file FILE] USER | zmctl passwd --remove USER",
		Description: `Writes the user's line in the file of accounts that AUTH=file:PATH in zmailer.conf names:
an argon2id hash, and with --scram the keys for SCRAM-SHA-256 too. The password is asked
for on the terminal, twice, or is the first line of standard input.

    zmctl passwd jane
    printf '%s\n' "$PASSWORD" | zmctl passwd --file /etc/zmailer/users jane@example.org

The file is replaced in one step, keeps its owner and mode, and is made with mode 0640 if
it is not there. smtpserver reads it again within a second.

Exit codes: 0 done, 1 it could not be written, 64 bad arguments, 78 no file is named.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Usage: "write `FILE` instead of that of AUTH"},
			&cli.BoolFlag{Name: "scram", Usage: "make keys for SCRAM-SHA-256 too"},
			&cli.BoolFlag{Name: "remove", Usage: "remove the user"},
		},
		Action: runPasswd,
	}
}

func runPasswd(c *cli.Context) error {
	if c.NArg() != 1 {
		return cli.Exit("want one user; --help tells more", config.ExitUsage)
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
	known, err := changeAccounts(path, change)
	if err != nil {
		return err
	}
	switch {
	case c.Bool("remove") && !known:
		return cli.Exit(fmt.Sprintf("%s: there is no %s", path, change.User), 1)
	case c.Bool("remove"):
		fmt.Fprintf(c.App.Writer, "%s: %s removed\n", path, change.User)
	case known:
		fmt.Fprintf(c.App.Writer, "%s: %s has another password\n", path, change.User)
	default:
		fmt.Fprintf(c.App.Writer, "%s: %s added\n", path, change.User)
	}
	return nil
}

// accountsFile is --file, or what AUTH names.
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
		return "", settings.Invalid("AUTH", "names no file of accounts", errors.New("set AUTH=file:users, or use --file"))
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(settings.Dir, path)
	}
	return filepath.Abs(path)
}

// readPassword asks on a terminal, twice and without showing what is typed, or takes the
// first line. Ctrl-C ends it, and what is typed is shown again.
func readPassword(ctx context.Context, in io.Reader, say io.Writer) (string, error) {
	f, ok := in.(*os.File)
	ask := ok && terminal(f)
	lines := bufio.NewReader(in)
	read := func(prompt string) (string, error) {
		if ask {
			fmt.Fprint(say, prompt)
			defer fmt.Fprintln(say)
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
			return "", errors.New("the two are not the same; nothing was changed")
		}
	}
	switch {
	case password == "":
		return "", errors.New("an empty password is none; nothing was changed")
	case len(password) > passwd.MaxPassword:
		return "", fmt.Errorf("a password has %d bytes at most; nothing was changed", passwd.MaxPassword)
	case strings.ContainsRune(password, 0):
		return "", errors.New("a password has no NUL; nothing was changed")
	}
	return password, nil
}

// hide keeps a terminal from showing what is typed until the function that it gives is
// called.
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

// accountsMode is that of a new file: smtpserver's group may read it, nobody else.
const accountsMode = 0o640

// changeAccounts replaces a file of accounts. Two of these at the same time wait for each
// other.
func changeAccounts(path string, change passwd.Change) (known bool, err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	disk, err := durable.NewOS(filepath.Dir(path))
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	// A lock file, not the directory: any user may open that, and keep a lock on it.
	lock, err := disk.WaitLock("."+filepath.Base(path)+".lock", nil)
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	var mode fs.FileMode = accountsMode
	uid, gid := -1, -1
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		info, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		owner := info.Sys().(*syscall.Stat_t)
		mode, uid, gid = info.Mode().Perm(), int(owner.Uid), int(owner.Gid)
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	changed, known, err := change.Apply(text)
	if err != nil || change.Password == "" && !known {
		return known, err
	}
	tmp, err := os.CreateTemp(disk.Dir(), ".passwd-*")
	if err != nil {
		return known, fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // not there any more if all went well
	defer tmp.Close()
	if _, err = tmp.Write(changed); err == nil {
		err = tmp.Chmod(mode)
	}
	if err == nil && uid >= 0 {
		err = tmp.Chown(uid, gid)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err == nil {
		// Crash: the file is the old one or the new one, whole; a .passwd- file may be left.
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = disk.SyncDir(".")
	}
	if err != nil {
		return known, fmt.Errorf("write %s: %w", path, err)
	}
	return known, nil
}
