package whatif

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// The queue may be compared while the daemons work on it: messages that go away have moved
// on, those that stay are compared each time, no message is stopped, and none is lost.
func TestComparingAMovingQueueLosesNoMail(t *testing.T) {
	const staying = 5
	o := office.New(t)
	for range staying {
		o.Put(t, postoffice.Freezer, "flood", office.PlainMail)
	}
	before := o.Files(t)
	conf := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(conf, []byte("POSTOFFICE="+o.Dir+"\nHOSTNAME=mta.example\n"), 0o600))
	settings, err := config.Load(conf)
	assert.Must(t, err)
	engine, err := Open(settings)
	assert.Must(t, err)
	defer engine.Close()

	ctx, stop := context.WithCancel(t.Context())
	compared := make(chan error, 1)
	var met atomic.Int64 // moving messages that a comparison has seen
	go func() {
		var err error
		for last := false; err == nil && !last; {
			last = ctx.Err() != nil // once more, of what is left
			var sum *Comparison
			sum, err = Compare(t.Context(), Options{Spool: view.New(o.PostOffice, time.Now()), PostOffice: o.Dir, Candidate: engine})
			switch {
			case err != nil:
			case sum.Unread > 0 || sum.Messages < staying:
				err = fmt.Errorf("got %+v", sum)
			case last && sum.Messages+sum.Moved != staying:
				err = fmt.Errorf("of an idle queue, got %+v", sum)
			default:
				met.Add(int64(sum.Messages + sum.Moved - staying))
			}
		}
		compared <- err
	}()
	for met.Load() < 50 && len(compared) == 0 {
		// A claim fails if something else holds the message.
		_, name, _ := o.Enqueue(t, "user@a.example.com")
		assert.Must(t, os.Remove(o.Path(postoffice.Queue+"/"+name)), os.Remove(o.Path(postoffice.Transport+"/"+name)))
	}
	stop()
	assert.Must(t, <-compared)
	assert.Same(t, o.Files(t), before)
}
