package act

import (
	"os"
	"os/user"
	"strconv"
	"strings"

	"zmailer/internal/run/human"
)

// Who returns the operator, as one word for the history of a message: the user of this
// process, after the user of sudo(8). by comes before them: a user of another program that
// acts for its users, as zmweb does.
func Who(by string) string {
	name := "uid" + strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
		name = u.Username
	}
	for _, before := range []string{os.Getenv("SUDO_USER"), by} {
		if before != "" {
			name = before + "/" + name
		}
	}
	return strings.Join(strings.Fields(human.Clean(name)), "_")
}
