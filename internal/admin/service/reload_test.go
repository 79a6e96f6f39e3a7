package service

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Op11: a reload is over when each daemon has answered for the version that was checked, also if
// nothing has changed; a daemon that was asked before and read the file as it was then has not answered.
func TestOp11ReloadIsOverWhenEachDaemonHasAnswered(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "zmailer.conf")
	write := func(text string) *config.Config {
		t.Helper()
		assert.Must(t, os.WriteFile(file, []byte("POSTOFFICE="+dir+"\n"+text), 0o644))
		return assert.Get(config.Load(file))(t)
	}
	log := slog.New(slog.DiscardHandler)
	settings := write("MAXSIZE=7\nHASHLEVELS=1\n")
	router := lastgood.Follow(settings, "router", lastgood.Use(settings, "router", log), log, func() (*config.Config, error) { return config.Load(file) })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	// reload has the router read the file, if read is not nil, and returns its outcome.
	reload := func(checked *config.Config, ctx context.Context, read func()) Reloaded {
		t.Helper()
		before, at := ReadingOf(checked, []string{"router"}), lastgood.Now()
		var reading sync.WaitGroup
		defer reading.Wait()
		if read != nil {
			reading.Go(read)
		}
		list := AwaitReload(ctx, checked, []string{"router", "smtpserver"}, before, at)
		assert.Equal(t, len(list), 2)
		assert.Equal(t, list[1].Unknown, true, "a daemon that never ran")
		return list[0]
	}
	accept := func() {
		if _, err := router.Read(); err != nil {
			router.Refuse(err)
			return
		}
		router.Accept()
	}
	if r := reload(settings, gone, nil); !r.Late {
		t.Errorf("nothing has changed, and it has not answered: %+v", r)
	}
	if r := reload(settings, t.Context(), accept); r.Late || r.Refused != "" || r.Other || len(r.Applied)+len(r.Restart) != 0 {
		t.Errorf("nothing has changed: %+v", r)
	}
	next := write("MAXSIZE=8\nHASHLEVELS=2\n")
	accept()
	if r := reload(next, gone, nil); !r.Late {
		t.Errorf("what it had read before it was asked is no answer: %+v", r)
	}
	last := write("MAXSIZE=9\nHASHLEVELS=2\n")
	if r := reload(last, t.Context(), accept); r.Late || len(r.Applied) != 1 || r.Applied[0] != "MAXSIZE" || len(r.Restart) != 1 || r.Restart[0] != "HASHLEVELS" {
		t.Errorf("a change: %+v", r)
	}
	write("MAXSIZE=10\n")
	if r := reload(last, t.Context(), accept); !r.Other {
		t.Errorf("a file that was changed after the check: %+v", r)
	}
	assert.Must(t, os.Remove(file))
	if r := reload(last, t.Context(), accept); r.Refused == "" {
		t.Errorf("a file that is gone: %+v", r)
	}
}
