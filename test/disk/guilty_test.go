package disk

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/disk/blockdev"
)

// full is how many losses of power are tried at least where the judge itself is tried.
const full = 20

// guilty runs a test of the judge on each file system, unless only few losses are tried.
func guilty(t *testing.T, test func(t *testing.T, fs blockdev.FileSystem)) {
	t.Helper()
	if *images < full {
		t.Skipf("the judge is tried with -images %d or more (make disk)", full)
	}
	eachFS(t, test)
}

// lost judges cuts that lose mail for certain, and counts the copies that were missed. Of a drive
// that ignores flushes the file system itself may be damaged: that counts as a loss, too.
func lost(t *testing.T, r *Run, l *blockdev.Log, ways ...blockdev.Way) (copies int) {
	t.Helper()
	b := blockdev.NewBuilder(l)
	for i, way := range ways {
		v, err := r.Judge(t.Context(), b, blockdev.Cut{At: r.End, Way: way, Seed: *seed + uint64(i)})
		if l != r.Log && (errors.Is(err, unix.EBADMSG) || errors.Is(err, unix.EUCLEAN)) {
			t.Logf("cut %v: the file system is damaged: %v", v.Cut, err)
			copies++
			continue
		}
		if err != nil {
			t.Fatalf("%v: %v", v, err)
		}
		t.Logf("cut %v: %d answered, lost %d copies, wrong %d", v.Cut, v.Answered, len(v.Lost), len(v.Wrong))
		copies += len(v.Lost)
	}
	return copies
}

// A drive that answers flushes and ignores them loses what was answered, and the judge
// finds that; on the same run, with the flushes, it finds nothing.
func TestDriveThatIgnoresFlushesIsFoundGuilty(t *testing.T) {
	guilty(t, func(t *testing.T, fs blockdev.FileSystem) {
		r := record(t, site(t, fs), 1)
		assert.Equal(t, lost(t, r, r.Log, blockdev.None, blockdev.Prefix), 0)
		without := r.Log.WithoutFlushes(r.Begin)
		if n := lost(t, r, without, blockdev.None); n == 0 {
			t.Error("a drive that ignores flushes and loses what it had in its cache is found innocent")
		}
		// Each of these may have kept nearly everything, but hardly all of them.
		if n := lost(t, r, without, blockdev.Prefix, blockdev.Subset, blockdev.Prefix, blockdev.Subset); n == 0 {
			t.Error("a drive that ignores flushes and loses parts of what it had in its cache is found innocent")
		}
	})
}

// Programs that do not wait for the disk lose what they answered, and the judge finds that.
func TestProgramsWithoutSyncsAreFoundGuilty(t *testing.T) {
	guilty(t, func(t *testing.T, fs blockdev.FileSystem) {
		s := site(t, fs)
		s.WithoutSyncs()
		r := record(t, s, 1)
		if n := lost(t, r, r.Log, blockdev.None); n == 0 {
			t.Error("programs that never sync are found innocent")
		}
	})
}

// A copy with another message's bytes in it is found, whatever else is well.
func TestBytesOfAnotherMessageAreFound(t *testing.T) {
	guilty(t, func(t *testing.T, fs blockdev.FileSystem) {
		r := record(t, site(t, fs), 1)
		b := blockdev.NewBuilder(r.Log.Replaced(r.Begin, []byte(r.tries[0].Token+" 000002"), []byte(r.tries[1].Token+" 000002")))
		v, err := r.Judge(t.Context(), b, blockdev.Cut{At: r.End, Way: blockdev.All})
		if err != nil {
			t.Fatalf("%v: %v", v, err)
		}
		if len(v.Wrong) == 0 {
			t.Errorf("a line of %s was written as one of %s, and nothing is wrong:\n%s", r.tries[0].Token, r.tries[1].Token, v.Log)
		}
	})
}
