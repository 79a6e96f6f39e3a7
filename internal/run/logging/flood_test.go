package logging

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

func TestBoundedCountsWhatItDoesNotLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logtest.Buffer
		log := Bounded(slog.New(slog.NewTextHandler(&out, nil)))
		lines := func(has string) int {
			synctest.Wait() // what a timer logs is written
			return strings.Count(out.String(), has)
		}
		many := func(n int) {
			for range n {
				log.Info("evicted", "client", "x")
			}
		}
		many(floodLines)
		log.Warn("refused") // counts by itself
		assert.Equal(t, lines("msg=evicted"), floodLines)
		<-time.After(floodTime + 1)
		assert.Equal(t, lines("msg=unlogged"), 0)
		many(1000)
		<-time.After(time.Second)
		many(500)
		assert.Equal(t, lines("msg=evicted"), 2*floodLines)
		assert.Equal(t, lines("msg=unlogged"), 0)
		<-time.After(floodTime)
		assert.Equal(t, lines("level=INFO msg=unlogged event=evicted times=1480\n"), 1)
		many(1)
		assert.Equal(t, lines("msg=evicted"), 2*floodLines+1)
		<-time.After(2 * floodTime)
		assert.Equal(t, lines("msg=unlogged"), 1)
		assert.Equal(t, lines("msg=refused"), 1)
	})
}
