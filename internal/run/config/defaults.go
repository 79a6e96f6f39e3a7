package config

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

//go:embed default
var defaults embed.FS

// Files lists the configuration files, zmailer.conf first.
func Files() []string {
	return []string{"zmailer.conf", "scheduler.conf", "replies", "routes", "aliases", "fqdnaliases", "localnames"}
}

// Default returns the embedded default of one of Files, nil for another name.
func Default(file string) []byte {
	b, err := defaults.ReadFile("default/" + file)
	if err != nil {
		return nil
	}
	return b
}

// Path returns the path of a file beside zmailer.conf, "" if the embedded
// defaults are used: see Read.
func (c *Config) Path(file string) string {
	if c.Dir == "" {
		return ""
	}
	return filepath.Join(c.Dir, file)
}

// Read returns one of Files and its path for error messages. Where there is no
// configuration directory or no such file in it, the embedded default is given and
// from is "built-in NAME". A file that is there and cannot be read is an *Error.
func (c *Config) Read(file string) (content []byte, from string, err error) {
	path := c.Path(file)
	if path == "" {
		return Default(file), "built-in " + file, nil
	}
	content, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(file), "built-in " + file, nil
	}
	if perr := (*os.PathError)(nil); errors.As(err, &perr) {
		return nil, path, &Error{File: path, Reason: "cannot be read", Err: perr.Err}
	}
	return content, path, nil
}

// WriteDefaults writes the embedded default files that are missing in dir, and dir
// itself if need be; it never overwrites. Each setting, "NAME=value", takes the
// place of that variable's line in a new zmailer.conf.
func WriteDefaults(dir string, settings ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write default configuration: %w", err)
	}
	for _, file := range Files() {
		content := string(Default(file))
		if file == "zmailer.conf" {
			var err error
			if content, err = set(content, settings); err != nil {
				return err
			}
		}
		if err := writeNew(filepath.Join(dir, file), content); err != nil {
			return fmt.Errorf("write default configuration: %w", err)
		}
	}
	return nil
}

// set puts settings in the place of their commented lines.
func set(content string, settings []string) (string, error) {
	lines := strings.SplitAfter(content, "\n")
	for _, s := range settings {
		name, text, ok := strings.Cut(s, "=")
		v, known := lookup(name)
		if !ok || !known {
			return "", &Error{File: "command line", Reason: s + " sets no variable"}
		}
		if v.check != nil && text != "" {
			if err := v.check(text); err != nil {
				return "", &Error{File: "command line", Reason: s + " cannot be used", Err: err}
			}
		}
		for i := range lines {
			if strings.HasPrefix(strings.TrimPrefix(lines[i], "#"), name+"=") {
				lines[i] = name + "=" + quote(text) + "\n"
			}
		}
	}
	return strings.Join(lines, ""), nil
}

// writeNew makes a file with its whole content, or leaves the one that is there.
func writeNew(path, content string) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	// Crash: a temporary file whose name starts with a dot; nothing reads it.
	defer func() { err = errors.Join(err, os.Remove(tmp.Name())) }()
	_, err = tmp.WriteString(content)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	// Crash: the file is there with all its content, or not there. Link, because
	// rename would replace what somebody wrote meanwhile.
	if err := os.Link(tmp.Name(), path); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
