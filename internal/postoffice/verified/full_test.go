package verified

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// A stranger fills the cache with as many answers as it holds, and a file that was let grow to three
// times of it by others is read within bounds: the next answer brings both back to nine tenths of
// DefaultMost, and the youngest are kept.
func TestFullCacheIsBroughtBackToItsBound(t *testing.T) {
	fs, dir := disk(t)
	const lines = 3 * DefaultMost
	now := time.Now()
	b := make([]byte, 0, lines*100)
	for i := range lines {
		e := Entry{Key: fmt.Sprintf("smtp mx.stranger.test s%d@stranger.test", i), Probed: now.Add(time.Duration(i-lines) * time.Second), Code: "5.1.1", Text: "User unknown"}
		b = e.append(b)
	}
	assert.Must(t, os.WriteFile(filepath.Join(dir, File), b, 0o640))
	size := len(b)
	b = nil
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := Open(fs, Options{})
	began := time.Now()
	_, ok, err := c.Get("smtp mx.honest.test jane@honest.test")
	read := time.Since(began)
	if ok || err != nil {
		t.Fatal(ok, err)
	}
	began = time.Now()
	assert.Must(t, c.Put(Entry{Key: "smtp mx.honest.test jane@honest.test", OK: true, Probed: now, Code: "2.1.5", Text: "Ok"}))
	put := time.Since(began)
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	all := assert.Get(c.Entries())(t)
	assert.Equal(t, len(all), DefaultMost*9/10)
	if e, ok, err := c.Get("smtp mx.honest.test jane@honest.test"); !ok || !e.OK || err != nil {
		t.Errorf("the honest client's answer: %v %v", ok, err)
	}
	info := assert.Get(os.Stat(filepath.Join(dir, File)))(t)
	if info.Size() > int64(size/3) {
		t.Errorf("the file has %d bytes, it had %d", info.Size(), size)
	}
	if grown > DefaultMost*1000 {
		t.Errorf("memory grew by %d bytes", grown)
	}
	t.Logf("%d lines, %d bytes, read in %v; the next answer in %v leaves %d bytes and %d of memory", lines, size, read, put, info.Size(), grown)
}
