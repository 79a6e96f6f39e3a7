package engine

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// newFollowing returns a rig whose scheduler reads its configuration from a file; ask has it
// do so now.
func newFollowing(t *testing.T, text string) (r *rig, put func(string), ask func()) {
	t.Helper()
	r = newRig(t, text, 0, nil)
	path := filepath.Join(r.T.TempDir(), "scheduler.conf")
	put = func(text string) {
		r.T.Helper()
		// As editors do it: a new file in the place of the old one.
		assert.Must(r.T, os.WriteFile(path+".new", []byte(text), 0o600))
		assert.Must(r.T, os.Rename(path+".new", path))
	}
	put(text)
	c := make(chan os.Signal, 1)
	r.config.Reread = Reread{File: path, Ask: c, Read: func(bool) (*Renewal, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		next, err := conf.Parse("scheduler.conf", text, nil)
		return &Renewal{Conf: next}, err
	}}
	return r, put, func() { c <- syscall.SIGHUP }
}

// pids returns those of the agents that were started for a channel.
func (r *rig) pids(channel string) (list []string) {
	for line := range strings.Lines(r.events.String()) {
		if strings.Contains(line, "msg=agent-started") && strings.Contains(line, "channel="+channel) {
			_, rest, _ := strings.Cut(line, "pid=")
			list = append(list, strings.Fields(rest)[0])
		}
	}
	return list
}

// M30: a new configuration takes effect while agents and deliveries go on; what waits in
// the queue follows it (the trap "configuration frozen into queued mail").
func TestReloadKeepsRunningAgents(t *testing.T) {
	t.Parallel()
	clause := "\t" + agentCommand("TEST_SLOTS=5") + "\n"
	before := "*/* interval=1h retries=1 expiry=3d idlemax=1h maxthr=20\nsmtp/*\n" + clause
	r, put, ask := newFollowing(t, before)
	r.queue("smtp h gate@h")
	r.queue("smtp old defer9@h")
	r.queue("uucp far x@h")
	r.start()
	open := r.atGate()
	r.wait(1, "msg=deferred", "defer9@h")
	r.wait(1, "msg=unknown-channel", "x@h")

	// Another order of clauses, an alias, other limits, a new channel, a shorter expiry.
	put("PARAM mailqsock = 127.0.0.1:0\nuucp/*\n" + clause + "*/* interval=1h retries=1 idlemax=1h maxthr=7\nsmtp/*.old\n expiry=9d\nsmtp/old\n\texpiry=1s\nlmtp/*\nsmtp/*\n" + clause)
	ask()
	r.wait(1, "msg=conf-read", "why=asked")
	r.wait(1, "msg=query-served", "socket=127.0.0.1:")
	r.wait(1, "msg=delivered", "x@h")
	r.wait(1, "msg=expired", "defer9@h")
	open()
	r.wait(1, "msg=delivered", "gate@h")
	r.queue("smtp h ok.later@h")
	r.wait(1, "msg=delivered", "ok.later@h")
	assert.Equal(t, len(r.pids("smtp")), 1, "agents for smtp, with the one of the beginning")
	r.never("msg=agent-ended")
}

// M30: times of reports that have changed count for mail that waits.
func TestReloadChangesTheTimesOfReports(t *testing.T) {
	t.Parallel()
	clause := "smtp/*\n\t" + agentCommand("TEST_SLOTS=5") + "\n"
	before := "*/* interval=1h retries=1 expiry=3d\n" + clause
	r, put, ask := newFollowing(t, before)
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer9@h", Notary: "NOTIFY=DELAY"})
	r.start()
	r.wait(1, "msg=deferred")
	put("*/* interval=1h retries=1 expiry=3d reporttimes=1s\n" + clause)
	ask()
	r.wait(1, "msg=report", "kind=delayed", "rcpt=a@b")
}

// M30: a bad file is refused with line and reason, and the old one stays.
func TestBadReloadIsRefused(t *testing.T) {
	t.Parallel()
	clause := "\t" + agentCommand("TEST_SLOTS=5") + "\n"
	before := "*/* interval=1h retries=1 expiry=3d idlemax=1h\nsmtp/*\n" + clause
	r, put, ask := newFollowing(t, before)
	r.queue("smtp h ok@h")
	r.start()
	r.wait(1, "msg=delivered", "ok@h")
	put("*/* interval=1h\nsmtp/*\n\tmaxtr=5 rate=many\n" + clause)
	ask()
	r.wait(1, "msg=conf-refused", "scheduler.conf:3:2: ", "maxtr")
	r.wait(1, "msg=conf-refused", "scheduler.conf:3:15: rate=many")
	r.queue("smtp h ok.2@h")
	r.wait(1, "msg=delivered", "ok.2@h")
	assert.Equal(t, len(r.pids("smtp")), 1, "agents for smtp, with the one of the beginning")
	r.never("msg=conf-read")
}

// M30: a file that changes is read without being asked for.
func TestChangedFileIsRead(t *testing.T) {
	t.Parallel()
	clause := "\t" + agentCommand("TEST_SLOTS=5") + "\n"
	before := "*/* interval=1h retries=1 expiry=3d idlemax=1h\nsmtp/*\n" + clause
	r, put, _ := newFollowing(t, before)
	r.queue("uucp far x@h")
	r.start()
	r.wait(1, "msg=unknown-channel")
	put(before + "uucp/*\n" + clause)
	r.wait(1, "msg=conf-read", "why=changed")
	r.wait(1, "msg=delivered", "x@h")
}

// M30: of two hosts that one clause served, one is taken out of it.
func TestReloadTakesAHostOutOfAClause(t *testing.T) {
	t.Parallel()
	clause := "smtp/h\n\t" + agentCommand("TEST_SLOTS=5") + "\n"
	before := "*/* interval=1h retries=1 expiry=3d idlemax=1h\nsmtp/far\n" + clause
	r, put, ask := newFollowing(t, before)
	r.queue("smtp far defer1.x@far")
	r.queue("smtp h defer1.x@h")
	r.start()
	r.wait(2, "msg=recorded")
	put(strings.Replace(before, "smtp/far\n", "", 1))
	ask()
	r.wait(1, "msg=conf-read")
	r.wait(1, "msg=unknown-channel", "x@far")
	r.never("msg=unknown-channel", "x@h")
}

// M30: agents that the new configuration would start in another way end when their
// deliveries are done, and mail of a clause that is gone waits for it to come back.
func TestReloadEndsAgentsThatAreNotWantedAnyMore(t *testing.T) {
	t.Parallel()
	conf := func(vars, patterns string) string {
		return "*/* interval=1h retries=1 expiry=3d idlemax=1h maxthr=20\n" + patterns + "\t" + agentCommand(vars) + "\n"
	}
	before := conf("TEST_SLOTS=5", "smtp/*\nx/*\n")
	r, put, ask := newFollowing(t, before)
	r.queue("smtp h gate@h")
	r.queue("x h defer9@h")
	r.start()
	open := r.atGate()
	r.wait(1, "msg=deferred", "defer9@h")

	put(conf("TEST_SLOTS=6", "smtp/*\n"))
	ask()
	r.wait(1, "msg=conf-read", "agents=2")
	r.wait(1, "msg=unknown-channel", "defer9@h")
	r.wait(1, "msg=agent-ended", "pid="+r.pids("x")[0])
	r.queue("smtp h ok@h")
	r.wait(1, "msg=delivered", "ok@h")
	open()
	r.wait(1, "msg=delivered", "gate@h")
	list := r.pids("smtp")
	if len(list) != 2 {
		t.Fatalf("agents for smtp: %q, want an old one and a new one", list)
	}
	r.wait(1, "msg=agent-ended", "pid="+list[0])

	// Its time was an hour away; that is still so.
	put(conf("TEST_SLOTS=6", "x/*\nsmtp/*\n"))
	ask()
	r.wait(2, "msg=conf-read")
	r.wait(1, "msg=queued")
	put(strings.Replace(conf("TEST_SLOTS=6", "x/*\nsmtp/*\n"), "interval=1h", "interval=1s", 1))
	ask()
	r.wait(2, "msg=deferred", "defer9@h")
}
