package milter

import (
	"fmt"
	"strings"

	"github.com/emersion/go-milter"

	"zmailer/internal/mail/status"
)

// answer reads what the library gives.
func (s *Session) answer(a *milter.Action) (Answer, error) {
	switch a.Code {
	case milter.ActContinue:
		return Answer{}, nil
	case milter.ActAccept:
		return Answer{Action: Accept}, nil
	case milter.ActReject:
		return Answer{Action: Reject}, nil
	case milter.ActTempFail:
		return Answer{Action: TempFail}, nil
	case milter.ActDiscard:
		return Answer{Action: Discard}, nil
	case milter.ActReplyCode:
		return s.reply(a.SMTPCode, a.SMTPText)
	}
	return Answer{}, s.trouble("", fmt.Errorf("answer %q is none", byte(a.Code)))
}

// maxText is how much of a filter's reply is passed on. Bytes.
const maxText = 400

// reply reads a filter's own reply. Of several lines, each of which begins with the code
// again, one is made.
func (s *Session) reply(code int, text string) (Answer, error) {
	r := Answer{Code: code}
	switch code / 100 {
	case 4:
		r.Action = TempFail
	case 5:
		r.Action = Reject
	default:
		return Answer{}, s.trouble("", fmt.Errorf("reply %d is neither 4xx nor 5xx", code))
	}
	var words []string
	for i, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if begin := fmt.Sprint(code); i > 0 && (strings.HasPrefix(line, begin+"-") || strings.HasPrefix(line, begin+" ")) {
			line = line[len(begin)+1:]
		}
		first, rest, _ := strings.Cut(line, " ")
		if c, ok := status.Parse(first); ok && int(c.Class) == code/100 {
			r.Status, line = first, rest
		}
		// A percent sign is doubled for smfi_setreply.
		words = append(words, strings.ReplaceAll(line, "%%", "%"))
	}
	r.Text = strings.ToValidUTF8(strings.Join(words, " "), "?")
	if len(r.Text) > maxText {
		r.Text = strings.ToValidUTF8(r.Text[:maxText], "")
	}
	return r, nil
}
