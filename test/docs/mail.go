package docs

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"zmailer/test/peer"
)

// mail writes what another host has been given: "mail ADDRESS COUNT DIR". A file begins with
// the client's greeting and address, then has its commands, an empty line, and the message.
func (r *run) mail(text string) error {
	words := strings.Fields(text)
	if len(words) != 3 || r.hosts[words[0]] == nil {
		return fmt.Errorf("mail %s: want the address of a host, a number and a directory", text)
	}
	n, err := strconv.Atoi(words[1])
	if err != nil {
		return err
	}
	h := &r.hosts[words[0]].sink
	if err := h.Wait(n, r.settling); err != nil {
		return err
	}
	list := h.Messages()
	slices.SortFunc(list, func(a, b *peer.Message) int {
		return cmp.Or(cmp.Compare(a.From, b.From), slices.Compare(a.Recipients, b.Recipients))
	})
	for i, m := range list {
		text := "EHLO " + m.Hello + " from " + m.Peer + "\n" + strings.Join(m.Commands, "\n") + "\n\n" + string(bytes.ReplaceAll(m.Data, []byte("\r\n"), []byte("\n")))
		if err := r.write(filepath.Join(r.here(" " + words[2])[1:], strconv.Itoa(i+1)), text); err != nil {
			return err
		}
	}
	return nil
}
