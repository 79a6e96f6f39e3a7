package postoffice

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// AskStart asks the scheduler to try a host now, whatever it waits for, by a file in
// transport/ with a T line and no recipients (M14, docs/workspec.md). It is for who
// cannot reach the scheduler's query socket: one that does not run finds the file when
// it starts. host is one word.
func (p *PostOffice) AskStart(host string) error {
	if host == "" || strings.ContainsAny(host, " \t\r\n\x00") {
		return fmt.Errorf("ask for the start of %q: it is not one word", host)
	}
	if err := p.askStart(host); err != nil {
		return fmt.Errorf("ask for the start of %s: %w", host, err)
	}
	return nil
}

func (p *PostOffice) askStart(host string) error {
	name := draftName(Public, "start")
	// Crash: a draft, swept when it is old; nobody was told that the host is started.
	f, err := p.fs.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte("T " + host + "\n"))
	info, serr := f.Stat()
	if err = errors.Join(err, serr, f.Close()); err == nil {
		// Crash: as before, or the whole request. It is not synced: what it asks for is
		// asked again.
		err = p.move(name, Transport+"/"+inodeName(info.Ino))
	}
	if err != nil {
		return errors.Join(err, p.remove(name))
	}
	return nil
}
