package settings

import (
	"fmt"
	"strings"
)

// Redis is what a redis: source asks.
type Redis struct {
	Servers  []Server // tried in this order
	TLS      bool
	CAFile   string
	User     string
	Password string
	Database int
	Command  []string // with %s, %u and %d in its arguments
}

// ReadRedis reads the settings of a redis: source.
func ReadRedis(open Open, path string) (Redis, error) {
	f, err := read(open, path, "hosts", "user", "password", "password_file", "database", "command", "tls", "ca_file")
	if err != nil {
		return Redis{}, err
	}
	c := Redis{
		TLS:      f.word("tls", "no", "yes") == "yes",
		CAFile:   f.abs(f.get("ca_file")),
		User:     f.get("user"),
		Password: f.secret("password", "password_file"),
		Command:  strings.Fields(f.need("command", "GET aliases:%s or HGET aliases %s")),
	}
	if f.get("database") != "" && f.get("database") != "0" {
		c.Database = f.number("database", 0)
	}
	for _, text := range strings.Fields(f.need("hosts", "HOST, HOST:PORT or unix:PATH; more are tried in their order")) {
		server, err := parseServer(text, "6379")
		if err != nil {
			f.bad(f.values["hosts"].line, fmt.Sprintf("hosts: %v", err))
		}
		c.Servers = append(c.Servers, server)
	}
	if len(c.Command) > 0 {
		line := f.values["command"].line
		if strings.Contains(c.Command[0], "%") {
			f.bad(line, "command: its first word is the command itself and has no place for a key")
		}
		f.checkPlaces("command", strings.Join(c.Command[1:], " "))
	}
	if c.User != "" && c.Password == "" {
		f.bad(f.values["user"].line, "user without a password")
	}
	return c, f.err()
}

// Words returns the command for a key. Each word of the setting stays one argument, whatever
// the key holds.
func (c Redis) Words(key string) []string {
	words := make([]string, len(c.Command))
	for i, word := range c.Command {
		words[i] = fill(word, key, func(s string) string { return s })
	}
	return words
}
