package greylist

import (
	"flag"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

var strangers = flag.Int("strangers", 200_000, "how many senders TestStrangersChangeNothingForKnownClients has")

// Any number of different senders, from a quarter as many networks, fill the table of those that wait,
// and no more: memory and disk are bounded, also at the next start, and who was known stays known.
func TestStrangersChangeNothingForKnownClients(t *testing.T) {
	disk := assert.Get(durable.NewOS(t.TempDir()))(t)
	defer disk.Close()
	assert.Must(t, postoffice.Init(disk))
	const entries = 20_000
	r := newRig(t, func(c *Config) { c.FS, c.Entries = disk, entries })
	r.want("192.0.2.1", "jane@b.test", "x@here.test", "new")
	r.now = r.now.Add(DefaultDelay)
	r.want("192.0.2.1", "jane@b.test", "x@here.test", "returned")
	to := address.Mailbox{Local: "x", Domain: "here.test"}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	for i := range *strangers {
		n := uint32(i / 4)
		from := netip.AddrFrom4([4]byte{11 + byte(n>>16), byte(n >> 8), byte(n), 1})
		if got := r.Check(from, address.Mailbox{Local: fmt.Sprintf("s%c%c%c%c", 'a'+i%26, 'a'+i/26%26, 'a'+i/676%26, 'a'+i/17576%26), Domain: "strangers.test"}, to, false); got.Pass {
			t.Fatalf("stranger %d passes: %s", i, got.Why)
		}
	}
	took := time.Since(began)
	runtime.GC()
	runtime.ReadMemStats(&after)
	waiting, passed, _ := r.Sizes()
	assert.Equal(t, waiting, entries)
	assert.Equal(t, passed, 1)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	if grown > entries*2000 {
		t.Errorf("memory grew by %d bytes for %d entries", grown, entries)
	}
	r.want("192.0.2.1", "jane@b.test", "x@here.test", "known")
	r.Close()
	info := assert.Get(disk.Stat("clients/greylist-waiting"))(t)
	if info.Size > entries*400 {
		t.Errorf("the file has %d bytes for %d entries", info.Size, entries)
	}
	t.Logf("%d senders in %v, %d bytes of memory, %d of the file", *strangers, took, grown, info.Size)
	now := r.now
	again := &rig{t: t, now: now, List: Open(Config{FS: disk, Delay: DefaultDelay, Retry: DefaultRetry, Keep: DefaultKeep, Allow: DefaultAllow, Entries: entries, Now: func() time.Time { return now }})}
	defer again.Close()
	again.want("192.0.2.7", "jane@b.test", "x@here.test", "known")
	if waiting, _, _ := again.Sizes(); waiting > entries || waiting < entries/2 {
		t.Errorf("%d entries after a start", waiting)
	}
}
