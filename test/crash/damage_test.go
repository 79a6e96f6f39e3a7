package crash

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// M7: whatever a loss of power has left of a work specification that was not synced,
// a part, zeros for a part, nothing, no file, is known by its z line: the message is
// routed again and everybody gets it once.
func TestDamagedSpecificationIsRoutedAgain(t *testing.T) {
	t.Parallel()
	r := newRun(t, variants[0])
	disk, name, whole := r.handedOver(message{subject: "x", from: sender, to: []string{"trio@mta.example"}})
	end := bytes.LastIndex(whole, []byte("\nz ")) + 1
	damages := map[string][]byte{"no file": nil, "empty": {}, "all zeros": make([]byte, len(whole))}
	for n := 1; n < len(whole); n += 7 {
		damages[fmt.Sprintf("first %d bytes", n)] = whole[:n]
		zeros := make([]byte, len(whole))
		copy(zeros, whole[:n])
		damages[fmt.Sprintf("zeros from %d", n)] = zeros
	}
	for _, block := range []int{32, 64, 512} {
		for at := 0; at < end; at += block {
			b := bytes.Clone(whole)
			clear(b[at:min(at+block, end)])
			damages[fmt.Sprintf("%d zeros from %d", block, at)] = b
			damages[fmt.Sprintf("%d zeros from %d, no end", block, at)] = b[:end]
		}
	}
	for what, b := range damages {
		next, w := disk.Restart(cutfs.KeepAll()), newWorld()
		r.replace(next, postoffice.Transport+"/"+name, b)
		r.log.Reset()
		r.s.ahead = 0
		if err := goOn(next, w, r.s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		r.check(what, w, nil, next, true)
		for _, to := range []string{"alice@mta.example", "a@one.example", "b@two.example"} {
			assert.Equal(t, w.got["x/"+to], 1, what)
		}
		assert.Equal(t, strings.Count(r.log.String(), "action=rerouted"), 1, what)
		if t.Failed() {
			t.Fatalf("%q\n%s\n%s", b, next.Log(), r.log)
		}
	}
	t.Logf("%d damages", len(damages))
}

// handedOver returns a disk with one message that was handed over, its specification's name
// and bytes.
func (r *run) handedOver(m message) (disk *cutfs.FS, name string, spec []byte) {
	r.t.Helper()
	disk = newDisk(r.t, r.v)
	p, err := boot(disk, newWorld(), r.s, 0)
	if err == nil {
		err = p.submit(m)
	}
	if err == nil {
		_, err = p.router.RouteAll()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range r.names(disk, postoffice.Transport) {
		disk.Kill()
		disk = disk.Restart(cutfs.KeepAll())
		return disk, strings.TrimPrefix(name, postoffice.Transport+"/"), r.read(disk, name)
	}
	r.t.Fatal("nothing was handed over")
	return nil, "", nil
}

// replace gives a file another content; none with nil.
func (r *run) replace(disk *cutfs.FS, name string, b []byte) {
	r.t.Helper()
	if b == nil {
		if err := disk.Remove(name); err != nil {
			r.t.Fatal(err)
		}
		return
	}
	f, err := disk.Open(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		r.t.Fatal(err)
	}
}
