package main

import (
	"log/slog"
	"os"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/keys"
)

// openKeys has the certificate's key opened by another process, if this one has a right for that
// which it gives up then: systemd grants it to the unit. What root starts reads as root.
func (w *webSettings) openKeys(settings *config.Config, log *slog.Logger) error {
	w.log = log
	if os.Geteuid() == 0 {
		return nil
	}
	opener, err := keys.Start(settings)
	if err != nil || opener == nil {
		return err
	}
	w.keys = pageKeys{opener}
	return confine.GiveUp()
}

// pageKeys is a config.Keeper that keeps no copies: the pages are of no use to mail.
type pageKeys struct{ *keys.Client }

func (pageKeys) Good(string, []byte, uint32, error) {}
func (pageKeys) Bad(string, error, bool)            {}
func (pageKeys) Last(string) *config.Kept           { return nil }
func (pageKeys) Expires(string, time.Time)          {}
