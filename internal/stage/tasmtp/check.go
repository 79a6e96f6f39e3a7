package tasmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp/discard"
	"zmailer/internal/stage/tasmtp/replies"
)

// CheckConfig reads everything that an agent reads when it starts or when it has use of
// it: zmailer.conf and the tables beside it, with the keys that they name. The error
// joins what is wrong.
func CheckConfig(c *config.Config) error {
	text, from, err := c.Read("replies")
	if err == nil {
		_, err = replies.Parse(from, text)
	}
	err = errors.Join(err, checkDiscard(c.Path(discardFile)))
	cfg, cerr := ConfigFrom(c)
	if cerr != nil {
		return errors.Join(err, cerr)
	}
	relay, cerr := NewRelay(cfg)
	if cerr != nil {
		return errors.Join(err, cerr)
	}
	defer relay.Close()
	return errors.Join(err, relay.keys.Check())
}

// checkDiscard reads the table of EHLO keywords, which need not be there.
func checkDiscard(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &config.Error{File: path, Reason: "cannot be read", Err: err}
	}
	_, err = discard.Parse(path, text)
	return err
}

// ErrNotSigned is what TestDKIM has told of.
var ErrNotSigned = errors.New("mail of the domain is not signed as it is meant to be")

// TestDKIM says which keys sign mail from a domain, and whether the name server has the
// other halves of them.
func TestDKIM(ctx context.Context, c *config.Config, domain string, out io.Writer) error {
	cfg, err := ConfigFrom(c)
	if err != nil {
		return err
	}
	relay, err := NewRelay(cfg)
	if err != nil {
		return err
	}
	defer relay.Close()
	if relay.keys.Empty() {
		fmt.Fprintln(out, "there is no key in the file dkim: no mail is signed")
		return ErrNotSigned
	}
	keys := relay.keys.For(domain)
	if len(keys) == 0 {
		fmt.Fprintf(out, "no line of the file dkim is for %s: its mail is not signed\n", domain)
		return ErrNotSigned
	}
	good := true
	for _, k := range keys {
		said, err := k.Kind()
		if err == nil {
			var texts []string
			if texts, err = relay.resolver.Text(ctx, k.Record()); err == nil {
				err = k.Published(texts)
			}
		}
		verdict := "published"
		if err != nil {
			good, verdict = false, err.Error()
		}
		if said == "" {
			said = "no key"
		}
		fmt.Fprintf(out, "line %d: d=%s s=%s, %s\n    %s: %s\n", k.Line, k.Domain, k.Selector, said, k.Record(), verdict)
	}
	if !good {
		return ErrNotSigned
	}
	return nil
}
