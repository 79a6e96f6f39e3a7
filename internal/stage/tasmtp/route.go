package tasmtp

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/tasmtp/mx"
)

// refusal is why there is no connection to a destination: the result of all its
// recipients. Of several, that of the greatest weight is told.
type refusal struct {
	outcome status.Outcome
	code    status.Code
	weight  weight
	reply   string // one line
	remote  string // "" if nobody was reached
	text    string // dialogue
	silent  bool   // the address kept us waiting for its answer
	plain   bool   // TLS was not to be had; the same address may be asked without
	crowded bool   // no address was tried, since others wait for the answers of all
	mine    bool   // only for what the message or its sender wants: others may have the host
}

// weight orders refusals: what may be over later comes before what never changes,
// what a server said before what is merely silent.
type weight uint8

const (
	weightPermanent weight = iota
	weightLookup
	weightConnect
	weightOurs // we could not try
	weightServer
)

// worse is the one of two refusals to tell; the later one of the same weight, of an address
// that was tried. Where one
// server refuses this message alone, others may have that one, whatever the next says.
func worse(old, latest *refusal) *refusal {
	told, other := latest, old
	if old != nil && (old.weight > latest.weight || old.weight == latest.weight && latest.crowded) {
		told, other = old, latest
	}
	if other != nil && other.mine && !told.mine {
		both := *told // others may hold it
		both.mine = true
		return &both
	}
	return told
}

func never(code status.Code, reply string) *refusal {
	return &refusal{outcome: status.Failed, code: code, weight: weightPermanent, reply: reply}
}

// Codes that package status has no name for.
var (
	neverMail = status.Code{Class: 5, Subject: 3, Detail: 2}  // RFC 3463 §3.4: the system is not accepting network messages
	noMail    = status.Code{Class: 5, Subject: 1, Detail: 10} // RFC 7505 §4.2
	noRoute   = status.Code{Class: 5, Subject: 4, Detail: 4}  // RFC 3463 §3.5: no server can be found
	badSetup  = status.Code{Class: 4, Subject: 3, Detail: 5}  // RFC 3463 §3.4: the system is configured wrongly
	notNow    = status.Code{Class: 4, Subject: 3, Detail: 2}  // the system takes no messages
)

// lookupRefusal is the result of a lookup that gave nothing.
func lookupRefusal(err error) *refusal {
	switch mx.KindOf(err) {
	case mx.NoDomain:
		return never(status.BadDomain, err.Error())
	case mx.NullMX:
		return never(noMail, err.Error())
	case mx.NoServer:
		return never(noRoute, err.Error())
	}
	return &refusal{code: status.RoutingTrouble, weight: weightLookup, reply: err.Error()}
}

// server is one that takes a destination's mail. Its addresses serve as well as each
// other.
type server struct {
	name  string // lower case; "" if the destination was given as an address or a socket
	addrs []target
}

// servers gives those of a destination in the order in which they are to be tried. One
// is looked up when it is its turn; one that cannot be found is yielded as a refusal,
// and the next follows.
func (r *Relay) servers(ctx context.Context, d *destination) iter.Seq2[server, *refusal] {
	return func(yield func(server, *refusal) bool) {
		switch {
		case d.unix != "":
			yield(server{addrs: []target{{network: "unix", address: d.unix}}}, nil)
		case d.addr.IsValid():
			yield(server{addrs: []target{d.target("", d.addr)}}, nil)
		case !d.mx:
			addrs, err := r.resolver.LocalAddrs(ctx, d.name)
			yield(d.server(d.name, addrs, err))
		default:
			r.mxServers(ctx, d, yield)
		}
	}
}

func (r *Relay) mxServers(ctx context.Context, d *destination, yield func(server, *refusal) bool) {
	hosts, err := r.resolver.Hosts(ctx, d.name)
	if err != nil {
		yield(server{}, lookupRefusal(err))
		return
	}
	hosts = beforeSelf(hosts, r.hostname)
	if len(hosts) == 0 {
		yield(server{}, never(status.RoutingLoop, "mail for "+d.name+" loops back to "+r.hostname))
		return
	}
	for i, h := range hosts {
		addrs, err := r.resolver.Addrs(ctx, h.Name)
		if j := slices.IndexFunc(addrs, func(a netip.Addr) bool { return r.own.has(a, d.port) }); err == nil && j >= 0 {
			// This host under another name: the servers that are left are no better.
			if i == 0 {
				yield(server{}, never(status.RoutingLoop, fmt.Sprintf("mail for %s loops back to %s: %s has our address %s", d.name, r.hostname, h.Name, addrs[j])))
			}
			return
		}
		if !yield(d.server(h.Name, addrs, err)) {
			return
		}
	}
}

// server is one of a destination's with the addresses that were found for it.
func (d *destination) server(name string, addrs []netip.Addr, err error) (server, *refusal) {
	if err != nil {
		why := lookupRefusal(err)
		if name != d.name && why.weight == weightPermanent {
			why.code = noRoute // the domain is good, its server is not
		}
		return server{name: name}, why
	}
	s := server{name: name, addrs: make([]target, len(addrs))}
	for i, a := range addrs {
		s.addrs[i] = d.target(name, a)
	}
	return s, nil
}

// beforeSelf drops this host and every server that is not better than it: mail that
// it relayed to them would come back (RFC 5321 §5.1).
func beforeSelf(hosts []mx.Host, self string) []mx.Host {
	i := slices.IndexFunc(hosts, func(h mx.Host) bool { return h.Name == self })
	if i < 0 {
		return hosts
	}
	return slices.DeleteFunc(slices.Clone(hosts), func(h mx.Host) bool { return h.Preference >= hosts[i].Preference })
}
