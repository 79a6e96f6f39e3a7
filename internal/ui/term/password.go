package term

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/lookup/passwd"
)

// ReadPassword asks on a terminal, twice and without echo, or reads the first line. Ctrl-C
// ends it and restores the echo.
func ReadPassword(ctx context.Context, in io.Reader, prompts io.Writer) (string, error) {
	f, ok := in.(*os.File)
	ask := ok && Terminal(f)
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
