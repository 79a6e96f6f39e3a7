package config

import (
	"errors"
	"time"
)

// Resubmission is when a message that could not be routed is tried again (RESUBMIT), and
// when it is given up (RESUBMITEXPIRY). The zero value is never.
type Resubmission struct {
	First, Longest time.Duration // of the waits, which double; First 0: never
	Expiry         time.Duration // since its arrival; 0: never
}

// IsOff reports whether messages wait for an operator alone.
func (s Resubmission) IsOff() bool { return s.First <= 0 }

// Due is when a message is tried again that arrived and was put aside at these times. It
// waits as long as it had waited by then, so the waits double without a count of tries.
func (s Resubmission) Due(arrived, aside time.Time) time.Time {
	return aside.Add(min(max(aside.Sub(arrived), s.First), s.Longest))
}

// IsDue reports whether that time has come. A time of deferral that is further ahead than
// a wait is from before the clock was set back.
func (s Resubmission) IsDue(arrived, aside, now time.Time) bool {
	return !s.IsOff() && (!now.Before(s.Due(arrived, aside)) || aside.Sub(now) > s.Longest)
}

// IsExpired reports whether a message that arrived then is given up if it cannot be routed
// now.
func (s Resubmission) IsExpired(arrived, now time.Time) bool {
	return !s.IsOff() && s.Expiry > 0 && now.Sub(arrived) >= s.Expiry
}

// Resubmission reads RESUBMIT and RESUBMITEXPIRY; it fails with an *Error.
func (c *Config) Resubmission() (Resubmission, error) {
	s, err := typed(c, "RESUBMIT", Resubmission{First: 5 * time.Minute, Longest: time.Hour}, parseResubmit)
	if err == nil {
		s.Expiry, err = c.Duration("RESUBMITEXPIRY", 3*24*time.Hour)
	}
	return s, err
}

// parseResubmit reads "5m,1h", the first wait and the longest, or off.
func parseResubmit(text string) (s Resubmission, err error) {
	if text == "off" {
		return s, nil
	}
	words := SplitList(text)
	if len(words) != 2 {
		return s, errors.New("it must be two times like 5m,1h, the first wait and the longest, or off")
	}
	s.First, err = ParseDuration(words[0])
	if err == nil {
		s.Longest, err = ParseDuration(words[1])
	}
	switch {
	case err != nil:
		return Resubmission{}, err
	case s.First <= 0 || s.Longest < s.First:
		return Resubmission{}, errors.New("the first wait must be longer than nothing, and the longest no shorter than the first")
	}
	return s, nil
}

func checkResubmit(text string) error {
	_, err := parseResubmit(text)
	return err
}
