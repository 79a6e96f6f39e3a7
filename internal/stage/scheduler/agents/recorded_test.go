package agents

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/wire/taproto/taprototest"
)

// M32, M31: the recorded conversations of ZMailer's own agents, which get the jobs that
// ZMailer's scheduler gave them.
func TestRecordedAgentsAreUnderstood(t *testing.T) {
	for transcript, want := range map[string]struct {
		done    int
		outcome string // of one recipient
	}{
		"smtp-1198.txt":    {8, "delivered 250 2.0.0 queued as SINK10291"},
		"smtp-1199.txt":    {4, "failed 550 5.1.1 fail1@b.example.com: no such user here"},
		"mailbox-1202.txt": {5, "delivered Ok"},
		"hold-1205.txt":    {3, "deferred deferred"},
	} {
		t.Run(transcript, func(t *testing.T) {
			steps := taprototest.Transcript(t, filepath.Join("../../../wire/taproto/testdata", transcript))
			answered := map[string][]thread.Recipient{} // by the message's number in what follows
			for _, s := range steps {
				for _, line := range linesOf(s) {
					key, offset := strconv.FormatUint(line.Answer.Number, 10), line.Answer.Offset
					if line.Kind == taproto.LineAnswer && !slices.ContainsFunc(answered[key], func(x thread.Recipient) bool { return x.Offset() == offset }) {
						answered[key] = append(answered[key], thread.NewRecipient(offset, "user@h"))
					}
				}
			}
			r := newRig(t)
			a := r.agent(r.group("r", conf.Settings{}, 0))
			for _, s := range steps {
				if s.Agent {
					a.Lines(linesOf(s))
				} else {
					for _, job := range s.Lines() {
						if path, _, ok := strings.Cut(job, "\t"); ok {
							r.handOut(a, path, slices.Clone(answered[filepath.Base(path)]))
						} else {
							a.sendIdle()
						}
					}
				}
			}
			assert.Equal(t, r.done, want.done, "jobs that are done")
			assert.Equal(t, len(r.lost), 0, "jobs that were lost")
			assert.Equal(t, slices.Contains(r.outcomes, want.outcome), true, "%s in %q", want.outcome, r.outcomes)
		})
	}
}

// linesOf returns the lines that an agent wrote.
func linesOf(s taprototest.Step) (list []taproto.Line) {
	if !s.Agent {
		return nil
	}
	for _, line := range s.Lines() {
		list = append(list, taproto.ParseLine([]byte(line)))
	}
	return list
}

// handOut gives an agent a message for some recipients.
func (r *rig) handOut(a *Agent, name string, rcpts []thread.Recipient) {
	slices.SortFunc(rcpts, func(x, y thread.Recipient) int { return cmp.Compare(x.Offset(), y.Offset()) })
	number, _ := strconv.ParseUint(filepath.Base(name), 10, 64)
	m := &thread.Message{Number: number, Open: int32(len(rcpts)), Total: int32(len(rcpts))}
	m.SetName(name)
	r.core.Add(m, a.group.ring, "smtp", strconv.Itoa(len(r.outcomes))+name, rcpts, thread.History{}, r.now)
	a.jobs.add(Job{Vertex: r.core.Take(a.group.ring, r.now), given: r.now, heard: r.now})
}
