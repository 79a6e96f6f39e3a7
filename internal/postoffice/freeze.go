package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// FreezeFlag is the file that keeps daemons from being started.
const FreezeFlag = ".freeze"

// LogFile is the log of daemons in the background, unless LOGFILE names another.
const LogFile = "log"

// Frozen tells whether daemons must not be started, and why. A flag that cannot be read
// counts.
func (p *PostOffice) Frozen() (why string, frozen bool) {
	text, err := p.readAll(FreezeFlag)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", false
	case err != nil:
		return err.Error(), true
	}
	return strings.TrimSpace(string(text)), true
}

// FreezeService sets the flag. One that is set already stays as it is: errors.Is
// fs.ErrExist.
func (p *PostOffice) FreezeService(why string) error {
	f, err := p.fs.Open(FreezeFlag, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("freeze the service: %w", err)
	}
	_, err = f.WriteAt([]byte(why+"\n"), 0)
	// Crash: a flag without its text counts as well; one that is gone is set again.
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("freeze the service: %w", err)
	}
	return nil
}

// ThawService takes the flag away and tells whether it was set.
func (p *PostOffice) ThawService() (bool, error) {
	// Crash: the flag is there still, and daemons do not start: say it again.
	err := p.fs.Remove(FreezeFlag)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("thaw the service: %w", err)
	}
	return true, nil
}
