package mailbox

import (
	"strings"

	"zmailer/internal/stage/agent"
	"zmailer/internal/workspec"
)

// A tag, as in user+tag, changes nothing about where ta-mailbox puts a message. So
// recipients who are one user get one copy, and each of them the result of that one. The
// copy is named after the first of them in the file, whether that one is still open or not:
// another attempt, for those that are left, finds it under that name.

// copies parts recipients by the copies that they get, in the order of the first of each.
func copies(d *agent.Delivery) [][]*agent.Recipient {
	var out [][]*agent.Recipient
	places := map[*workspec.Recipient]int{}
	for _, r := range d.Recipients {
		lead := leadOf(d, r)
		i, known := places[lead]
		if !known {
			i = len(out)
			places[lead] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], r)
	}
	return out
}

// leadOf is the recipient after whom the copy is named that a recipient gets.
func leadOf(d *agent.Delivery, r *agent.Recipient) *workspec.Recipient {
	if !shares(d, r.Recipient, r.Group) {
		return r.Recipient
	}
	for i := range r.Group.Recipients {
		one := &r.Group.Recipients[i]
		if one.Host == r.Host && one.Offset <= r.Offset && shares(d, one, r.Group) {
			return one
		}
	}
	return r.Recipient
}

// shares reports whether a recipient may share a copy with others of its group. A sender
// that names the recipient (VERP) is written into the copy, and a loop is one recipient's alone.
func shares(d *agent.Delivery, r *workspec.Recipient, g *workspec.Group) bool {
	if r.Channel != "local" || !strings.Contains(r.Host, "@") || g.Sender.VERP != "" {
		return false
	}
	login, _ := cutAddress(r.Host)
	local, _ := cutAddress(r.Address)
	return (strings.EqualFold(local, login) || hasTag(local, login)) && loops(d, g, r.Address) == nil
}
