package main

import (
	"fmt"
	"io"
	"os"

	"zmailer/internal/admin/otlp"
	"zmailer/internal/admin/trace"
	"zmailer/internal/run/config"
)

// printOTLP prints lives as the body of a request to a collector of OpenTelemetry.
func printOTLP(w io.Writer, lives []*trace.Life, addresses bool) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	b, err := otlp.Request(lives, otlp.Options{Host: host, Version: config.Version, Addresses: addresses})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}
