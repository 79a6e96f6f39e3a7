package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// calledAs gives the arguments as zmctl takes them, for one that is called by a name of
// sendmail's: mailq lists the queue; newaliases reports whether the tables can be used, which
// are read again by themselves when they change.
func calledAs(args []string) []string {
	switch filepath.Base(args[0]) {
	case "mailq":
		// sendmail's own options (-v, -Ac, -qQ) mean nothing here.
		rest := slices.DeleteFunc(slices.Clone(args[1:]), func(arg string) bool {
			return len(arg) > 1 && arg[0] == '-' && arg != "-h" && !strings.HasPrefix(arg, "--")
		})
		return append([]string{"zmctl", "queue", "--readable"}, rest...)
	case "newaliases":
		return []string{"zmctl", "check-config"}
	}
	return args
}
