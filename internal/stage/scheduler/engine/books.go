package engine

import (
	"context"
	"errors"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/thread"
)

// books keeps the ledger.
type books struct {
	*base
	keeping, unkept bool // it is being folded; it could not be
}

// enterVanished enters a message whose files were taken away under us, unless the
// message itself is there: then it is routed again.
func (e *books) enterVanished(m *thread.Message) {
	name, id, total := m.Name(), idOf(m), int(m.Total)
	e.pool.do(func() {
		_, err := e.po.Queue.StatMessage(name)
		if errors.Is(err, postoffice.ErrGone) {
			_, err = e.po.Queue.StatMessage(e.po.Queue.Place(name))
		}
		if errors.Is(err, postoffice.ErrGone) {
			e.spool.Ledger.Gone(id, total, "vanished")
		}
	})
}

// startLedger settles what a loss of power has made of it.
func (e *books) startLedger(ctx context.Context) {
	patience := ledger.StartPatience()
	patience.Before = e.spool.Recover
	done, err := e.spool.Ledger.Settle(ctx, patience)
	if err != nil {
		e.log.Error("ledger-trouble", "reason", err, "advice", "mail goes on; zmctl check --ledger lists what is missing")
	}
	if done.Why != "" {
		e.log.Info("ledger-settled", "reason", done.Why, "found", done.Found, "unknown", done.Unknown)
	}
}

// keepLedger folds the ledger beside everything else.
func (e *books) keepLedger() {
	if e.keeping {
		return
	}
	e.keeping = true
	e.pool.do(func() {
		err := e.spool.Ledger.Keep()
		e.post(func() {
			e.keeping = false
			if err != nil && !e.unkept {
				e.log.Error("ledger-trouble", "reason", err, "advice", "mail goes on; the journals stay until that is mended")
			}
			e.unkept = err != nil
		})
	})
}
