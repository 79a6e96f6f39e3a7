package human

import (
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func TestTimesAreShort(t *testing.T) {
	for in, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m", 59 * time.Minute: "59m",
		time.Hour: "1h", 80 * time.Minute: "1h20m", 24 * time.Hour: "1d", 76 * time.Hour: "3d4h", 1000 * 24 * time.Hour: "1000d",
	} {
		assert.Equal(t, Span(in), want, in)
	}
}

func TestSizesAreShort(t *testing.T) {
	for in, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1.0k", 4200: "4.1k", 20 << 10: "20k", 1 << 20: "1.0M", 100 << 20: "100M", 3 << 40: "3.0T", 1<<63 - 1: "8192P",
	} {
		assert.Equal(t, Size(in), want, in)
	}
}

func TestLongTextIsCut(t *testing.T) {
	assert.Equal(t, Cut("äöüäöü", 5), "äö...")
}
