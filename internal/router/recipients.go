package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/address"
	"zmailer/internal/envelope"
	"zmailer/internal/router/rules"
	"zmailer/internal/workspec"
)

// maxAddress bounds what is repeated of a recipient that is no address. Bytes.
const maxAddress = 300

// resolve finds the recipients of a message and where they go. Its error is a
// *rules.Trouble.
func (w *worker) resolve(l *letter) error {
	list := l.head.Recipients
	if len(list) == 0 {
		list = fromHeader(l.header.fields)
		l.fromLines = true
	}
	w.rcpts = w.rcpts[:0]
	tables := w.r.rules.Tables()
	for i := range list {
		if err := w.one(l, &list[i], tables); err != nil {
			return err
		}
	}
	if len(w.rcpts) < 2 {
		return nil
	}
	w.rcpts = unique(w.rcpts)
	// A thread's recipients stand together; within one they keep their order.
	slices.SortStableFunc(w.rcpts, func(a, b workspec.Recipient) int {
		return cmp.Or(cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Host, b.Host))
	})
	return nil
}

// one resolves one recipient of the envelope.
func (w *worker) one(l *letter, to *envelope.Recipient, tables *rules.Tables) error {
	m, err := address.Parse(to.Address)
	w.targets = w.targets[:0]
	switch {
	case err != nil:
		w.targets = append(w.targets, rules.Target{Channel: rules.Error, Host: rules.ErrBadAddress, User: printable(to.Address[:min(len(to.Address), maxAddress)]), Privilege: rules.Nobody})
	case l.header.received > maxReceived:
		w.targets = append(w.targets, rules.Target{Channel: rules.Error, Host: rules.ErrLoop, User: m.String(), Privilege: rules.Nobody})
	default:
		err = tables.Resolve(context.Background(), rules.Query{Recipient: m, Report: l.report}, func(t rules.Target) error {
			w.targets = append(w.targets, t)
			return nil
		})
		if err != nil {
			return err
		}
	}
	ret := strings.ToUpper(l.head.NotaryRet)
	if ret != "FULL" && ret != "HDRS" {
		ret = ""
	}
	dsn := to.DSN
	if rest, asked := withoutSuccess(dsn); asked && len(w.targets) > 1 && !m.IsNull() {
		// RFC 3461 §5.2.7: where one recipient becomes several, the sender who wants to
		// hear of success hears that, once, and not of each.
		expanded := rules.Target{Channel: rules.Bitbucket, Host: hostExpanded, User: m.String(), Privilege: rules.Nobody, Via: w.targets[0].Via}
		w.rcpts = append(w.rcpts, workspec.Recipient{
			Channel: expanded.Channel, Host: expanded.Host, Address: expanded.User, Privilege: privilegeText(expanded.Privilege),
			Notary: notary(dsn, &expanded, m), Ret: ret, EnvID: l.head.EnvID,
		})
		dsn = rest
	}
	for i := range w.targets {
		t := &w.targets[i]
		w.rcpts = append(w.rcpts, workspec.Recipient{
			Channel: t.Channel, Host: t.Host, Address: t.User, Privilege: privilegeText(t.Privilege),
			Notary: notary(dsn, t, m), Ret: ret, EnvID: l.head.EnvID,
		})
	}
	return nil
}

// hostExpanded is the host, on channel bitbucket, of a recipient that became several:
// the scheduler reports it as expanded (RFC 3464 §2.3.3).
const hostExpanded = "expanded"

// withoutSuccess takes SUCCESS out of the NOTIFY of a todsn line, and tells whether it
// was there. NEVER stays where nothing else was wanted.
func withoutSuccess(dsn string) (rest string, asked bool) {
	if !strings.Contains(strings.ToUpper(dsn), "SUCCESS") {
		return dsn, false
	}
	fields := strings.Fields(dsn)
	for i, f := range fields {
		key, value, ok := strings.Cut(f, "=")
		if !ok || !strings.EqualFold(key, "NOTIFY") {
			continue
		}
		words := strings.Split(value, ",")
		kept := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.EqualFold(w, "SUCCESS") })
		asked = asked || len(kept) < len(words)
		if len(kept) == 0 {
			kept = []string{"NEVER"}
		}
		fields[i] = key + "=" + strings.Join(kept, ",")
	}
	return strings.Join(fields, " "), asked
}

// notary is a target's N line. Where an alias was expanded and the sender gave no
// ORCPT, the address that the sender wrote is recorded, so that a report names what
// the sender knows (RFC 3461 §5.2.1).
func notary(dsn string, t *rules.Target, m address.Mailbox) string {
	if len(t.Via) == 0 || m.Domain == "" || strings.Contains(strings.ToUpper(dsn), "ORCPT=") {
		return dsn
	}
	orcpt := "ORCPT=rfc822;" + address.EncodeXText(m.String())
	if !m.IsASCII() {
		orcpt = "ORCPT=utf-8;" + unitext(m.String())
	}
	if dsn == "" {
		return orcpt
	}
	return dsn + " " + orcpt
}

// unitext is an address as ORCPT of type utf-8 has it: \x{HEX} for what would end it or
// mean something else (RFC 6533 §3 utf-8-addr-unitext).
func unitext(addr string) string {
	var b strings.Builder
	for _, r := range addr {
		if r <= ' ' || r == 0x7f || r == '+' || r == '=' || r == '\\' {
			fmt.Fprintf(&b, `\x{%X}`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// unique drops targets that came before. A domain's case makes no difference.
func unique(list []workspec.Recipient) []workspec.Recipient {
	type key struct{ channel, host, address string }
	seen := make(map[key]struct{}, len(list))
	return slices.DeleteFunc(list, func(r workspec.Recipient) bool {
		k := key{r.Channel, r.Host, r.Address}
		if r.Channel != rules.File && r.Channel != rules.Pipe {
			at := strings.LastIndexByte(k.address, '@') + 1
			k.address = k.address[:at] + strings.ToLower(k.address[at:])
		}
		_, again := seen[k]
		seen[k] = struct{}{}
		return again
	})
}

func privilegeText(uid uint32) string {
	if uid == rules.Nobody {
		return "65534"
	}
	return strconv.FormatUint(uint64(uid), 10)
}
