package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zmailer/internal/run/config"
)

// reloads changes scheduler.conf and zmailer.conf again and again while mail flows; some files
// are bad, tables too, or read when half of them is written. At the end all is as it was.
func (s *soak) reloads(ctx context.Context, d *dice) (err error) {
	good := s.mail.Files["scheduler.conf"]
	defer func() {
		err = errors.Join(err, s.setConf(good, false), s.setMain(map[string]string{"GREYLIST": "no", "ADDRESSVERIFY": "no"}))
	}()
	for d.pause(ctx, 500*time.Millisecond, 5*time.Second) {
		text := otherConf(d, good)
		length := d.between(100*time.Millisecond, 1500*time.Millisecond)
		inPlace, asked := d.chance(30), d.chance(60)
		if d.chance(25) {
			at := d.IntN(len(good))
			if strings.HasSuffix(good[:at], "expiry=1") {
				at++ // a second would be valid, and mail expire that is to be delivered
			}
			bad := good[:at]
			if d.chance(60) {
				bad = good[:at] + " nonsense=\"1\n" + good[at:]
			}
			d.say("a bad scheduler.conf for %v", length.Round(time.Millisecond))
			if err := s.badConf(ctx, bad, length, good); err != nil {
				return err
			}
		}
		if err := s.changeConf(text, inPlace); err != nil {
			return err
		}
		if d.chance(50) {
			if err := s.setMain(otherSettings(d)); err != nil {
				return err
			}
		}
		if d.chance(25) {
			if err := s.badFile(ctx, d, length); err != nil {
				return err
			}
		}
		d.say("scheduler.conf: %q, zmctl reload: %v", text, asked)
		if asked {
			if err := s.reload(); err != nil {
				return err
			}
		}
		s.reloaded.Add(1)
	}
	return nil
}

// changeConf is setConf while no one starts the whole system, which would refuse a file of
// which half is written.
func (s *soak) changeConf(text string, inPlace bool) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	return s.setConf(text, inPlace)
}

// badConf has a scheduler.conf that cannot be used, or half of one, for a time: zmctl
// reload refuses it, or takes a half that happens to be whole. The whole system is not
// started meanwhile: it would refuse.
func (s *soak) badConf(ctx context.Context, text string, length time.Duration, good string) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if err := s.setConf(text, true); err != nil {
		return err
	}
	if err := s.reload(config.ExitConfig); err != nil {
		return err
	}
	wait(ctx, length)
	return s.setConf(good, false)
}

// reload asks for a reload. It may end with 0, with 1 (nothing runs that could be asked),
// or with another code that is expected.
func (s *soak) reload(expected ...int) error {
	out, code, err := s.zmctl("reload")
	if err == nil && code > 1 && !slices.Contains(expected, code) {
		err = fmt.Errorf("zmctl reload: exit code %d: %s", code, out)
	}
	return err
}

// setConf writes scheduler.conf, in place or beside it.
func (s *soak) setConf(text string, inPlace bool) error {
	file := filepath.Join(filepath.Dir(s.mail.Config()), "scheduler.conf")
	if inPlace {
		return os.WriteFile(file, []byte(text), 0o644)
	}
	draft := filepath.Join(filepath.Dir(file), ".scheduler.conf")
	if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, file)
}

// otherSettings returns settings of zmailer.conf that reloads change. What is expected of mail
// stays: who is refused for now tries again.
func otherSettings(d *dice) map[string]string {
	return map[string]string{
		"ROUTERPOLL":    fmt.Sprintf("%ds", 1+d.IntN(3)),
		"GREYLIST":      []string{"yes", "no"}[d.IntN(2)],
		"ADDRESSVERIFY": []string{"relay", "no"}[d.IntN(2)],
		"SMTPRCPTRATE":  []string{"off", "5000/1m"}[d.IntN(2)],
	}
}

// setMain writes a zmailer.conf with other values of some settings.
func (s *soak) setMain(values map[string]string) error {
	s.settings.Lock()
	defer s.settings.Unlock()
	text, err := os.ReadFile(s.mail.Config())
	if err != nil {
		return err
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, "=")
		if _, other := values[name]; !other {
			b.WriteString(line)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "%s=%s\n", name, values[name])
	}
	return replaceFile(s.mail.Config(), b.String())
}

// replaceFile writes a file beside another and renames it.
func replaceFile(file, text string) error {
	draft := file + ".new"
	if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, file)
}

// badFile has a table, or zmailer.conf, that cannot be used for a time: zmctl reload refuses
// it, and what runs, or is started again alone, goes by the last one that was good.
func (s *soak) badFile(ctx context.Context, d *dice, length time.Duration) error {
	name := []string{"aliases", "routes", "zmailer.conf"}[d.IntN(3)]
	s.starting.Lock()
	defer s.starting.Unlock()
	s.settings.Lock()
	defer s.settings.Unlock()
	file := filepath.Join(filepath.Dir(s.mail.Config()), name)
	good, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	bad := map[string]string{"aliases": "an alias without a colon\n", "routes": "domain.without.a.route\n", "zmailer.conf": "GREYLIST=perhaps\n"}[name]
	if name == "zmailer.conf" {
		s.bad.Add(1)
		defer s.bad.Add(1)
	}
	if err := replaceFile(file, string(good)+bad); err != nil {
		return err
	}
	d.say("a bad %s for %v", name, length.Round(time.Millisecond))
	err = s.reload(config.ExitConfig)
	wait(ctx, length)
	return errors.Join(err, replaceFile(file, string(good)))
}

// otherConf returns a scheduler.conf with other limits. What is expected of mail stays.
func otherConf(d *dice, good string) string {
	maxthr := 1 + d.IntN(30)
	more := []string{"", " ageorder", " jitter=50", " overfeed=5", " minage=1s", " idlemax=2s", " nice=3", " bychannel", " wakeuprestartonly",
		fmt.Sprintf(" rate=%d/s", 20+d.IntN(200)), fmt.Sprintf(" hostrate=%d/s", 10+d.IntN(50))}
	text := strings.NewReplacer(
		"maxta=20", fmt.Sprintf("maxta=%d", d.IntN(20)), "maxring=50", fmt.Sprintf("maxring=%d", d.IntN(60)),
		"maxthr=20", fmt.Sprintf("maxthr=%d start=%d", maxthr, 1+d.IntN(maxthr))+more[d.IntN(len(more))]+more[d.IntN(len(more))],
		`retries="1 1 2 3"`, []string{`retries="1"`, `retries="1 1 2 3"`, `retries="2 1"`}[d.IntN(3)],
		"--slots=20", fmt.Sprintf("--slots=%d", 1+d.IntN(20)),
		"expiry=6s", []string{"expiry=6s", "expiry=6s onexpiry=freeze", "expiry=10s expiry2=20s"}[d.IntN(3)],
	).Replace(good)
	if d.chance(30) {
		text += "lmtp/*.example\n\tcommand=\"ta-smtp $channel\"\n"
	}
	return text
}
