package store

import (
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// sweepOwners gives back the numbers that dead routers and agents have left, once
// nothing bears them. What was found left is remembered for the next time.
func (s *sweeper) sweepOwners() {
	left, done, err := s.PostOffice.Owners.Sweep(workspec.LockOwners, s.left)
	s.left = left
	for _, r := range done {
		if r.Action == postoffice.Unreadable {
			s.Log.Error("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
			continue
		}
		s.Log.Info("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
	}
	if err != nil {
		// Nothing but numbers depends on it.
		s.Log.Error("recovered", "action", postoffice.Unreadable, "name", postoffice.Owners, "reason", err)
	}
}
