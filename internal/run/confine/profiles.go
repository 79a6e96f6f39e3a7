package confine

import "kernel.org/pub/linux/libs/security/libcap/cap"

// Profile is what a program may do. Outside of the postoffice it may read what its user may.
type Profile struct {
	// Write are directories below the postoffice where it does all; Read: where it opens
	// files; Add: where it may only put new ones. A * matches the rest of a name.
	Write, Read, Add []string
	// Caps are kept.
	Caps []cap.Value
	// Root: it stays uid 0, with Caps alone, because it becomes other users.
	Root bool
	// Free: it is not held to directories, since it works in other users'.
	Free bool
}

// profiles returns the daemons and agents that confine themselves. submit and zmctl run as
// whoever calls them and do not.
func profiles() map[string]Profile {
	return map[string]Profile{
		"smtpserver": {
			Write: []string{"public", "router", "router[0-9]*", "freezer", "ledger", "clients", "verify", "lastgood/smtpserver"},
			Read:  []string{"lastgood/router", "lastgood/ta-smtp", "sts", "suspended"}, // the first three: router --verify and ta-smtp --probe, which it starts
			Add:   []string{"transport"},                                               // ETRN: which host to start
		},
		"router": {
			Write: []string{"public", "router", "router[0-9]*", "queue", "transport", "deferred", "postman", "freezer", "owners", "quarantine", "ledger", "lastgood/router"},
		},
		// router --open-files: .forward and :include: files in directories that are closed to
		// others. It hears the router alone, and opens what closed.Policy has.
		"opener": {Caps: []cap.Value{cap.DAC_READ_SEARCH}},
		// smtpserver --open-keys, which opens addresses that a reload brings, too.
		"server-opener": {Caps: []cap.Value{cap.DAC_READ_SEARCH, cap.NET_BIND_SERVICE}},
		"scheduler":     {Write: []string{"."}}, // and for agents that it starts
		"ta-smtp": {
			Write: []string{"transport", "owners", "sts", "tlsrpt", "lastgood/ta-smtp"},
			Read:  []string{"queue"},
		},
		"ta-mailbox": {Root: true, Free: true, Caps: becoming()},
		// scheduler --start-agents, which starts agents as whom scheduler.conf says.
		"launcher": {Root: true, Free: true, Caps: append(becoming(), cap.SETPCAP, cap.SYS_NICE)},
	}
}

// becoming returns what is needed to work in other users' directories and to run programs as
// they.
func becoming() []cap.Value {
	return []cap.Value{cap.CHOWN, cap.DAC_OVERRIDE, cap.DAC_READ_SEARCH, cap.FOWNER, cap.FSETID, cap.KILL, cap.SETGID, cap.SETUID}
}
