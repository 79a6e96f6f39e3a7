package docs

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

//go:embed system.sh
var systemScript string

// quoted returns a text as one word of the shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// talk says the client's lines of a page and compares the server's.
func (r *run) talk(s step) error {
	network, addr, end := "tcp", r.here(s.want), "\r\n"
	if strings.HasPrefix(addr, "/") {
		network, end = "unix", "\n"
	}
	c, err := net.DialTimeout(network, addr, settling)
	if err != nil {
		return err
	}
	defer c.Close()
	in := bufio.NewReader(c)
	lines := strings.Split(strings.TrimRight(s.text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if said, ok := strings.CutPrefix(lines[i], "C:"); ok {
			if _, err := fmt.Fprintf(c, "%s%s", r.here(strings.TrimPrefix(said, " ")), end); err != nil {
				return err
			}
			i++
			continue
		}
		var want []string
		begin := i
		for ; i < len(lines) && strings.HasPrefix(lines[i], "S:"); i++ {
			want = append(want, strings.TrimPrefix(strings.TrimPrefix(lines[i], "S:"), " "))
		}
		if begin == i {
			return fmt.Errorf("in a dialogue %q has no speaker", lines[i])
		}
		got, ok, err := r.hear(c, in, strings.Join(want, "\n"))
		if err != nil {
			return fmt.Errorf("line %d of the dialogue: %w", begin+1, err)
		}
		if !ok {
			r.failed(s.line+begin, fmt.Sprintf("got\n%s\nwant\n%s", got, strings.Join(want, "\n")))
			return nil
		}
	}
	return nil
}

// hear reads until what the server has said is what is wanted, or it says no more.
func (r *run) hear(c net.Conn, in *bufio.Reader, want string) (got string, ok bool, err error) {
	if err := c.SetReadDeadline(time.Now().Add(r.settling)); err != nil {
		return "", false, err
	}
	for {
		line, err := in.ReadString('\n')
		got += strings.TrimRight(line, "\r\n") + "\n"
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) || line == "" {
				return got, false, nil
			}
			return got, false, err
		}
		if ok, err = r.same(want, got); ok || err != nil {
			return got, ok, err
		}
	}
}
