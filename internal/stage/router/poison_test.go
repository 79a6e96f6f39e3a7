package router

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

// limited returns a router that may use so little memory that a message with very many
// recipients makes the process die.
func limited(t *testing.T, program string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "router")
	assert.Must(t, os.WriteFile(path, []byte("#!/bin/sh\nulimit -s 1024 && ulimit -d 131072 || exit 99\nexec '"+program+"' \"$@\"\n"), 0o755))
	return path
}

// poison returns a message that makes limited die.
func poison() string {
	return "from <q@example.net>\n" + strings.Repeat("to <poison@example.net>\n", 500_000) + "env-end\n\n"
}

// M8: 1 poison + 20 good, four real processes that are started again whenever one
// dies: 20 are routed, and the one is put away after as many deaths as there may be.
func TestPoisonKillsFiveRoutersAndTwentyMessagesAreRouted(t *testing.T) {
	t.Parallel()
	const good, tries = 20, 5
	o := newOffice(t, nil)
	path := limited(t, program(t))
	bad := o.submit(poison())
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	assert.Must(t, os.Chtimes(filepath.Join(o.dir, bad.Name), old, old))
	bad.ID.MTime = old.UnixNano()
	for i := range good / 2 {
		o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
	}
	all := &logtest.Buffer{}
	running := map[*process]bool{}
	ended := make(chan *process)
	begin := func() {
		p := o.run(t, path, all)
		running[p] = true
		go func() {
			p.end.Wait()
			ended <- p
		}()
	}
	for range 4 {
		begin()
	}
	late := time.After(60 * time.Second)
	deaths, more := 0, good/2
	for len(o.names("postman")) == 0 || len(o.names("transport")) < good {
		select {
		case p := <-ended:
			delete(running, p)
			deaths++
			// How a Go program ends that gets no memory: by itself, or at a null pointer.
			if code := p.wait(); code != 2 || !strings.Contains(p.log.String(), "goroutine ") {
				t.Fatalf("it did not die of the poison: exit code %d\n%s", code, p.log)
			}
			begin()
		case <-all.Written():
		case <-late:
			t.Fatalf("%d deaths; router/ holds %q\n%s", deaths, o.names("router"), all)
		}
		if more > 0 && deaths > 0 {
			more--
			o.submit(plain(fmt.Sprintf("b%d@example.net", more)))
		}
	}
	for p := range running {
		// It ends in order; the goroutine above waits for that.
		assert.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	}
	for range len(running) {
		// One that had not begun yet is ended by the signal itself.
		if p := <-ended; p.wait() != 0 && p.log.String() != "" {
			t.Errorf("exit code: got %d, want 0\n%s", p.wait(), p.log)
		}
	}
	assert.Equal(t, deaths, tries, "deaths")
	o.expect("in the end", map[string]int{"postman": 1, "queue": good, "transport": good})
	assert.Equal(t, o.names("postman")[0], fmt.Sprint(bad.ID.Ino), "postman/")
	if all.Count("msg=set-aside", "id="+bad.ID.String(), "5 routers ended with it", "advice=") != 1 {
		t.Errorf("the poison is not said to be set aside once:\n%s", all)
	}
}
