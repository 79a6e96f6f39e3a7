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

// maxText is how much of a filter's reply is passed on. Bytes.
const maxText = 400

// reply reads a filter's own reply. Of several lines, each of which begins with the code
// again, one is made.
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
	var words []string
	for i, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if i > 0 && (strings.HasPrefix(line, digits+"-") || strings.HasPrefix(line, digits+" ")) {
			line = line[len(digits)+1:]
		}
		first, rest, _ := strings.Cut(line, " ")
		if c, ok := status.Parse(first); ok && int(c.Class) == int(code)/100 {
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
