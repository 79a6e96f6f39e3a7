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

	"zmailer/test/peer"
	"zmailer/test/suite"
)

var measured = []string{"smtpserver", "router", "scheduler"}

// readMetrics reads what a program tells, as text and parsed.
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

// Z26: each daemon counts what has become of mail, by role, channel and clause; the times
// of each recipient's stages are in its histograms; and no label is a host or an address.
func TestMetricsTellWhatBecameOfMail(t *testing.T) {
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
	c := dialSMTP(t, s)
	for range 3 {
		c.send(t, "alice@mta.example", []string{"alice@mta.example", "someone@far.example", "nobody@far.example", "later@other.example"})
	}
	c.refused(t)
	submit(t, s, "Subject: x\n\nx\n", "-f", "<>", "bob@mta.example")
	awaitEmpty(t, s)
	await(t, s, "scheduler that knows so", func() (bool, error) {
		m, err := s.Metrics("scheduler")
		return m.Sum("zmailer_scheduler_messages_done_total") == 7, err
	})

	m, _ := readMetrics(t, s, "smtpserver")
	for _, want := range []struct {
		name   string
		labels []string
		n      float64
	}{
		{"zmailer_smtpserver_connections_total", []string{"role", "mx"}, 2}, // the other one is the suite's
		{"zmailer_smtpserver_connections", []string{"role", "mx"}, 1},
		{"zmailer_smtpserver_messages_total", []string{"role", "mx", "result", "accepted"}, 3},
		{"zmailer_smtpserver_messages_total", nil, 3},
		{"zmailer_smtpserver_recipients_total", []string{"result", "accepted"}, 12},
		{"zmailer_smtpserver_recipients_total", []string{"result", "refused"}, 1},
		{"zmailer_smtpserver_receive_seconds", []string{"role", "mx"}, 3},
		{"zmailer_smtpserver_commit_seconds", nil, 3},
		{"zmailer_log_events_total", []string{"event", "accepted", "level", "info"}, 3},
	} {
		if got := m.Sum(want.name, want.labels...); got != want.n {
			t.Errorf("%s %v: got %v, want %v", want.name, want.labels, got, want.n)
		}
	}
	if got := m.Sum("zmailer_smtpserver_accepted_bytes_total"); got < 3*200 || got > 3*5000 {
		t.Errorf("%v bytes", got)
	}

	// 4 messages and a report for each of 3.
	m, _ = readMetrics(t, s, "router")
	for _, want := range []struct {
		name   string
		labels []string
		n      float64
	}{
		{"zmailer_router_messages_total", []string{"result", "routed"}, 7},
		{"zmailer_router_messages_total", nil, 7},
		{"zmailer_router_recipients_total", []string{"channel", "local"}, 3 + 1 + 3},
		{"zmailer_router_recipients_total", []string{"channel", "smtp"}, 9},
		{"zmailer_router_wait_seconds", nil, 7},
		{"zmailer_router_routing_seconds", nil, 7},
	} {
		if got := m.Sum(want.name, want.labels...); got != want.n {
			t.Errorf("%s %v: got %v, want %v", want.name, want.labels, got, want.n)
		}
	}

	m, _ = readMetrics(t, s, "scheduler")
	for _, want := range []struct {
		name   string
		labels []string
		n      float64
	}{
		{"zmailer_scheduler_messages_read_total", nil, 7},
		{"zmailer_scheduler_messages_done_total", nil, 7},
		{"zmailer_scheduler_messages", nil, 0},
		{"zmailer_scheduler_recipients_total", []string{"channel", "smtp", "clause", "smtp/*", "result", "delivered"}, 6},
		{"zmailer_scheduler_recipients_total", []string{"channel", "smtp", "clause", "smtp/*", "result", "failed"}, 3},
		{"zmailer_scheduler_recipients_total", []string{"channel", "smtp", "clause", "smtp/*", "result", "deferred"}, 1}, // the sink's first attempt for it
		{"zmailer_scheduler_reports_total", []string{"kind", "failed"}, 3},
		{"zmailer_scheduler_delivery_seconds", []string{"channel", "smtp", "clause", "smtp/*"}, 10},
		{"zmailer_scheduler_queue_seconds", []string{"channel", "smtp"}, 10},
		{"zmailer_scheduler_life_seconds", []string{"channel", "smtp", "result", "delivered"}, 6},
		{"zmailer_scheduler_agents", []string{"clause", "smtp/*"}, 1},
		{"zmailer_alarms", nil, 0},
		{"zmailer_spool_messages", nil, 0},
	} {
		if got := m.Sum(want.name, want.labels...); got != want.n {
			t.Errorf("%s %v: got %v, want %v", want.name, want.labels, got, want.n)
		}
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

// A18: what is told of the spool is counted from the disk, while mail waits in each of its
// places, and also of files that no daemon has ever seen.
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
	for range 7 {
		if _, err := s.Wait(patience, "deferred", func(e suite.Event) bool { return e.Word == "deferred" && e.Program == "scheduler" }); err != nil {
			t.Fatal(err)
		}
	}
	// By hand, as a postmaster may.
	for dir, n := range map[string]int{"deferred": 3, "freezer": 2, "postman": 4, "quarantine": 1} {
		path := filepath.Join(s.PostOffice(), dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := os.WriteFile(filepath.Join(path, fmt.Sprint(900000+i)), []byte("x\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	await(t, s, "counts of the metrics that are those of the disk", func() (bool, error) {
		m, err := s.Metrics("scheduler")
		if err != nil {
			return false, err
		}
		same := m.Sum("zmailer_spool_messages", "directory", "transport") == 7 && m.Sum("zmailer_scheduler_messages") == 7
		for _, dir := range []string{"router", "queue", "transport", "deferred", "freezer", "postman", "quarantine", "public"} {
			same = same && m.Sum("zmailer_spool_messages", "directory", dir) == float64(filesIn(t, filepath.Join(s.PostOffice(), dir)))
		}
		return same && m.Sum("zmailer_scheduler_recipients", "channel", "smtp") == 14, nil
	})
	m, _ := readMetrics(t, s, "scheduler")
	if n := m.Sum("zmailer_scheduler_threads"); n != 1 {
		t.Errorf("%v threads, want that of far.example", n)
	}
}

// filesIn counts the regular files at and below a directory.
func filesIn(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return n
}

// Without METRICS nothing is served; an address of another machine's is refused; one that
// is taken costs the metrics, not the mail; a second router leaves the first one's alone.
func TestMetricsAreServedWhereTheSettingSays(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	submit(t, s, "Subject: x\n\nx\n", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
	for _, program := range measured {
		if _, err := s.ReadMetrics(program); err == nil {
			t.Errorf("%s serves metrics that nobody has asked for", program)
		}
	}
	stop(t, s)

	for _, program := range measured {
		cmd := s.Command(program)
		cmd.Env = append(cmd.Env, "LOG=text")
		conf, err := os.ReadFile(s.Config())
		if err != nil {
			t.Fatal(err)
		}
		bad := filepath.Join(s.Dir, "conf", "bad.conf")
		if err := os.WriteFile(bad, append(conf, ("METRICS="+program+"=0.0.0.0:9126\n")...), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd.Args = append(cmd.Args, "--config", bad)
		out, err := cmd.CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 78 || !strings.Contains(string(out), "METRICS") {
			t.Errorf("%s: %v %s", program, err, out)
		}
	}

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := peer.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	s = start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"METRICS": fmt.Sprintf(`"router=unix scheduler=%s smtpserver=%s"`, taken.Addr(), free)}
	})
	if _, err := s.Wait(patience, "metrics-not-served", func(e suite.Event) bool {
		return e.Word == "metrics-not-served" && e.Program == "scheduler" && e.Get("address") == taken.Addr().String()
	}); err != nil {
		t.Error(err)
	}
	if text, err := suite.ReadMetricsAt(free); err != nil || !strings.Contains(string(text), "zmailer_smtpserver_connections") {
		t.Errorf("%v %s", err, text)
	}
	second := s.Command("router")
	log := &said{}
	second.Stderr = log
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, s, "a second router", func() (bool, error) {
		list, err := s.Processes()
		n := 0
		for _, p := range list {
			if p.Name == "router" {
				n++
			}
		}
		return n == 2 && strings.Contains(log.String(), "metrics-not-served"), err
	})
	submit(t, s, "Subject: x\n\nx\n", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
	if err := second.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Error(err)
	}
	readMetrics(t, s, "router")
}

// families are the metrics of all daemons, with their types and labels.
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
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" {
				all[f[2]] = f[3]
			}
		}
	}
	return all
}

// The names of docs/metrics.md are those that there are; and rules and dashboard ask for no
// others, nor leave one out that the dashboard can show.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	have := families(t)
	doc := readFile(t, "../../docs/metrics.md")
	told := map[string]string{}
	for line := range strings.Lines(doc) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		for _, name := range strings.Split(cells[1], ",") {
			told[strings.Trim(name, " `")] = strings.TrimSpace(cells[2])
		}
	}
	for name, kind := range have {
		if told[name] != kind {
			t.Errorf("docs/metrics.md calls %s %q, want %s", name, told[name], kind)
		}
	}
	for name := range told {
		if have[name] == "" {
			t.Errorf("docs/metrics.md has %s, which no daemon tells", name)
		}
	}
	rules := readFile(t, "../../packaging/prometheus/zmailer.rules.yml")
	board := readFile(t, "../../packaging/grafana/zmailer.json")
	for _, file := range []string{rules, board} {
		for _, name := range metricName.FindAllString(file, -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if b, ok := strings.CutSuffix(name, suffix); ok && have[b] == "histogram" {
					base = b
				}
			}
			if have[base] == "" {
				t.Errorf("%s is asked for, and no daemon tells it", name)
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
			t.Errorf("docs/metrics.md does not tell of %s", alert[1])
		}
		if !strings.Contains(readFile(t, "../../packaging/prometheus/zmailer.rules.test.yml"), "alertname: "+alert[1]) {
			t.Errorf("no test for %s", alert[1])
		}
	}
}

var metricName = regexp.MustCompile(`\b(zmailer|process|go)_[a-z_]+\b`)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The rules alert when they should; the dashboard's questions can be parsed; and what the
// daemons tell is well formed: promtool says so.
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
	if err := json.Unmarshal([]byte(readFile(t, "../../packaging/grafana/zmailer.json")), &board); err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(nil, "check", "rules", file)

	s := start(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"METRICS": "unix"} })
	for _, program := range measured {
		_, text := readMetrics(t, s, program)
		promtool(text, "check", "metrics")
	}
}

func quoteYAML(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
