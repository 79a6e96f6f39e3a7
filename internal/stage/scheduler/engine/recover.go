package engine

import (
	"errors"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// settleUnfinished quarantines what nobody will finish in public/, once, at the
// start (A7). With StrictStart it refuses instead, as a *config.Error.
func settleUnfinished(c Config, po *postoffice.PostOffice) error {
	done, err := po.Submissions.SettleUnfinished(time.Now(), postoffice.BootTime(), c.StrictStart)
	if unfinished := (*postoffice.UnfinishedError)(nil); errors.As(err, &unfinished) {
		return &config.Error{File: c.Dir, Reason: "the scheduler does not start", Err: err}
	}
	for _, d := range done {
		c.Log.Warn("recovered", "name", d.Name, "action", d.Action, "reason", d.Detail)
	}
	if err != nil {
		// Mail does not depend on it.
		c.Log.Warn("recovered", "name", postoffice.Public, "action", postoffice.Unreadable, "reason", err)
	}
	return nil
}
