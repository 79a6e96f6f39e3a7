package inject

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
)

// Classes turns the objects of calls into classes: what differs from one message to
// the next becomes a letter. I is an inode number, P an owner, T a name that its maker
// chose; hash directories are left out, since a file means the same with and without.
//
// Below the postoffice: "public/T", "public/report.T", "router/I", "router/I-P",
// "router/..I-P", "router/.pickup.I.T", "queue/I-P", "transport/I-P",
// "transport/.copy.I-P", "owners/P", "deferred/I.why", "freezer/I.cause", "postman/I",
// "postman/I_why", "ledger/NAME", "clients/T", "clients/T.new", ".probe.T", a directory as "router/" and
// the postoffice as "./". Below the mailboxes: "mail/tmp/T", "mail/new/T", and other files
// "mail/T". "socket REPLY-OR-COMMAND", "socket final
// dot", "socket 250 queued" for smtpserver's answer to it, "pipe", "pipe #word". A file
// without a name that gets one is "unnamed". Everything else is named as it is.
type Classes struct {
	PostOffice string
	// Stores are directories that Maildirs and mbox files are in.
	Stores []string
}

var (
	hashDirs  = regexp.MustCompile(`^([A-Z](/|$))+`)
	digits    = regexp.MustCompile(`[0-9]+`)
	claim     = regexp.MustCompile(`[0-9]+-[0-9]+`)
	lastChunk = regexp.MustCompile(`^BDAT \d+ LAST`)
	smtpWord  = regexp.MustCompile(`^(?:[A-Z]{4}|250(?: 2\.0\.0 queued)?|[2-5]\d\d)\b`)
)

// pickup starts the name of a copy that a router makes of what a user has submitted, probe
// that of a file with which a daemon tries the file system at its start.
const (
	pickup = ".pickup."
	probe  = ".probe."
)

// Of returns the class of a path.
func (c Classes) Of(path string) string {
	path = strings.TrimSuffix(path, " (deleted)")
	if rel, ok := below(c.PostOffice, path); ok {
		return spool(rel)
	}
	for _, dir := range c.Stores {
		if rel, ok := below(dir, path); ok {
			return store(rel)
		}
	}
	switch {
	case strings.HasPrefix(path, "/proc/self/fd/"):
		return "unnamed"
	case strings.HasPrefix(path, "socket:"), strings.HasPrefix(path, "TCP"), strings.HasPrefix(path, "UNIX"), strings.HasPrefix(path, "UDP"):
		return "socket"
	case strings.HasPrefix(path, "pipe:"):
		return "pipe"
	}
	return path
}

func below(dir, path string) (string, bool) {
	if dir == "" {
		return "", false
	}
	rel, ok := strings.CutPrefix(filepath.Clean(path), filepath.Clean(dir))
	if !ok || rel != "" && rel[0] != '/' {
		return "", false
	}
	return strings.TrimPrefix(rel, "/"), true
}

// spool returns the class of a name below the postoffice.
func spool(rel string) string {
	if rel == "" {
		return "./"
	}
	dir, name, _ := strings.Cut(rel, "/")
	name = hashDirs.ReplaceAllString(name, "")
	if name == "" {
		if strings.HasPrefix(dir, probe) {
			return probe + "T"
		}
		if strings.HasPrefix(dir, ".") {
			return dir
		}
		return dir + "/"
	}
	switch dir {
	case "public":
		if strings.HasPrefix(name, "report.") {
			return "public/report.T"
		}
		return "public/T"
	case "owners":
		return "owners/P"
	case "quarantine", "removed":
		return dir + "/T"
	case "lastgood":
		return "lastgood/T"
	case "clients": // smtpserver's tables
		return "clients/T" + filepath.Ext(name)
	case "ledger":
		return dir + "/" + digits.ReplaceAllString(name, "N")
	}
	if strings.HasPrefix(name, pickup) {
		return dir + "/" + pickup + "I.T"
	}
	name = claim.ReplaceAllString(name, "I-P")
	return dir + "/" + digits.ReplaceAllString(name, "I")
}

// store returns the class of a name below the mailboxes. The first elements name a user.
func store(rel string) string {
	for _, sub := range []string{"tmp", "new", "cur"} {
		if i := strings.Index("/"+rel+"/", "/"+sub+"/"); i >= 0 {
			if strings.HasSuffix(rel, sub) {
				return "mail/" + sub + "/"
			}
			return "mail/" + sub + "/T"
		}
	}
	if rel == "" {
		return "mail/"
	}
	if ext := filepath.Ext(rel); ext != "" {
		return "mail/T" + ext
	}
	return "mail/T"
}

// Stream returns the class of bytes that go to a socket or pipe, given its class: a final
// dot, the word of an SMTP command, the code of a reply, the kind of a line between
// scheduler and agent.
func Stream(class string, head, tail []byte) string {
	if class == "pipe" {
		if len(head) > 0 && head[0] == '#' {
			word, _, _ := bytes.Cut(head, []byte("\n"))
			word, _, _ = bytes.Cut(word, []byte(" "))
			return "pipe " + string(word)
		}
		return class
	}
	if class != "socket" {
		return class
	}
	if bytes.HasSuffix(tail, []byte("\r\n.\r\n")) || string(head) == ".\r\n" || lastChunk.Match(head) {
		return "socket final dot"
	}
	if m := smtpWord.Find(head); m != nil {
		return "socket " + strings.Replace(string(m), " 2.0.0", "", 1)
	}
	return class
}
