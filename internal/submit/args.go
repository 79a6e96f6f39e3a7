package submit

import "strings"

// Letters of sendmail's options, as its getopt(3) string has them. The ones that
// mean nothing here are read and dropped, so that programs written for sendmail need
// not know where they are.
const (
	plainKept     = "itv"      // no argument
	plainDropped  = "cGImnsUY" // no argument
	valueKept     = "fFNRVBbP" // argument attached or the next one
	valueDropped  = "CDeLMOpX" // the same
	optionalValue = "Adq"      // argument attached or none; dropped
)

// NormaliseArgs takes the arguments of a sendmail-like command apart into a form
// that a plain flag parser reads: clusters such as -ti and -fADDRESS become single
// letters with their value behind them, -r becomes -f, -oi becomes -i, and what has
// no meaning here (other -o settings, -em, -h COUNT, -q) goes. Options end at the
// first argument without dash, as for sendmail; "--" is put before it, so that a
// recipient never turns into an option. takesValue tells which long options are
// followed by a value. args does not hold the program's name.
func NormaliseArgs(args []string, takesValue func(long string) bool) []string {
	n := normaliser{in: args}
	for len(n.in) > 0 {
		word := n.in[0]
		if word == "--" {
			return append(n.out, n.in...)
		}
		if len(word) < 2 || word[0] != '-' {
			return append(append(n.out, "--"), n.in...)
		}
		n.in = n.in[1:]
		if word[1] == '-' {
			n.long(word, takesValue)
			continue
		}
		n.cluster(word[1:])
	}
	return n.out
}

type normaliser struct {
	in, out []string
}

func (n *normaliser) long(word string, takesValue func(string) bool) {
	n.out = append(n.out, word)
	name, _, attached := strings.Cut(word[2:], "=")
	if !attached && takesValue(name) {
		if v, ok := n.value(""); ok {
			n.out = append(n.out, v)
		}
	}
}

// cluster reads the letters behind one dash.
func (n *normaliser) cluster(letters string) {
	for letters != "" {
		letter, rest := letters[:1], letters[1:]
		switch {
		case strings.Contains(plainKept, letter):
			n.out = append(n.out, "-"+letter)
		case strings.Contains(plainDropped, letter):
		case strings.Contains(optionalValue, letter):
			return
		case letter == "o":
			if v, _ := n.value(rest); strings.HasPrefix(v, "i") {
				n.out = append(n.out, "-i")
			}
			return
		case letter == "h":
			n.hops(rest)
			return
		case letter == "r":
			n.keep("-f", rest)
			return
		case strings.Contains(valueKept, letter):
			n.keep("-"+letter, rest)
			return
		case strings.Contains(valueDropped, letter):
			n.value(rest)
			return
		default:
			// The flag parser says that it does not know it.
			n.out = append(n.out, "-"+letters)
			return
		}
		letters = rest
	}
}

// keep gives an option and its value; without one the flag parser complains.
func (n *normaliser) keep(option, attached string) {
	n.out = append(n.out, option)
	if v, ok := n.value(attached); ok {
		n.out = append(n.out, v)
	}
}

// value is what is attached to an option, or the next argument.
func (n *normaliser) value(attached string) (string, bool) {
	if attached != "" {
		return attached, true
	}
	if len(n.in) == 0 {
		return "", false
	}
	v := n.in[0]
	n.in = n.in[1:]
	return v, true
}

// hops drops sendmail's -h COUNT; -h alone asks for help.
func (n *normaliser) hops(attached string) {
	if isNumber(attached) {
		return
	}
	if attached == "" && len(n.in) > 0 && isNumber(n.in[0]) {
		n.in = n.in[1:]
		return
	}
	n.out = append(n.out, "-h"+attached)
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
