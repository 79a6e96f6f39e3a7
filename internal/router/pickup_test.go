package router

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/durable/faultfs"
	"zmailer/internal/postoffice"
)

// plant puts a file into public/, as a program of root's that knows nothing of our mark.
func (o *office) plant(name, text string) {
	o.t.Helper()
	file := filepath.Join(o.dir, postoffice.Public, "t."+name)
	err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chmod(file, 0o700), os.Rename(file, filepath.Join(o.dir, postoffice.Public, name)))
	if err != nil {
		o.t.Fatal(err)
	}
}

// Sec8: a message cannot be copied, for a full disk or a failing one: one line of the log
// names the file and the cause, other messages go on, and it is routed once when the
// trouble is over.
func TestSec8PickupThatFailsIsLoggedOnceAndTriedAgain(t *testing.T) {
	t.Parallel()
	const copies = postoffice.Router + "/.pickup.*"
	for _, tt := range []struct {
		name  string
		at    faultfs.Op
		file  string
		err   error
		stays string // "": the copy is there alone, and recovery gives it its name
	}{
		{"full disk", faultfs.Write, copies, unix.ENOSPC, "public/101"},
		{"failing sync", faultfs.Sync, copies, unix.EIO, "public/101"},
		{"failing removal", faultfs.Remove, postoffice.Public + "/101", unix.EIO, "public/101"},
		{"failing rename", faultfs.Rename, copies, unix.EIO, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil, func(c *Config) { c.Poll = 100 * time.Millisecond })
			o.plant("101", plain("first@example.net"))
			again := make(chan struct{}, 1)
			rule := o.disk.On(tt.at, tt.file, faultfs.Always, func(string) error {
				select {
				case again <- struct{}{}:
				default:
				}
				return tt.err
			})
			o.start(t, o.r)
			o.log.wait(t, 1, "msg=not-picked-up", "name=public/101", tt.err.Error())
			o.submit(plain("other@example.net"))
			o.log.wait(t, 1, "msg=routed")
			if tt.stays != "" {
				if _, err := os.Stat(filepath.Join(o.dir, tt.stays)); err != nil {
					t.Error(err)
				}
			}
			// It is tried again in vain; a rename is recovery's.
			for range 3 {
				select {
				case <-again:
				case <-time.After(30 * time.Second):
					t.Fatal("it is not tried again")
				}
			}
			o.logged(1, "msg=not-picked-up")
			rule.End()
			o.log.wait(t, 2, "msg=routed")
			o.expect("in the end", map[string]int{"queue": 2, "transport": 2})
			for _, m := range handedOver(t, o.po) {
				if strings.Contains(string(m.message), "first@") != strings.Contains(string(m.message), "submitter 65534 ") {
					t.Errorf("the message begins with %q", m.message[:200])
				}
			}
		})
	}
}
