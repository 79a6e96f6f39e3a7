package config

import "time"

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
