package submit

import (
	"path/filepath"
	"slices"
	"strings"
)

// The options of Postfix's, Sendmail's, Exim's and ssmtp's sendmail, as a
// getopt(3) string has them. Those without a meaning here are accepted and dropped, so
// that programs written for one of them work. docs/submit.md has all of them in a table.
const (
	plainKept     = "itv"                  // no argument
	plainDropped  = "46cEGmnsUxY"          // no argument
	valueKept     = "fFNRVBbP"             // argument attached or the next one
	valueDropped  = "DeLMOp"               // the same
	optionalValue = "adST"                 // argument attached or none; dropped
	eximMacros    = "a aa ai as i m r s t" // -oM and one of these: the next argument is the value
)

// NormaliseArgs takes the arguments of a sendmail-like command apart into a form that a
// plain flag parser reads: clusters such as -ti and -fADDRESS become single options with
// their value after them, -r becomes -f, -oi becomes -i, -I becomes -b i, -qIID becomes
// --q=IID, -XV becomes --verp, and options without meaning here (other -o settings, -em,
// -h COUNT) is dropped. Options and recipients may be mixed; the recipients are put last,
// after "--", so that none of them is taken for an option. takesValue reports which long
// options are followed by a value. args does not hold the program's name.
func NormaliseArgs(args []string, takesValue func(long string) bool) []string {
	n := normaliser{in: args}
	for len(n.in) > 0 {
		word := n.in[0]
		n.in = n.in[1:]
		switch {
		case word == "--":
			n.recipients = append(n.recipients, n.in...)
			n.in = nil
			n.ended = true
		case len(word) < 2 || word[0] != '-':
			n.recipients = append(n.recipients, word)
		case word[1] == '-':
			n.long(word, takesValue)
		default:
			n.cluster(word[1:])
		}
	}
	if n.missing || len(n.recipients) == 0 && !n.ended {
		return n.out
	}
	return slices.Concat(n.out, []string{"--"}, n.recipients)
}

type normaliser struct {
	in, out, recipients []string
	ended               bool // there was a "--"
	missing             bool // the last option has no value; nothing may follow that could be taken for it
}

func (n *normaliser) long(word string, takesValue func(string) bool) {
	n.out = append(n.out, word)
	name, _, attached := strings.Cut(word[2:], "=")
	if !attached && takesValue(name) {
		n.append(n.value(""))
	}
}

// append adds the value of the last option.
func (n *normaliser) append(v string, ok bool) {
	if ok {
		n.out = append(n.out, v)
	}
	n.missing = !ok
}

// cluster reads the options after one dash.
func (n *normaliser) cluster(options string) {
	for options != "" {
		option, rest := options[:1], options[1:]
		switch {
		case strings.Contains(plainKept, option):
			n.out = append(n.out, "-"+option)
		case strings.Contains(plainDropped, option):
		case option == "I":
			n.out = append(n.out, "-b", "i")
		default:
			n.valued(option, rest)
			return
		}
		options = rest
	}
}

// valued reads an option that takes the rest of its argument.
func (n *normaliser) valued(option, rest string) {
	switch {
	case strings.Contains(optionalValue, option):
	case option == "A":
		// -Am, -Ac, also with a blank.
		if rest == "" && len(n.in) > 0 && (n.in[0] == "m" || n.in[0] == "c") {
			n.in = n.in[1:]
		}
	case option == "C":
		// Others' configuration files mean nothing here; ours does.
		if v, _ := n.value(rest); filepath.Base(v) == "zmailer.conf" {
			n.out = append(n.out, "--config", v)
		}
	case option == "X":
		if delimiters, ok := strings.CutPrefix(rest, "V"); ok {
			if delimiters == "" {
				delimiters = "+="
			}
			n.out = append(n.out, "--verp="+delimiters)
			return
		}
		n.value(rest)
	case option == "q":
		n.out = append(n.out, "--q="+rest)
	case option == "o":
		n.setting(rest)
	case option == "h":
		n.hops(rest)
	case option == "r":
		n.keep("-f", rest)
	case strings.Contains(valueKept, option):
		n.keep("-"+option, rest)
	case strings.Contains(valueDropped, option):
		n.value(rest)
	case option == "-":
		// Within a cluster it must not begin a long option.
		n.out = append(n.out, "-?")
	default:
		// The flag parser reports that it does not know it.
		n.out = append(n.out, "-"+option+rest)
	}
}

// setting reads -o: of Sendmail's settings only i has a meaning. Exim's -oMr and its like
// are followed by a value.
func (n *normaliser) setting(rest string) {
	v, _ := n.value(rest)
	if strings.HasPrefix(v, "i") {
		n.out = append(n.out, "-i")
	}
	if name, ok := strings.CutPrefix(v, "M"); ok && slices.Contains(strings.Fields(eximMacros), name) {
		n.value("")
	}
}

// keep returns an option and its value; without one the flag parser complains.
func (n *normaliser) keep(option, attached string) {
	n.out = append(n.out, option)
	n.append(n.value(attached))
}

// value returns the value attached to an option, or the next argument.
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
