package submit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
)

// checkVERP checks what -XV needs: a sender, and two characters that are allowed in an
// address.
func (s *submission) checkVERP() error {
	if len(s.PerRecipient) != 2 || strings.Trim(s.PerRecipient, "-+=") != "" {
		return fmt.Errorf("-XV%.20s: two characters of -, + and = must follow, or nothing for +=", s.PerRecipient)
	}
	if !strings.Contains(s.env.From, "@") {
		return errors.New("-XV: a sender with a domain is needed (-f)")
	}
	return nil
}

// verpSender puts the recipient into the sender: owner-list@origin and user@domain give
// owner-list+user=domain@origin.
func verpSender(from, to, delimiters string) string {
	sender, err1 := address.Parse(from)
	rcpt, err2 := address.Parse(to)
	if err1 != nil || err2 != nil {
		return from
	}
	sender.Local += delimiters[:1] + rcpt.Local
	if rcpt.Domain != "" {
		sender.Local += delimiters[1:] + rcpt.Domain
	}
	return sender.String()
}

// submitEach submits a message for each recipient. The content is kept in a file without
// a name until all are accepted. If one is not, those before it are; the error names them.
func (s *submission) submitEach(ctx context.Context) error {
	po, err := s.open()
	if err != nil {
		return err
	}
	kept, err := os.CreateTemp("", "submit-")
	if err != nil {
		return err
	}
	defer kept.Close()
	if err := os.Remove(kept.Name()); err != nil {
		return err
	}
	if _, err := io.Copy(kept, s.text.rest); err != nil {
		return err
	}
	all, from := s.env.Recipients, s.env.From
	for i, r := range all {
		if err := ctx.Err(); err != nil {
			return errInterrupted
		}
		if _, err := kept.Seek(0, io.SeekStart); err != nil {
			return err
		}
		one := *s
		one.text = &text{header: s.text.header, end: s.text.end, rest: kept}
		one.env.Recipients = []envelope.Recipient{r}
		one.env.From = verpSender(from, r.Address, s.PerRecipient)
		draft, err := one.write(po)
		if err == nil {
			_, err = one.commit(draft)
		}
		if err != nil {
			return fmt.Errorf("accepted for the first %d of %d recipients, not for %s and those after it: %w", i, len(all), r.Address, err)
		}
	}
	return nil
}
