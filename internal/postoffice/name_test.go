package postoffice

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestSpoolIDHasTheDigitsOfBase62(t *testing.T) {
	times := []int64{0, 1, 61, 62, -1, -62, math.MaxInt64, math.MinInt64, 1795220010123456789}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		times = append(times, random.Int64()>>random.IntN(63), -random.Int64()>>random.IntN(63))
	}
	for _, ns := range times {
		id := SpoolID{Ino: 7, MTime: ns}
		assert.Equal(t, id.String(), "S7A"+big.NewInt(ns).Text(62), ns)
		if got, err := ParseSpoolID(id.String()); err != nil || got != id {
			t.Errorf("%d: got %v, %v", ns, got, err)
		}
	}
}

func TestSpoolIDOfAnotherFormIsRefused(t *testing.T) {
	for _, bad := range []string{"", "S", "10117776", "S1", "S1A", "SxA1", "S01A1", "S1A!", "S1A1 ", "S1A" + strings.Repeat("z", 30)} {
		if id, err := ParseSpoolID(bad); err == nil {
			t.Errorf("ParseSpoolID(%q) = %v, want an error", bad, id)
		}
	}
}

func FuzzParseSpoolID(f *testing.F) {
	for _, s := range []string{"S10117782A2CnLkQ0vB8C", "S1A0", "S1A-0", "S1A00", "S1AAzL8n0Y58m7", "S1AAzL8n0Y58m8", "S1A-AzL8n0Y58m8", "S1A-AzL8n0Y58m9", "S1Azzzzzzzzzzz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseSpoolID(s)
		if err == nil && id.String() != s {
			t.Errorf("got %v of %q", id, s)
		}
	})
}
