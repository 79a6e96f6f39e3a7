package main

import (
	"testing"

	"zmailer/internal/run/config"
	"zmailer/test/office"
)

func TestETRNWantsAHost(t *testing.T) {
	office.New(t)
	for host, want := range map[string]int{"x;y": config.ExitUsage, "@": config.ExitUsage, "a..b": config.ExitUsage, "[192.0.2]": config.ExitUsage, "#queue": config.ExitUsage, "a.example:smtp": config.ExitUsage,
		"a.example": 0, "@a.example": 0, "[192.0.2.1]": 0, "[IPv6:2001:db8::1]": 0, "bücher.example": 0, "[192.0.2.1]:2626": 0, "a.example:26": 0} {
		exits(t, want, "etrn", host)
	}
}
