package docs

import (
	"regexp"
	"strings"
)

// ours and theirs are the words that commands of the pages begin with.
const (
	ours   = `zmctl|zmtop|submit|smtpserver|router|scheduler|ta-smtp|ta-mailbox|lookup|sendmail|mailq|newaliases`
	theirs = `make|go|git|sudo|apt|apt-get|apt-cache|dnf|dpkg|dpkg-deb|rpm|systemctl|systemd-[a-z]+|journalctl|useradd|usermod|adduser|` +
		`curl|wget|openssl|dig|ss|strace|tar|rsync|cp|mv|rm|ln|ls|cat|head|tail|wc|sort|find|grep|sed|awk|chmod|chown|mkdir|rmdir|touch|df|du|` +
		`echo|printf|export|cd|kill|ps|vi|crontab|setfacl|mount|umount|postqueue|postsuper|postcat|postconf|exim|exim4|swaks|telnet|nc`
)

// command is a line that is typed: a program's name with one blank behind it, and before it
// perhaps root's prompt, a directory and settings for it alone. In a table of values or a
// configuration file there are more blanks, or a colon.
var command = regexp.MustCompile(`^(?:# )?(?:[A-Z_]+=\S* )*(?:\. <\(|[\w./~-]*/)?(?:` + ours + `|` + theirs + `)(?:$| [^ :=|─-╿])`)

// loose returns the commands of a block that nothing runs: the lines behind prompts, or if
// there are none, those that look like commands.
func loose(first int, list []string) []step {
	prompt := false
	for _, line := range list {
		prompt = prompt || strings.HasPrefix(strings.TrimSpace(line), "$ ")
	}
	var found []step
	for i, line := range list {
		line = strings.TrimSpace(line)
		if prompt && strings.HasPrefix(line, "$ ") || !prompt && command.MatchString(line) {
			found = append(found, step{line: first + i, text: line})
		}
	}
	return found
}
