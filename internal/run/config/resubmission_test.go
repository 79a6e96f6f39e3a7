package config

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Dur5: the waits between attempts double from the first to the longest, by the message's
// times alone.
func TestDur5WaitsDouble(t *testing.T) {
	s := Resubmission{First: 5 * time.Minute, Longest: time.Hour, Expiry: 3 * 24 * time.Hour}
	arrived := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	aside := arrived
	for i, want := range []time.Duration{5, 5, 10, 20, 40, 60, 60, 60} {
		due := s.Due(arrived, aside)
		assert.Equal(t, due.Sub(aside), want*time.Minute, "wait %d", i)
		if s.IsDue(arrived, aside, due.Add(-1)) || !s.IsDue(arrived, aside, due) {
			t.Errorf("wait %d: it is due at another time than %v", i, due)
		}
		aside = due
	}
	if s.IsExpired(arrived, arrived.Add(s.Expiry-1)) || !s.IsExpired(arrived, arrived.Add(s.Expiry)) {
		t.Error("it expires at another time")
	}
	for what, odd := range map[string]Resubmission{"off": {Expiry: 1}, "for ever": {First: 1, Longest: 1}} {
		if odd.IsExpired(arrived, arrived.Add(1000*time.Hour)) {
			t.Errorf("%s: it expires", what)
		}
	}
	// The clock was set back, or a file's time is that of another clock.
	if !s.IsDue(arrived, aside, aside.Add(-2*time.Hour)) {
		t.Error("put aside in the future: it waits")
	}
	assert.Equal(t, s.Due(arrived.Add(time.Hour), arrived), arrived.Add(s.First), "arrived in the future")
}

// Dur5
func TestDur5ResubmitIsRead(t *testing.T) {
	for text, want := range map[string]*Resubmission{
		"":                                       {5 * time.Minute, time.Hour, 3 * 24 * time.Hour},
		"RESUBMIT=off":                           {0, 0, 3 * 24 * time.Hour},
		"RESUBMIT=1m,10m\nRESUBMITEXPIRY=1d":     {time.Minute, 10 * time.Minute, 24 * time.Hour},
		"RESUBMIT=\"10s 10s\"\nRESUBMITEXPIRY=0": {10 * time.Second, 10 * time.Second, 0},
		"RESUBMIT=5m":                            nil,
		"RESUBMIT=1h,5m":                         nil,
		"RESUBMIT=0,5m":                          nil,
		"RESUBMIT=soon,5m":                       nil,
		"RESUBMIT=5m,late":                       nil,
		"RESUBMIT=1m,2m,3m":                      nil,
		"RESUBMITEXPIRY=never":                   nil,
	} {
		file := filepath.Join(t.TempDir(), "zmailer.conf")
		assert.Must(t, os.WriteFile(file, []byte(text+"\n"), 0o600))
		var got Resubmission
		c, err := Load(file)
		if err == nil {
			got, err = c.Resubmission()
		}
		if (err == nil) != (want != nil) || want != nil && got != *want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}
