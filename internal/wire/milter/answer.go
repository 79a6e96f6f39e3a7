package milter

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/mail/status"
)

// answer reads a filter's decision; false: the packet is none.
func answer(code byte, data []byte) (Answer, bool, error) {
	switch code {
	case ansContinue:
		return Answer{}, true, nil
	case ansAccept:
		return Answer{Action: Accept}, true, nil
	case ansReject:
		return Answer{Action: Reject}, true, nil
	case ansTempFail:
		return Answer{Action: TempFail}, true, nil
	case ansDiscard:
		return Answer{Action: Discard}, true, nil
	case ansShutdown, ansConnFail:
		return Answer{Action: Shutdown}, true, nil
	case ansSkip:
		return Answer{Action: skip}, true, nil
	case ansReply:
		a, err := reply(data)
		return a, true, err
	}
	return Answer{}, false, nil
}

// Limits of a reply that is passed on.
const (
	maxText  = 490 // bytes of a line; with code and status it fits RFC 5321 section 4.5.3.1.5
	maxLines = 32  // libmilter's MAXREPLYLINES
)

// reply reads a filter's own reply. Each of its lines begins with the code; the enhanced status
// code of the first is that of all.
func reply(data []byte) (Answer, error) {
	all, _, _ := bytes.Cut(data, []byte{0})
	digits, text := string(all[:min(len(all), 3)]), string(all[min(len(all), 3):])
	code, err := strconv.ParseUint(digits, 10, 16)
	r := Answer{Code: int(code)}
	switch {
	case err != nil || len(digits) != 3 || text != "" && !strings.ContainsAny(text[:1], " -\r\n"):
		return Answer{}, fmt.Errorf("%w: reply %.40q has no code", errProtocol, all)
	case code/100 == 4:
		r.Action = TempFail
	case code/100 == 5:
		r.Action = Reject
	default:
		return Answer{}, fmt.Errorf("%w: reply %d is neither 4xx nor 5xx", errProtocol, code)
	}
	if text != "" {
		text = text[1:]
	}
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' })
	for i, line := range lines[:min(len(lines), maxLines)] {
		if rest, ok := strings.CutPrefix(line, digits); i > 0 && ok && (rest == "" || rest[0] == '-' || rest[0] == ' ') {
			line = rest[min(len(rest), 1):]
		}
		line = r.cutStatus(line)
		// A percent sign is doubled for smfi_setreply.
		line = strings.ToValidUTF8(strings.ReplaceAll(line, "%%", "%"), "?")
		if len(line) > maxText {
			line = strings.ToValidUTF8(line[:maxText], "")
		}
		switch i {
		case 0:
			r.Text = line
		case 1:
			r.More = line
		default:
			r.More += "\n" + line
		}
	}
	return r, nil
}

// cutStatus removes the enhanced status code that a line of the reply begins with.
func (a *Answer) cutStatus(line string) string {
	first, rest, _ := strings.Cut(line, " ")
	c, ok := status.Parse(first)
	if !ok || int(c.Class) != a.Code/100 || a.Status != "" && first != a.Status {
		return line
	}
	a.Status = first
	return rest
}
