package confimport

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "rewrite docs/postfix-parameters.md")

// names are the parameters of Postfix: those that Debian's postconf printed when testdata was made, and
// those of the one that is installed, with their defaults.
func names(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name := range strings.FieldsSeq(string(assert.Get(os.ReadFile("testdata/parameters"))(t))) {
		all[name] = "1"
	}
	if len(all) < 1000 {
		t.Fatalf("%d parameters", len(all))
	}
	if postconf, err := exec.LookPath("postconf"); err == nil {
		for line := range strings.Lines(string(assert.Get(exec.Command(postconf, "-d").Output())(t))) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			all[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return all
}

// Each parameter of Postfix that main.cf may have gets one row, which says what it became, or why
// there is nothing to do, or what to do and on which page: with its default, with another value and empty.
func TestEveryParameterOfPostfixIsAnswered(t *testing.T) {
	all := names(t)
	known := knownParameters()
	for kind, value := range map[string]func(name string) string{
		"default": func(name string) string { return all[name] },
		"other":   func(string) string { return "17" },
		"empty":   func(string) string { return "" },
	} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			var b strings.Builder
			for name := range all {
				if name != "config_directory" {
					fmt.Fprintf(&b, "%s = %s\n", name, value(name))
				}
			}
			assert.Must(t, os.WriteFile(filepath.Join(dir, "main.cf"), []byte(b.String()), 0o600))
			assert.Must(t, os.WriteFile(filepath.Join(dir, "master.cf"), nil, 0o600))
			rows := map[string]Row{}
			for _, row := range assert.Get(Postfix(dir, nil))(t).Rows {
				if _, twice := rows[row.Setting]; twice {
					t.Errorf("%s has two rows", row.Setting)
				}
				rows[row.Setting] = row
			}
			for name := range all {
				row, ok := rows[name]
				if name == "config_directory" {
					continue
				}
				if !ok || row.Became == "" || row.Page == "" && row.Outcome == ByHand {
					t.Errorf("%s: %+v", name, row)
				}
				if row.Page == "coming-from-postfix.md" && parameter(known, name) == nil {
					t.Errorf("%s is not known", name)
				}
				if row.Page != "" {
					if _, err := os.Stat("../../../docs/" + row.Page); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
		})
	}
}

// Each pattern of parameters.txt is of some parameter of Postfix, also of older and newer ones.
func TestPatternsOfParametersAreRight(t *testing.T) {
	for _, k := range knownParameters() {
		if k.outcome == "" || k.text == "" || len(k.patterns) == 0 {
			t.Errorf("%+v", k)
		}
		for _, pattern := range k.patterns {
			if _, err := filepath.Match(pattern, "x"); err != nil {
				t.Errorf("%s: %v", pattern, err)
			}
		}
	}
}

// The page has all of parameters.txt; -update writes it.
func TestPageOfParametersIsCurrent(t *testing.T) {
	const page = "../../../docs/postfix-parameters.md"
	text := string(assert.Get(os.ReadFile(page))(t))
	at := strings.Index(text, "| `main.cf` |")
	if at < 0 {
		t.Fatal("the page has no table")
	}
	var b strings.Builder
	b.WriteString("| `main.cf` | here |\n|---|---|\n")
	for _, k := range knownParameters() {
		list := slices.Clone(k.patterns)
		for i, pattern := range list {
			list[i] = "`" + pattern + "`"
		}
		here := strings.ReplaceAll(k.text, "|", `\|`)
		if k.page != "" {
			here += " ([" + k.page + "](" + k.page + "))"
		}
		if k.outcome == ByHand {
			here = "by hand: " + here
		}
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(list, ", "), here)
	}
	if *update {
		assert.Must(t, os.WriteFile(page, []byte(text[:at]+b.String()), 0o644))
		return
	}
	assert.Equal(t, text[at:], b.String())
}

// Clients that may speak for others, ports and options of policy services are converted.
func TestPeersAndServicesKeepTheirOptions(t *testing.T) {
	dir := t.TempDir()
	assert.Must(t, os.WriteFile(filepath.Join(dir, "master.cf"), nil, 0o600))
	assert.Must(t, os.WriteFile(filepath.Join(dir, "main.cf"), []byte("myhostname = mx.example.org\nmynetworks = 192.0.2.0/24\n"+
		"smtpd_authorized_xforward_hosts = 127.0.0.1 [::1]/128\nsmtpd_authorized_xclient_hosts = $mynetworks, proxy.example\nsmtp_tcp_port = 2525\n"+
		"smtpd_recipient_restrictions = check_policy_service inet:127.0.0.1:10023, check_policy_service { inet:127.0.0.1:10024, timeout=5s }\n"+
		"smtpd_end_of_data_restrictions = check_policy_service { unix:/run/x, policy_context=eod }, permit\n"+
		"smtpd_policy_service_timeout = 20s\nsmtpd_policy_service_default_action = DUNNO\naddress_verify_negative_cache = no\n"), 0o600))
	r := assert.Get(Postfix(dir, nil))(t)
	for file, lines := range map[string][]string{
		"zmailer.conf": {`XFORWARDNETS="127.0.0.1 ::1/128"`, "XCLIENTNETS=192.0.2.0/24", "SMTPPORT=2525", "ADDRESSVERIFYNEGATIVEEXPIRE=0"},
		"access": {"check_policy_service inet:127.0.0.1:10023 timeout=20s default_action=DUNNO",
			"check_policy_service inet:127.0.0.1:10024 timeout=5s default_action=DUNNO",
			"check_policy_service unix:/run/x protocol_state=END-OF-MESSAGE policy_context=eod timeout=20s default_action=DUNNO"},
	} {
		for _, line := range lines {
			if !slices.Contains(strings.Split(text(r, file), "\n"), line) {
				t.Errorf("%s has no line %s:\n%s", file, line, text(r, file))
			}
		}
	}
	for _, row := range r.Rows {
		want := map[string]Outcome{"smtpd_authorized_xforward_hosts": Converted, "smtpd_authorized_xclient_hosts": ByHand, "smtp_tcp_port": Converted,
			"smtpd_policy_service_timeout": Converted, "smtpd_policy_service_default_action": Converted, "address_verify_negative_cache": Converted}[row.Setting]
		if want != "" {
			assert.Equal(t, row.Outcome, want, row.Setting)
		}
	}
}
