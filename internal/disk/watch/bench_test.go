package watch

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// What a watched directory costs all threads of the process for each message that
// passes through it: one name appears, four writes, one name goes. See
// docs/notes/watch.md.
func BenchmarkMessageThroughDirectory(b *testing.B) {
	for _, watched := range []bool{false, true} {
		b.Run("watched="+strconv.FormatBool(watched), func(b *testing.B) {
			top := b.TempDir()
			from, dir := filepath.Join(top, "from"), filepath.Join(top, "to")
			for _, d := range []string{from, dir} {
				assert.Must(b, os.Mkdir(d, 0o700))
			}
			if watched {
				log, _ := newLog()
				w := New(b.Context(), []string{dir}, never, digits, log)
				go func() {
					for {
						select {
						case <-w.C():
						case <-b.Context().Done():
							return
						}
					}
				}()
			}
			before := processorTime(b)
			b.ResetTimer()
			for i := range b.N {
				assert.Must(b, passThrough(from, dir, strconv.Itoa(i)))
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func passThrough(from, dir, name string) error {
	file, err := os.OpenFile(filepath.Join(from, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	to := filepath.Join(dir, name)
	if err := os.Rename(file.Name(), to); err != nil {
		return err
	}
	for range 4 {
		if _, err := file.WriteAt([]byte("x"), 0); err != nil {
			return err
		}
	}
	return os.Remove(to)
}

// processorTime is that of the whole process so far, in nanoseconds.
func processorTime(b *testing.B) int64 {
	b.Helper()
	var u unix.Rusage
	assert.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
