// Package config reads zmailer.conf: NAME=value lines, as ZMailer's ZCONFIG file
// has them, and gives typed values. The other configuration files (scheduler.conf,
// routes, aliases, fqdnaliases, localnames) are beside it; a default of each is
// in the programs, so that they run with no configuration at all.
//
//	c, err := config.Load("/etc/zmailer/zmailer.conf")
//	wait, err := c.Duration("ROUTERPOLL", time.Minute)
//
// It owns the directory of zmailer.conf only while WriteDefaults runs. What
// survives a crash there: each file is whole or absent; what exists is not touched.
//
// Diagnostics: *Error names file, line, column, reason and remedy; a program that gets one
// prints it and exits with ExitConfig. Load joins all errors of the file (see Errors), and
// returns the settings that can be used with them.
package config

import "fmt"

// Exit codes, sysexits(3).
const (
	ExitUsage    = 64
	ExitOSErr    = 71
	ExitIOErr    = 74
	ExitTempFail = 75
	ExitConfig   = 78
)

// Error is a configuration that cannot be used.
type Error struct {
	File   string
	Line   int // 0: the file as a whole
	Column int // in characters from 1; 0: the whole line
	Reason string
	Err    error  // may be nil
	Remedy string // what the operator does about it; may be empty
	// Warning: the rest can be used as it is, and this is hardly meant.
	Warning bool
}

func (e *Error) Error() string {
	s := e.File
	if e.Line > 0 {
		s = fmt.Sprintf("%s:%d", s, e.Line)
		if e.Column > 0 {
			s = fmt.Sprintf("%s:%d", s, e.Column)
		}
	}
	s += ": "
	if e.Warning {
		s += "warning: "
	}
	s += e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Config is a read configuration.
type Config struct {
	File string // absolute path of zmailer.conf; "" if the embedded default is used
	Dir  string // where the other files are; "" if the embedded defaults are used

	values  map[string]value
	source  []byte // of File
	retired []*Error
	doubled []*Error
	keeper  Keeper
	onRead  func(name string) // nil: reads are not observed
}

// Retired returns the settings of the file that are read and ignored, with the reason.
func (c *Config) Retired() []*Error { return c.retired }

// Doubled returns the settings of the file that a later line sets again: the later one counts.
// A line that extends the value before, like RELAYNETS="${RELAYNETS} 192.0.2.0/24", is none.
func (c *Config) Doubled() []*Error { return c.doubled }

// value is one setting and where it was made.
type value struct {
	text  string
	file  string // of the error message
	line  int    // 0: the command line or the environment
	fixed bool   // the file cannot change it
}
