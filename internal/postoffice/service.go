package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
)

// QuerySocket is the name of the scheduler's query socket in the postoffice.
const QuerySocket = ".mailq"

// RatesSocket is the socket on which smtpserver answers how much of its rates is used.
const RatesSocket = ".rates"

// FreezeFlag is the file that keeps daemons from being started.
const FreezeFlag = ".freeze"

// LogFile is the log of daemons in the background, unless LOGFILE names another.
const LogFile = "log"

// Frozen reports whether daemons must not be started, and why. A flag that cannot be read
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

// ThawService takes the flag away and reports whether it was set.
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

// AlarmFile holds what needs an operator, a line for each alarm; the scheduler writes it.
const AlarmFile = "alarms"

// Standing is the messages of one directory.
type Standing struct {
	Count  int
	Oldest time.Time // zero: there is none
	// Linked are the names of those that have another name, too.
	Linked []string
}

// Standing counts the messages in router/, deferred/ or freezer/, and in public/ those
// that are accepted and were not moved on. It reads each file's inode.
func (p *PostOffice) Standing(dir string) (Standing, error) {
	var s Standing
	err := durable.ReadDirFunc(p.fs, dir, func(part []durable.Entry) error {
		for _, e := range part {
			if dir != Public && (e.Name[0] < '0' || e.Name[0] > '9') {
				continue
			}
			info, err := p.fs.Stat(dir + "/" + e.Name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it has moved on
			}
			if err != nil {
				return err
			}
			if !info.Mode.IsRegular() || dir == Public && info.Mode&0o100 == 0 {
				continue
			}
			s.Count++
			if info.Nlink > 1 {
				s.Linked = append(s.Linked, e.Name)
			}
			if s.Oldest.IsZero() || info.ModTime.Before(s.Oldest) {
				s.Oldest = info.ModTime
			}
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("look at %s: %w", dir, err)
	}
	return s, nil
}

// WriteAlarms replaces the file of alarms; without content there is none.
func (p *PostOffice) WriteAlarms(content []byte) error {
	if len(content) == 0 {
		// Crash: the next look writes or removes it again.
		if err := p.remove(AlarmFile); err != nil {
			return fmt.Errorf("remove %s: %w", AlarmFile, err)
		}
		return nil
	}
	const next = AlarmFile + ".new"
	f, err := p.fs.Open(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", AlarmFile, err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		// Crash: the old alarms, the new ones, or after a power loss none; the next look
		// writes them again.
		err = p.fs.Rename(next, AlarmFile)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", AlarmFile, err)
	}
	return nil
}

// ReadAlarms returns the file of alarms, nothing if there is none.
func (p *PostOffice) ReadAlarms() ([]byte, error) {
	b, err := p.readAll(AlarmFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrGone) {
		return nil, nil
	}
	return b, err
}
