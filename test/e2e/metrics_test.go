package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

var measured = []string{"smtpserver", "router", "scheduler"}

// readMetrics reads the metrics of a program, as text and parsed.
func readMetrics(t *testing.T, s *suite.Suite, program string) (suite.Metrics, []byte) {
	t.Helper()
	text, err := s.ReadMetrics(program)
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	m, err := suite.ParseMetrics(text)
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, text)
	}
	return m, text
}

// Z26: each daemon counts mail by role, channel and clause; the times of each recipient's stages
// are in its histograms; and no label is a host or an address.
func TestMetricsCountMail(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, attempt int) string {
		switch {
		case strings.HasPrefix(address, "nobody"):
			return "550 5.1.1 no such user"
		case strings.HasPrefix(address, "later") && attempt == 1:
			return "451 4.2.1 later"
		}
		return ""
	}})
	s := start(t, sink, func(s *suite.Suite) {
		s.Settings = map[string]string{"METRICS": "unix", "RELAYNETS": "127.0.0.0/8", "LOGLEVEL": "info"}
	})
	c := connect(t, s.SMTPAddr)
	for range 3 {
		c.send("alice@mta.example", "Subject: x\r\n\r\nx\r\n", "250", "alice@mta.example", "someone@far.example", "nobody@far.example", "later@other.example")
	}
	c.say("MAIL FROM:<a@mta.example>", "250")
	c.say("RCPT TO:<alice@mta.example> NOTIFY=NEVER NOTIFY=NEVER", "501")
	c.say("RSET", "250")
	submit(t, s, "Subject: x\n\nx\n", "-f", "<>", "bob@mta.example")
	awaitEmpty(t, s)
	await(t, s, "scheduler that has finished all messages", func() (bool, error) {
		m, err := s.Metrics("scheduler")
		return m.Sum("zmailer_scheduler_messages_done_total") == 7, err
	})
	for _, tt := range []struct {
		name, labels string
		want         float64
	}{
		{"smtpserver_connections_total", "role mx", 2}, // the other one is the suite's
		{"smtpserver_connections", "role mx", 1},
		{"smtpserver_messages_total", "role mx result accepted", 3},
		{"smtpserver_messages_total", "", 3},
		{"smtpserver_recipients_total", "result accepted", 12},
		{"smtpserver_recipients_total", "result refused", 1},
		{"smtpserver_receive_seconds", "role mx", 3},
		{"smtpserver_commit_seconds", "", 3},
		// Four messages, and a report for each of three.
		{"router_messages_total", "result routed", 7},
		{"router_recipients_total", "channel local", 3 + 1 + 3},
		{"router_recipients_total", "channel smtp", 9},
		{"router_wait_seconds", "", 7},
		{"router_routing_seconds", "", 7},
		{"scheduler_messages_read_total", "", 7},
		{"scheduler_messages_done_total", "", 7},
		{"scheduler_messages", "", 0},
		{"scheduler_recipients_total", "channel smtp clause smtp/* result delivered", 6},
		{"scheduler_recipients_total", "channel smtp clause smtp/* result failed", 3},
		{"scheduler_recipients_total", "channel smtp clause smtp/* result deferred", 1}, // the sink's first attempt for it
		{"scheduler_reports_total", "kind failed", 3},
		{"scheduler_delivery_seconds", "channel smtp clause smtp/*", 10},
		{"scheduler_queue_seconds", "channel smtp", 10},
		{"scheduler_life_seconds", "channel smtp result delivered", 6},
		{"scheduler_agents", "clause smtp/*", 1},
	} {
		program, _, _ := strings.Cut(tt.name, "_")
		m, _ := readMetrics(t, s, program)
		assert.Equal(t, m.Sum("zmailer_"+tt.name, strings.Fields(tt.labels)...), tt.want, tt.name)
	}
	for _, program := range measured {
		m, text := readMetrics(t, s, program)
		problems, err := promlint.New(bytes.NewReader(text)).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("%s: %v %v", program, problems, err)
		}
		for name, f := range m {
			for _, sample := range f.Samples {
				for label, v := range sample.Labels {
					if label != "go" && (strings.ContainsAny(v, "@. ") || strings.Contains(v, "127")) {
						t.Errorf("%s has %s=%q", name, label, v)
					}
				}
			}
		}
	}
	stop(t, s)
	if left, err := filepath.Glob(filepath.Join(s.PostOffice(), ".metrics.*")); err != nil || len(left) > 0 {
		t.Errorf("sockets are left: %q, %v", left, err)
	}
}

// A18: the gauges of the postoffice are those of the disk while mail waits in each directory, also
// for files that no daemon has ever seen.
func TestMetricsCountTheFiles(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "451 4.2.1 later" }})
	s := start(t, sink, func(s *suite.Suite) {
		s.Settings = map[string]string{"METRICS": "unix", "HASHLEVELS": "1"}
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, `interval=1s retries="1 1 2 3"`, "interval=1h", 1)
	})
	for range 7 {
		submit(t, s, "Subject: x\n\nx\n", "-f", "<>", "someone@far.example", "other@far.example")
	}
	// By hand, as a postmaster may.
	for dir, n := range map[string]int{"deferred": 3, "freezer": 2, "postman": 4, "quarantine": 1} {
		assert.Must(t, os.MkdirAll(path(s, dir), 0o755))
		for i := range n {
			write(t, path(s, fmt.Sprintf("%s/%d", dir, 900000+i)), "x\n")
		}
	}
	await(t, s, "counts of the metrics that are those of the disk", func() (bool, error) {
		m, err := s.Metrics("scheduler")
		if err != nil {
			return false, err
		}
		same := m.Sum("zmailer_spool_messages", "directory", "transport") == 7 && m.Sum("zmailer_scheduler_messages") == 7
		for dir, n := range fileCounts(t, s) {
			same = same && m.Sum("zmailer_spool_messages", "directory", dir) == float64(n)
		}
		return same && m.Sum("zmailer_scheduler_recipients", "channel", "smtp") == 14, nil
	})
	m, _ := readMetrics(t, s, "scheduler")
	assert.Equal(t, m.Sum("zmailer_scheduler_threads"), 1)
}

// An address of another machine is refused; a port that is taken costs the metrics, not the mail.
func TestMetricsAreServedWhereTheSettingSays(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	for _, program := range measured {
		bad := confFile(s, "bad.conf")
		write(t, bad, read(t, s.Config())+"METRICS="+program+"=0.0.0.0:9126\n")
		wantIn(t, exits(t, s, 78, program, "--config", bad), "METRICS")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	defer taken.Close()
	free := freeAddr(t)
	s = start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"METRICS": fmt.Sprintf(`"router=unix scheduler=%s smtpserver=%s"`, taken.Addr(), free)}
	})
	event(t, s, "metrics-not-served", "program", "scheduler", "address", taken.Addr().String())
	if text, err := suite.ReadMetricsAt(free); err != nil || !strings.Contains(string(text), "zmailer_smtpserver_connections") {
		t.Errorf("%v %s", err, text)
	}
	submit(t, s, "Subject: x\n\nx\n", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
	readMetrics(t, s, "router")
}

// families returns the metrics of all daemons, with their types and labels.
func families(t *testing.T) map[string]string {
	t.Helper()
	s := start(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"METRICS": "unix"} })
	all := map[string]string{}
	for _, program := range measured {
		await(t, s, "the metrics of "+program, func() (bool, error) {
			_, err := s.ReadMetrics(program)
			return err == nil, nil
		})
		text, err := s.ReadMetrics(program)
		assert.Must(t, err)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" {
				all[f[2]] = f[3]
			}
		}
	}
	return all
}

// docs/metrics.md, the rules and the dashboard name the metrics that there are and no others; the
// dashboard shows all of them.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	have := families(t)
	doc := read(t, "../../docs/metrics.md")
	documented := map[string]string{}
	for line := range strings.Lines(doc) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		for _, name := range strings.Split(cells[1], ",") {
			documented[strings.Trim(name, " `")] = strings.TrimSpace(cells[2])
		}
	}
	for name, kind := range have {
		assert.Equal(t, documented[name], kind, name)
	}
	for name := range documented {
		if have[name] == "" {
			t.Errorf("docs/metrics.md has %s, which no daemon has", name)
		}
	}
	rules := read(t, "../../packaging/prometheus/zmailer.rules.yml")
	board := read(t, "../../packaging/grafana/zmailer.json")
	for _, file := range []string{rules, board} {
		for _, name := range metricName.FindAllString(file, -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if b, ok := strings.CutSuffix(name, suffix); ok && have[b] == "histogram" {
					base = b
				}
			}
			if have[base] == "" {
				t.Errorf("%s is used, and no daemon has it", name)
			}
		}
	}
	for name := range have {
		if !strings.Contains(board, name) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
	for _, alert := range regexp.MustCompile(`(?m)^ +- alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(doc, "| `"+alert[1]+"` |") {
			t.Errorf("docs/metrics.md does not describe %s", alert[1])
		}
		if !strings.Contains(read(t, "../../packaging/prometheus/zmailer.rules.test.yml"), "alertname: "+alert[1]) {
			t.Errorf("no test for %s", alert[1])
		}
	}
}

var metricName = regexp.MustCompile(`\b(zmailer|process|go)_[a-z_]+\b`)

// promtool accepts the rules and their tests, the dashboard's expressions and the daemons' metrics.
func TestPromtoolAcceptsRulesDashboardAndMetrics(t *testing.T) {
	t.Parallel()
	need(t, "promtool")
	promtool := func(in []byte, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Stdin = bytes.NewReader(in)
		cmd.Dir = "../../packaging/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	promtool(nil, "check", "rules", "zmailer.rules.yml")
	promtool(nil, "test", "rules", "zmailer.rules.test.yml")

	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	assert.Must(t, json.Unmarshal([]byte(read(t, "../../packaging/grafana/zmailer.json")), &board))
	rules := "groups:\n- name: board\n  rules:\n"
	n := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", "zmailer", "$instance", ".+").Replace(target.Expr)
			rules += fmt.Sprintf("  - {record: 'board:%d', expr: %s}\n", n, quoteYAML(expr))
			n++
		}
	}
	if n < 30 {
		t.Errorf("%d questions", n)
	}
	file := filepath.Join(t.TempDir(), "board.yml")
	assert.Must(t, os.WriteFile(file, []byte(rules), 0o644))
	promtool(nil, "check", "rules", file)

	s := start(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"METRICS": "unix"} })
	for _, program := range measured {
		_, text := readMetrics(t, s, program)
		promtool(text, "check", "metrics")
	}
}

func quoteYAML(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
