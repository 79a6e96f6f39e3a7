package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// measured returns the programs that METRICS may name.
func measured() []string { return []string{"smtpserver", "router", "scheduler"} }

// Metrics returns where a program's metrics are to be read: "unix", a loopback host:port, or
// "" if they are not.
func (c *Config) Metrics(program string) (string, error) {
	places, err := parseMetrics(c.List("METRICS"))
	if err != nil {
		return "", c.Invalid("METRICS", "cannot be used", err)
	}
	return places[program], nil
}

// parseMetrics reads METRICS: off, unix for all programs, or PROGRAM=unix and
// PROGRAM=host:port.
func parseMetrics(words []string) (map[string]string, error) {
	places := map[string]string{}
	put := func(program, place string) error {
		if had := places[program]; had != "" {
			return fmt.Errorf("duplicate program %s", program)
		}
		places[program] = place
		return nil
	}
	for _, word := range words {
		program, place, named := strings.Cut(word, "=")
		switch {
		case word == "off":
			if len(words) > 1 {
				return nil, fmt.Errorf("off cannot be combined with other words")
			}
		case word == "unix":
			for _, p := range measured() {
				if err := put(p, "unix"); err != nil {
					return nil, err
				}
			}
		case !named:
			return nil, fmt.Errorf("%s: it must be off, unix, or words like router=unix and router=127.0.0.1:9126", word)
		case !slices.Contains(measured(), program):
			return nil, fmt.Errorf("%s: the programs are %s; agents are counted by the scheduler", word, strings.Join(measured(), ", "))
		default:
			if err := checkLoopback(place); err != nil {
				return nil, fmt.Errorf("%s: %w", word, err)
			}
			if err := put(program, place); err != nil {
				return nil, err
			}
		}
	}
	return places, nil
}

// checkLoopback takes unix and a host:port of this machine alone: no one logs in there.
func checkLoopback(place string) error {
	if place == "unix" {
		return nil
	}
	host, port, err := net.SplitHostPort(place)
	if err != nil || checkPort(port) != nil {
		return fmt.Errorf("it must be unix or host:port, like 127.0.0.1:9126 or [::1]:9126")
	}
	if a, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !a.IsLoopback()) {
		return fmt.Errorf("it must be an address of this machine alone, like 127.0.0.1 or [::1]; a proxy can show it to others")
	}
	return nil
}

func checkMetrics(text string) error {
	_, err := parseMetrics(strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }))
	return err
}
