package rules

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// Op4: a table that names a domain of another class keeps what it had, while it runs and at a start,
// and is used when either of the two files is corrected. Nothing else changes, and both files may
// change at a time.
func TestOp4TableThatContradictsAnotherKeepsItsLastContent(t *testing.T) {
	aliases, relays := string(text.VirtualAliasDomains), string(text.RelayDomains)
	files := map[string]string{"users": "carol\n", aliases: "v.example\n", relays: "r.example\nq.example\n",
		"fqdnaliases": "a@v.example: carol\na@r.example: carol\n"}
	const carol, relayed, unknown = "local carol@mx.example.org carol@mx.example.org UID", "smtp r.example x@r.example 65534", "error nouser x@r.example 65534"
	c := newConf(t, files)
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	var store *lastgood.Store
	start := func() error {
		store = assert.Get(lastgood.Open(dir, "router", log))(t)
		k := c.config()
		k.Keeper = store
		next, err := New(k)
		if err == nil {
			c.Rules = next
		}
		return err
	}
	bad := func() (names []string) {
		disk := assert.Get(durable.NewOS(dir))(t)
		defer disk.Close()
		for _, f := range lastgood.Findings(disk, time.Now()) {
			names = append(names, filepath.Base(f.Path))
		}
		slices.Sort(names)
		return names
	}
	expect := func(what, rcpt, want string, refused ...string) {
		t.Helper()
		c.advance(period)
		assert.Equal(t, strings.Join(c.resolve(rcpt, false), ", "), want, "%s: %s", what, rcpt)
		assert.Equal(t, strings.Join(bad(), " "), strings.Join(refused, " "), "%s: alarms", what)
	}
	assert.Must(t, start())
	expect("before", "x@r.example", relayed)

	c.write(aliases, "v.example\nr.example\nw.example\n")
	expect("in two classes", "x@r.example", relayed, aliases)
	expect("the rest of that file", "b@w.example", "smtp w.example b@w.example 65534", aliases)
	assert.Must(t, start())
	expect("after a start", "x@r.example", relayed, aliases)
	if _, err := New(c.config()); config.Exit(err) != config.ExitConfig {
		t.Errorf("without copies: %v, want an error of the configuration", err)
	}

	c.write(relays, "q.example\n")
	expect("the other file is corrected", "x@r.example", unknown)
	expect("the rest of that file", "b@w.example", "error nouser b@w.example 65534")
	c.write(aliases, "v.example\n")
	c.write(relays, "r.example\n")
	expect("moved from one file to the other", "x@r.example", relayed)
	c.write(relays, "v.example\n")
	expect("in two classes", "a@v.example", carol, relays)
	c.write(relays, "r.example\nv..example\n")
	expect("worse", "a@v.example", carol, relays)
	c.write(relays, "r.example\n")
	expect("taken back", "x@r.example", relayed)
	assert.Equal(t, strings.Count(c.log.String(), "table-refused"), 4, "refusals in: %s", c.log.String())
}
