package export

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/otlp"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// Of sets Follow and Trace to those of a postoffice; addresses: with senders, recipients and
// answers of hosts.
func (e *Exporter) Of(po *postoffice.PostOffice, settings *config.Config, addresses bool) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	options := otlp.Options{Host: host, Version: config.Version, Addresses: addresses}
	e.Follow = func(ctx context.Context, emit func(*view.Event) error) error {
		return (&view.EventStream{PO: po, Dir: settings.PostOffice(), Emit: emit}).Follow(ctx)
	}
	e.Trace = func(ctx context.Context, ids []string) ([]byte, error) {
		now := time.Now()
		t := &view.Tracer{Spool: view.New(po, now), Now: now}
		if found, err := logread.Locate(ctx, settings); err == nil { // without a log the rest is sent
			t.Read(found)
		}
		list := make([]postoffice.SpoolID, 0, len(ids))
		for _, text := range ids {
			if id, err := postoffice.ParseSpoolID(text); err == nil {
				list = append(list, id)
			}
		}
		lives, err := t.Trace(ctx, list)
		if len(lives) == 0 {
			return nil, err
		}
		body, rerr := otlp.Request(lives, options)
		return body, errors.Join(err, rerr)
	}
	return nil
}
