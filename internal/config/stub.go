package config

import (
	"time"

	"github.com/urfave/cli/v2"
)

// Flags are the flags that every program has: --postoffice (POSTOFFICE), --config
// (ZCONFIG, path of zmailer.conf), --log-format, --log-level.
func Flags() []cli.Flag { panic("stub") }

// FromCLI loads the configuration that the flags name. --postoffice overrides the
// file's POSTOFFICE.
func FromCLI(c *cli.Context) (*Config, error) { panic("stub") }

// Main runs a program: it prints an error to standard error as "program: error" and
// exits with Exit's code; nil exits 0.
func Main(app *cli.App) { panic("stub") }

// Exit is the exit code for an error: ExitConfig for an *Error, the code of a
// cli.ExitCoder, else 1.
func Exit(err error) int { panic("stub") }

// PostOffice is the postoffice directory.
func (c *Config) PostOffice() string { panic("stub") }

// Load reads the file. An empty path gives the embedded default configuration.
func Load(path string) (*Config, error) { panic("stub") }

// String is a value, def if it is not set. ${NAME} refers to earlier values.
func (c *Config) String(name, def string) string { panic("stub") }

// Int, Bool, Duration and Size fail with an *Error that names the line.
func (c *Config) Int(name string, def int) (int, error)    { panic("stub") }
func (c *Config) Bool(name string, def bool) (bool, error) { panic("stub") }

// Duration reads "1h5m20s", "3d", "90" (seconds).
func (c *Config) Duration(name string, def time.Duration) (time.Duration, error) { panic("stub") }

// Size reads bytes: "100M", "64k", "1G", "1000".
func (c *Config) Size(name string, def int64) (int64, error) { panic("stub") }

// List splits at commas and blanks.
func (c *Config) List(name string) []string { panic("stub") }

// Path is the path of a file that stands beside zmailer.conf.
func (c *Config) Path(file string) string { panic("stub") }
