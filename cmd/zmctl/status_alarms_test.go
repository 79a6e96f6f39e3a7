package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/assert"
	"zmailer/test/office"
)

// A25: status shows what needs an operator and exits with 1: what a running scheduler has
// seen, and without one what the directories show.
func TestStatusTellsAlarms(t *testing.T) {
	old := time.Now().Add(-2 * time.Hour)
	stale := func(t *testing.T, o *office.Office) {
		name := filepath.Join(o.Dir, postoffice.Router, "4711")
		assert.Must(t, os.WriteFile(name, []byte("to bond\n\n"), 0o700))
		assert.Must(t, os.Chtimes(name, old, old))
	}
	router := func(t *testing.T, o *office.Office) { o.Run(t, "router") }
	scheduler := func(t *testing.T, o *office.Office) {
		release, err := o.Owners.Exclusive("scheduler")
		assert.Must(t, err)
		t.Cleanup(func() { assert.Must(t, release()) })
	}
	tests := map[string]struct {
		plant []func(*testing.T, *office.Office)
		want  []alarm.Kind
	}{
		"nothing at all":               {nil, nil},
		"a router, old mail for it":    {[]func(*testing.T, *office.Office){router, stale}, []alarm.Kind{alarm.TooOld}},
		"old mail and no router":       {[]func(*testing.T, *office.Office){stale}, []alarm.Kind{alarm.TooOld, alarm.Down}},
		"queued mail and no scheduler": {[]func(*testing.T, *office.Office){func(t *testing.T, o *office.Office) { o.Enqueue(t, "smtp h a@h") }}, []alarm.Kind{alarm.Down}},
		"what the scheduler has seen": {[]func(*testing.T, *office.Office){scheduler, router, stale, func(t *testing.T, o *office.Office) {
			assert.Must(t, o.WriteAlarms([]byte("2026-11-21T08:40:12Z no-progress smtp/h none has begun\n")))
		}}, []alarm.Kind{alarm.NoProgress}},
		"what a dead one saw": {[]func(*testing.T, *office.Office){router, func(t *testing.T, o *office.Office) {
			assert.Must(t, o.WriteAlarms([]byte("2026-11-21T08:40:12Z no-progress smtp/h none has begun\n")))
		}}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := office.New(t)
			for _, p := range tt.plant {
				p(t, o)
			}
			out, code, _ := invoke(t, "status", "--json")
			var got struct{ Alarms []alarm.Alarm }
			assert.Must(t, json.Unmarshal([]byte(out), &got))
			var kinds []alarm.Kind
			for _, a := range got.Alarms {
				kinds = append(kinds, a.Kind)
			}
			if len(kinds) != len(tt.want) || code != min(len(tt.want), 1) {
				t.Fatalf("got %v with exit code %d, want %v", got.Alarms, code, tt.want)
			}
			for i := range kinds {
				if kinds[i] != tt.want[i] {
					t.Errorf("got %v, want %v", kinds, tt.want)
				}
			}
			text, _, _ := invoke(t, "status")
			for _, k := range tt.want {
				wantIn(t, text, "\n"+string(k)+" ")
			}
		})
	}
}
