package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/web/desk"
)

// An order is finished by a child whose zmweb has ended, also when it cannot tell anybody.
func TestOrderIsFinishedWhenItsPageHasEnded(t *testing.T) {
	o := newOffice(t)
	id, _, _ := o.queueTo(t, "x@client.example", addressed{"a.example", "a1@x"})
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--postoffice="+o.dir, "--config=", "web-desk", "--write")
	cmd.Env = append(os.Environ(), "BE_ZMCTL=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, said, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said.Close()
	// The first answer says that it serves; nobody reads those after it.
	ask := func(text string) {
		t.Helper()
		if _, err := io.WriteString(in, text+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	ask(`{"n":1,"ask":"nothing"}`)
	if _, err := out.Read(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	ask(`{"n":2,"ask":"nothing"}`)
	ask(`{"n":3,"ask":"give","args":{"who":"web","command":{"Verb":"hold","IDs":["` + id + `"]}}}`)
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		for t.Context().Err() == nil {
			if list, err := o.Operations.List(); err == nil && len(list) > 0 {
				return
			}
		}
	}()
	waitFor(t, "the order", begun)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("it ended with %v", err)
	}
	wantStates(t, "after its end", map[string]string{"a1@x": view.Held})
}

// What nobody asks for any more, when its turn comes, is not done.
func TestOrderOfNobodyIsNotBegun(t *testing.T) {
	o := newOffice(t)
	id, _, _ := o.queueTo(t, "x@client.example", addressed{"a.example", "a1@x"})
	w := &webOrders{args: []string{"zmctl", "--postoffice=" + o.dir}}
	ctx, cancel := context.WithCancel(t.Context())
	w.mu.Lock()
	done := make(chan *desk.Given, 1)
	go func() {
		g, err := w.Give(ctx, "web", desk.Command{Verb: "hold", IDs: []string{id}})
		if err != nil {
			t.Error(err)
		}
		done <- g
	}()
	cancel()
	w.mu.Unlock()
	if g := <-done; g.Order != "" || !strings.Contains(g.Error, context.Canceled.Error()) {
		t.Errorf("got %+v", g)
	}
	wantStates(t, "given up", map[string]string{"a1@x": view.Waiting})
}

// Alarms that cannot be read leave the rest of the overview.
func TestOverviewIsShownWithoutAlarms(t *testing.T) {
	o := newOffice(t)
	o.queueTo(t, "x@client.example", addressed{"a.example", "a1@x"})
	path := filepath.Join(t.TempDir(), "zmailer.conf")
	if err := os.WriteFile(path, []byte("ALARMS=\"nonsense\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	settings, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &webSource{po: o.PostOffice, dir: o.dir, settings: settings}
	if _, err := view.New(o.PostOffice, time.Now()).Alarms(settings); err == nil {
		t.Fatal("its alarms can be read")
	}
	v, err := w.Survey(t.Context())
	if err != nil || v.Messages != 1 || v.Problem == "" || v.Status == nil {
		t.Errorf("got %+v, %v", v, err)
	}
}
