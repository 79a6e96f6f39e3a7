package policy

import (
	"fmt"
	"strings"

	"go.starlark.net/starlark"

	"zmailer/internal/mail/address"
	"zmailer/internal/table/text"
)

// actions returns the functions that make actions.
func actions() starlark.StringDict {
	d := starlark.StringDict{}
	for name, do := range map[Fate]func(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error{
		Accept: makeNothing, Drop: makeNothing, Route: makeRoute, Reject: makeReject, Freeze: makeFreeze, Defer: makeDefer,
		Redirect: makeAddresses, Copy: makeAddresses, AddHeader: makeAddHeader, RemoveHeader: makeRemoveHeader,
		SetSender: makeSetSender, Split: makeSplit,
	} {
		d[string(name)] = starlark.NewBuiltin(string(name), func(t *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
			a := &Action{Fate: name, pos: caller(t)}
			if err := do(a, b, args, kw); err != nil {
				return nil, fmt.Errorf("%s: %w", name, trim(err, b.Name()))
			}
			return a, nil
		})
	}
	return d
}

// trim drops the function's name that the library puts in front of its errors.
func trim(err error, name string) error {
	if s, ok := strings.CutPrefix(err.Error(), name+": "); ok {
		return fmt.Errorf("%s", s)
	}
	return err
}

func makeNothing(_ *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	return starlark.UnpackArgs(b.Name(), args, kw)
}

// ours are channels that the tables alone give: their privilege is a file's owner's.
func ours() map[string]string {
	return map[string]string{
		"local": "use redirect", "file": "use redirect to an alias", "pipe": "use redirect to an alias",
		"error": "use reject", "bitbucket": "use drop",
	}
}

func makeRoute(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	var to, host string
	if err := starlark.UnpackArgs(b.Name(), args, kw, "to", &to, "host?", &host); err != nil {
		return err
	}
	if len(args)+len(kw) > 1 {
		to += "!" + host
	}
	if len(to) > 300 {
		return fmt.Errorf("%d bytes are no route", len(to))
	}
	r, err := text.ParseRoute(to)
	if err != nil {
		return err
	}
	if instead := ours()[r.Channel]; instead != "" {
		return fmt.Errorf("channel %s is not for programs: %s", r.Channel, instead)
	}
	a.Channel, a.Host = r.Channel, r.Host
	return nil
}

func makeReject(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	if err := starlark.UnpackArgs(b.Name(), args, kw, "code", &a.Code, "text", &a.Text); err != nil {
		return err
	}
	if !isFailure(a.Code) {
		return fmt.Errorf("%.40q is no status code of a failure: want 5.X.Y, like 5.7.1 (RFC 3463)", a.Code)
	}
	if strings.TrimSpace(a.Text) == "" {
		return fmt.Errorf("the text is empty: the sender is to learn why")
	}
	return checkText(a.Text, 500)
}

// isFailure reads 5.X.Y.
func isFailure(s string) bool {
	part := strings.Split(s, ".")
	if len(part) != 3 || part[0] != "5" {
		return false
	}
	for _, p := range part[1:] {
		if p == "" || len(p) > 3 || strings.Trim(p, "0123456789") != "" || len(p) > 1 && p[0] == '0' {
			return false
		}
	}
	return true
}

func makeFreeze(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	if err := starlark.UnpackArgs(b.Name(), args, kw, "cause", &a.Cause, "text?", &a.Text); err != nil {
		return err
	}
	if a.Cause == "" || len(a.Cause) > 40 || strings.Trim(a.Cause, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("cause %.60q: want lower-case letters, digits and hyphens, at most 40", a.Cause)
	}
	if a.Text == "" {
		a.Text = a.Cause
	}
	return checkText(a.Text, 500)
}

func makeDefer(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	if err := starlark.UnpackArgs(b.Name(), args, kw, "text", &a.Text); err != nil {
		return err
	}
	return checkText(a.Text, 500)
}

// maxAddresses bounds one redirect.
const maxAddresses = 1000

func makeAddresses(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	if len(kw) > 0 {
		return fmt.Errorf("takes no keyword arguments")
	}
	list := []starlark.Value(args)
	if len(list) == 1 {
		switch l := list[0].(type) {
		case *starlark.List:
			list = nil
			for i := range l.Len() {
				list = append(list, l.Index(i))
			}
		case starlark.Tuple:
			list = l
		}
	}
	if len(list) == 0 || len(list) > maxAddresses {
		return fmt.Errorf("%d addresses: want one to %d", len(list), maxAddresses)
	}
	for _, v := range list {
		s, ok := starlark.AsString(v)
		if !ok {
			return fmt.Errorf("want addresses, got a value of type %s", v.Type())
		}
		m, err := address.Parse(s)
		if err == nil && m.IsNull() {
			err = fmt.Errorf("the null address is no recipient")
		}
		if err != nil {
			return err
		}
		a.Addresses = append(a.Addresses, m.String())
	}
	return nil
}

func makeAddHeader(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	if err := starlark.UnpackArgs(b.Name(), args, kw, "name", &a.Name, "value", &a.Value); err != nil {
		return err
	}
	return checkField(a.Name, a.Value, false)
}

func makeRemoveHeader(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	if err := starlark.UnpackArgs(b.Name(), args, kw, "name", &a.Name); err != nil {
		return err
	}
	return checkField(a.Name, "", true)
}

func makeSetSender(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	var s string
	if err := starlark.UnpackArgs(b.Name(), args, kw, "address", &s); err != nil {
		return err
	}
	m, err := address.Parse(s)
	if err != nil {
		return err
	}
	if m.IsNull() || m.Domain == "" {
		return fmt.Errorf("%q: want an address with its domain", s)
	}
	a.Name = m.String()
	return nil
}

func makeSplit(a *Action, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) error {
	if err := starlark.UnpackArgs(b.Name(), args, kw, "name", &a.Name); err != nil {
		return err
	}
	if a.Name == "" {
		return fmt.Errorf("the group has no name")
	}
	return checkText(a.Name, 100)
}
