package e2e

import (
	"os"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

const frenchText = "Subject: {{.Action}} un\n\nBonjour.\n"

// M37: a text that cannot be used is refused with its line, by --check-config, at the
// start, and by a scheduler that runs on with the old one; a good one is taken.
func TestTextsAreReadAgain(t *testing.T) {
	t.Parallel()
	bad := newSink(t, &peer.Sink{Rcpt: func(string, int) string { return "550 5.1.1 no such user" }})
	conf := "PARAM report-language = fr\n" + schedulerConf
	s := start(t, bad, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = conf
		s.Files["reports/fr/failed"] = frenchText
	})
	file := strings.TrimSuffix(s.Config(), "zmailer.conf") + "reports/fr/failed"
	replace := func(text, comment string) {
		t.Helper()
		for name, content := range map[string]string{file: text, strings.TrimSuffix(s.Config(), "zmailer.conf") + "scheduler.conf": conf + comment} {
			must(t, os.WriteFile(name+".new", []byte(content), 0o644))
			must(t, os.Rename(name+".new", name))
		}
	}
	told := func(subject string, n int) {
		t.Helper()
		submit(t, s, "Subject: x\n\nx\n", "-f", "bob@mta.example", "x@sink.example")
		found := 0
		for _, m := range awaitMail(t, s, "bob", n) {
			if strings.Contains(string(m), "Subject: "+subject+"\n") {
				found++
			}
		}
		if found == 0 {
			t.Errorf("no report %q", subject)
		}
	}
	told("failed un", 1)
	replace("Subject: x\n\n{{.Wrong}}\n", "# a change\n")
	if e := event(t, s, "conf-refused"); !strings.Contains(e.Get("reason"), file+":3") || !strings.Contains(e.Get("reason"), ".Wrong is not known") {
		t.Errorf("got %+v", e)
	}
	out, err := s.Command("scheduler", "--config", s.Config(), "--check-config").CombinedOutput()
	if err == nil || !strings.Contains(string(out), file+":3") {
		t.Errorf("--check-config: %v\n%s", err, out)
	}
	told("failed un", 2)
	replace(strings.Replace(frenchText, "un", "deux", 1), "# another\n")
	event(t, s, "conf-read")
	told("failed deux", 3)
}
