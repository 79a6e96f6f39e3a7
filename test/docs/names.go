package docs

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// serve starts a name server for "names ADDRESS" with a zone in the lines below, or for
// "names ADDRESS FILE" with that in a file. Its port stands for the page's from here on. A
// line "; signed NAME" says that a validating name server has validated what is below NAME.
func (r *run) serve(text string) error {
	head, zone, _ := strings.Cut(text, "\n")
	addr, file, ok := strings.Cut(head, " ")
	if ok {
		b, err := os.ReadFile(r.here(" " + file)[1:])
		if err != nil {
			return err
		}
		zone = string(b)
	}
	_, shown, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(r.names(zone))
	if err != nil {
		return err
	}
	if r.match.values[shown] == "" {
		return fmt.Errorf("port %s is none that pages use", shown)
	}
	r.match.values[shown] = port
	return nil
}

// signed returns the names that a zone says to be signed.
func signed(zone string) []string {
	var list []string
	for line := range strings.Lines(zone) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "; signed "); ok {
			list = append(list, name)
		}
	}
	return list
}
