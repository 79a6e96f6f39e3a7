package query

import (
	"slices"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/socket"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// diskKeep is how long the counts of files in directories are used again.
const diskKeep = 5 * time.Second

// Measure has the metrics of the queue read from a set, until stop is called, which has to be
// before Stop.
func (q *Server) Measure(set *metrics.Set) (stop func()) {
	if set == nil {
		return func() {}
	}
	by := []string{"channel", "clause"}
	set.Ask(0, q.measure,
		metrics.Family{Name: "zmailer_scheduler_messages", Help: "Messages in transport/ that the scheduler has read."},
		metrics.Family{Name: "zmailer_scheduler_messages_read_total", Help: "Messages that it has read since its start."},
		metrics.Family{Name: "zmailer_scheduler_messages_done_total", Help: "Messages of which all recipients were done with."},
		metrics.Family{Name: "zmailer_scheduler_refused_specifications", Help: "Files in transport/ that cannot be used and are left alone."},
		metrics.Family{Name: "zmailer_scheduler_oldest_seconds", Help: "Age of the oldest message with recipients to be delivered, at the last look at all of them."},
		metrics.Family{Name: "zmailer_scheduler_recipients", Help: "Recipients that wait for an attempt or are in one.", Labels: by},
		metrics.Family{Name: "zmailer_scheduler_deliveries", Help: "Deliveries: ready could begin now, running are with an agent.", Labels: append(by, "state")},
		metrics.Family{Name: "zmailer_scheduler_threads", Help: "Hosts of a channel with mail, by the state of their thread.", Labels: append(by, "state")},
		metrics.Family{Name: "zmailer_scheduler_agents", Help: "Transport agents.", Labels: []string{"clause", "state"}},
		metrics.Family{Name: "zmailer_suspensions", Help: "Suspensions of deliveries by operators that are in force (docs/suspend.md)."},
		metrics.Family{Name: "zmailer_alarms", Help: "What needs an operator (docs/alarms.md).", Labels: []string{"kind"}},
		metrics.Family{Name: "zmailer_alarm_refused_seconds", Help: "How long each file or server that an alarm of the kind refused is about could not be used.", Labels: []string{"subject"}})
	set.Ask(diskKeep, q.measureDisk,
		metrics.Family{Name: "zmailer_spool_messages", Help: "Messages in a directory of the postoffice, as ls counts them.", Labels: []string{"directory"}},
		metrics.Family{Name: "zmailer_spool_oldest_seconds", Help: "Age of the oldest of them; 0 if there is none.", Labels: []string{"directory"}})
	return set.Serve(q.Dir, socket.ListenAlone, q.Log)
}

// maxSubjects bounds the subjects of alarms that are named.
const maxSubjects = 100

// measure puts what the engine has at hand. It looks at all threads, askedAtOnce in a
// turn, and at no message.
func (q *Server) measure(put metrics.Put) {
	rings, sums, c, err := q.unsorted(func(v View) {
		st := v.Status()
		put("zmailer_scheduler_refused_specifications", float64(st.Refused))
		oldest := 0.0
		if st.Oldest != 0 {
			oldest = store.Since(time.Unix(0, st.Oldest), v.Now()).Seconds()
		}
		put("zmailer_scheduler_oldest_seconds", oldest)
		put("zmailer_suspensions", float64(st.Suspensions))
		for _, k := range []alarm.Kind{alarm.TooOld, alarm.NoProgress, alarm.Orphan, alarm.Duplicate, alarm.Unusable, alarm.Unreported, alarm.Refused, alarm.Certificate} {
			put("zmailer_alarms", 0, string(k))
		}
		subjects := map[string]bool{}
		for _, a := range st.Alarms {
			put("zmailer_alarms", 1, string(a.Kind))
			if subjects[a.Subject] || a.Kind != alarm.Refused || len(subjects) == maxSubjects {
				continue // of several programs
			}
			subjects[a.Subject] = true
			put("zmailer_alarm_refused_seconds", store.Since(a.Since, v.Now()).Seconds(), a.Subject)
		}
	})
	if err != nil {
		return // the scheduler stops
	}
	put("zmailer_scheduler_messages", float64(sums.Messages))
	put("zmailer_scheduler_messages_read_total", float64(c.MessagesIn))
	put("zmailer_scheduler_messages_done_total", float64(c.MessagesOut))
	for _, r := range rings {
		put("zmailer_scheduler_agents", float64(r.procs-r.idle), r.clause, "busy")
		put("zmailer_scheduler_agents", float64(r.idle), r.clause, "idle")
		for part := r.threads; len(part) > 0; {
			n := min(len(part), askedAtOnce)
			if err := q.ask(func(v View) { q.measureThreads(v, r.clause, part[:n], put) }); err != nil {
				return
			}
			part = part[n:]
		}
	}
}

// measureThreads puts what threads have; the engine calls it.
func (q *Server) measureThreads(v View, clause string, list []*thread.Thread, put metrics.Put) {
	for _, t := range list {
		q.visited++
		s := t.Brief(v.Now())
		if s.Vertices == 0 {
			continue // it has ended
		}
		channel := t.Channel()
		put("zmailer_scheduler_recipients", float64(s.Recipients), channel, clause)
		put("zmailer_scheduler_deliveries", float64(s.Ready), channel, clause, "ready")
		put("zmailer_scheduler_deliveries", float64(s.Running), channel, clause, "running")
		put("zmailer_scheduler_threads", 1, channel, clause, s.State)
	}
}

// measureDisk counts the files (A18). A directory that cannot be read is left out.
func (q *Server) measureDisk(put metrics.Put) {
	po := q.PostOffice
	dirs, err := po.Router.Dirs()
	if err != nil {
		dirs = []string{postoffice.Router}
	}
	for _, dir := range slices.Concat(po.Submissions.Inboxes(), []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman}, dirs) {
		s, err := po.Standing(dir)
		if err != nil {
			continue
		}
		put("zmailer_spool_messages", float64(s.Count), dir)
		age := 0.0
		if s.Count > 0 {
			age = store.Since(s.Oldest, time.Now()).Seconds()
		}
		put("zmailer_spool_oldest_seconds", age, dir)
	}
	for dir, list := range map[string]func(func(string) error) error{postoffice.Queue: po.Queue.ListMessages, postoffice.Transport: po.Queue.List} {
		n := 0
		if err := list(func(string) error { n++; return nil }); err == nil {
			put("zmailer_spool_messages", float64(n), dir)
		}
	}
	n := 0
	err = durable.ReadDirFunc(po.FS(), postoffice.Quarantine, func(part []durable.Entry) error {
		for _, entry := range part {
			if !strings.HasSuffix(entry.Name, ".why") {
				n++
			}
		}
		return nil
	})
	if err == nil {
		put("zmailer_spool_messages", float64(n), postoffice.Quarantine)
	}
}
