package engine

import (
	"log/slog"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/workspec"
)

// wayAttrs appends what an answer has of the way to a recipient: the server, what protected
// the connection, and the address that the sender wrote where it was another one.
func wayAttrs(list []slog.Attr, n *workspec.Notary) []slog.Attr {
	if relay := relayOf(n.Remote); relay != "" {
		list = append(list, slog.String("relay", relay))
	}
	for rest := n.Way; rest != ""; {
		var word string
		word, rest, _ = strings.Cut(rest, " ")
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "orig-rcpt":
			if plain, err := address.DecodeXText(value); err == nil {
				list = append(list, slog.String(key, plain))
			}
		case "tls", "cipher":
			list = append(list, slog.String(key, value))
		case "verified":
			list = append(list, slog.Bool(key, value == "true"))
		}
	}
	return list
}

// originAttrs appends where a message came from.
func originAttrs(list []slog.Attr, o *store.Origin) []slog.Attr {
	list = append(list, slog.String("from", o.From))
	if strings.HasPrefix(o.MessageID, "<") {
		list = append(list, slog.String("message-id", o.MessageID))
	}
	if client, ok := envelope.ClientAddress(o.Client); ok {
		text := client.String()
		if client.Port() == 0 {
			text = client.Addr().String()
		}
		list = append(list, slog.String("client", text))
	}
	if o.ClientName != "" {
		list = append(list, slog.String("client-name", o.ClientName))
	}
	if user, err := address.DecodeXText(o.User); err == nil && user != "" {
		list = append(list, slog.String("user", user))
	}
	return list
}

// relayOf returns the server of a Remote-MTA as Postfix's log has it, name[address]:port.
// ZMailer's agents and ours put both ends of the connection behind the name.
func relayOf(remote string) string {
	kind, name, ok := strings.Cut(remote, "; ")
	if !ok {
		return ""
	}
	if strings.EqualFold(kind, "x-unix") {
		return "unix:" + name
	}
	name, ends, ok := strings.Cut(name, " (")
	if !ok {
		return name
	}
	host, ends, _ := strings.Cut(strings.TrimSuffix(ends, ")"), "|")
	port, _, _ := strings.Cut(ends, "|")
	if strings.HasPrefix(name, "[") {
		name = host
	}
	return name + "[" + host + "]:" + port
}
