package store

import (
	"time"

	"zmailer/internal/postoffice/alarm"
)

// standing looks at the directories that are not the scheduler's own. linked are the files
// there that have another name, too.
func (s *Store) Standing(l alarm.Limits, now time.Time) (list []alarm.Alarm, linked []string) {
	for _, d := range l.Places() {
		if d.Limit == 0 {
			continue
		}
		st, err := s.PostOffice.Standing(d.Dir)
		if err != nil {
			s.Log.Error("disk", "name", d.Dir, "reason", err, "retry", "at the next look")
			continue
		}
		if a, ok := alarm.Age(d.Dir, st.Count, st.Oldest, d.Limit, now); ok {
			list = append(list, a)
		}
		for _, name := range st.Linked {
			linked = append(linked, d.Dir+"/"+name)
		}
	}
	return list, linked
}
