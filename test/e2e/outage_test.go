package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	pipeline "zmailer/internal/admin/service"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/suite"
)

// Op1: a log that cannot be opened is found by check-config, and a restart leaves alone what runs.
func TestOp1RestartWithoutALogLeavesTheDaemonsAlone(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"LOGFILE": s.Dir + "/logs/log"} })
	t.Cleanup(func() { call(t, s, "zmctl", "stop", "--direct") })
	exits(t, s, 0, "zmctl", "start", "--direct")
	before := oneOf(t, s, "scheduler").Pid
	configure(t, s, "zmailer.conf", strings.Replace(read(t, s.Config()), "/logs/log", "/no/such/log", 1))
	wantIn(t, exits(t, s, config.ExitConfig, "zmctl", "check-config"), "LOGFILE=")
	exits(t, s, config.ExitConfig, "zmctl", "restart", "--direct")
	assert.Equal(t, oneOf(t, s, "scheduler").Pid, before)
	if _, err := os.Stat(s.Dir + "/logs/log"); err != nil {
		t.Error(err)
	}
}

// reloadLine is what a unit runs before it sends SIGHUP.
var reloadLine = regexp.MustCompile(`(?m)^ExecReload=\S*/zmctl --config \S+ (check-config.*)$`)

// Op2, Op1: a table on a server that is down keeps the machine neither from starting nor from
// reloading: clients get 451, the router defers, and all of it goes on by itself when the server is
// there. check-config names the outage as an error of the moment.
func TestOp2OutageOfATablesServerStopsNoStartAndNoReload(t *testing.T) {
	t.Parallel()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	assert.Must(t, l.Close()) // nobody listens there now
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"ALIASES": "http:web", "LOOKUPKEEP": "0", "ROUTERPOLL": "1s", "RESUBMIT": "1s,2s", "RCPTCHECK": "all", "LOGFILE": s.Dir + "/log"}
		s.Files["web"] = "url = http://" + addr + "/?q=%s\nformat = text\n"
	})
	t.Cleanup(func() { call(t, s, "zmctl", "stop", "--direct") })
	exits(t, s, config.ExitConfig, "zmctl", "check-config")
	for _, unit := range pipeline.Daemons() {
		text := read(t, "../../packaging/systemd/zmailer-"+unit+".service.in")
		m := reloadLine.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s: no check before a reload", unit)
		}
		exits(t, s, 0, "zmctl", strings.Fields(m[1])...)
	}
	exits(t, s, 0, "zmctl", "start", "--direct")
	exits(t, s, 0, "zmctl", "reload")
	for _, d := range pipeline.Daemons() {
		oneOf(t, s, d)
	}
	k := connect(t, s.SMTPAddr)
	k.say("EHLO client.example", "250")
	k.say("MAIL FROM:<a@client.example>", "250")
	k.say("RCPT TO:<viaweb@mta.example>", "451")
	k.say("QUIT", "221")
	submit(t, s, "Subject: waits\n\n", "-f", "bob@mta.example", "viaweb@mta.example")
	await(t, s, "a deferral by the router", func() (bool, error) {
		b, err := os.ReadFile(s.Dir + "/log")
		return strings.Contains(string(b), "deferred"), err
	})

	l = assert.Get(net.Listen("tcp", addr))(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("q") != "viaweb" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		fmt.Fprintln(w, "alice")
	})}
	go func() { _ = server.Serve(l) }() // it ends with Close
	t.Cleanup(func() { _ = server.Close() })
	awaitMail(t, s, "alice", 1)
	sendSMTP(t, s, "a@client.example", "viaweb@mta.example", "Subject: two\n\n")
	awaitMail(t, s, "alice", 2)
	awaitEmpty(t, s)
}

// Op1: while zmailer.conf cannot be used, an operator's commands go by the version that the daemons
// use, and exit as what they do; those that apply the file refuse it.
func TestOp1OperatorsCommandsWorkWhileZmailerConfIsBad(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) { s.Files["routes"] = ". smtp!192.0.2.1\n" })
	zmctl(t, s, "suspend", "--host", "192.0.2.1")
	submit(t, s, "Subject: x\n\n", "-f", "alice@mta.example", "far@away.example")
	id := event(t, s, "routed").Get("id")
	good := read(t, s.Config())
	configure(t, s, "zmailer.conf", good+"GREYLIST=perhaps\n")
	for _, args := range [][]string{
		{"queue"}, {"show", id}, {"why", id}, {"orders"}, {"suspend", "--host", "other.example"}, {"resume", "--host", "other.example"},
		{"hold", "--yes", id}, {"release", "--yes", id}, {"check"}, {"removed"}, {"freezer", "list"}, {"route", "alice@mta.example"}, {"cleanup"}, {"thread"},
	} {
		said := exits(t, s, 0, "zmctl", args...)
		wantIn(t, said, "GREYLIST")
		if n := strings.Count(said, "GREYLIST"); n != 1 {
			t.Errorf("%q: the error stands there %d times: %s", args, n, said)
		}
	}
	wantIn(t, exits(t, s, 0, "zmctl", "queue", "--json"), id)
	for _, args := range [][]string{{"start", "--direct"}, {"restart", "--direct"}, {"reload"}, {"check-config"}} {
		exits(t, s, config.ExitConfig, "zmctl", args...)
	}
	exits(t, s, config.ExitUsage, "zmctl", "hold") // the code of the operation
	configure(t, s, "zmailer.conf", good)
	if said := exits(t, s, 0, "zmctl", "queue"); strings.Contains(said, "warning") {
		t.Errorf("mended: %s", said)
	}
}
