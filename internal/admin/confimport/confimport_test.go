package confimport

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func configurations(t *testing.T) []string {
	t.Helper()
	dirs := assert.Get(filepath.Glob("testdata/*/main.cf"))(t)
	if len(dirs) < 10 {
		t.Fatalf("%d configurations", len(dirs))
	}
	for i, d := range dirs {
		dirs[i] = filepath.Dir(d)
	}
	return dirs
}

// Postconf judges what our parser makes of main.cf and of options in master.cf.
func TestParametersHaveTheValuesThatPostconfPrints(t *testing.T) {
	postconf, err := exec.LookPath("postconf")
	if err != nil {
		t.Skip("postconf is not installed: apt-get install postfix")
	}
	for _, dir := range configurations(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			p := assert.Get(read(dir))(t)
			out := assert.Get(exec.Command(postconf, "-c", dir, "-nx").Output())(t)
			found := 0
			for line := range strings.Lines(string(out)) {
				name, want, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
				name, want = strings.TrimSpace(name), strings.TrimSpace(want)
				if name == "config_directory" || !p.isSet(name) {
					continue
				}
				found++
				if got := p.get(name); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
					t.Errorf("%s: got %q, postconf prints %q", name, got, want)
				}
			}
			if found < 5 {
				t.Errorf("postconf prints %d parameters:\n%s", found, out)
			}
			out = assert.Get(exec.Command(postconf, "-c", dir, "-Mf").Output())(t)
			services := 0
			for line := range strings.Lines(string(out)) {
				if line[0] != ' ' && line[0] != '#' && strings.TrimSpace(line) != "" {
					services++
				}
			}
			assert.Equal(t, len(p.services), services, "services")
		})
	}
}

// Each setting has one row, which says what became of it.
func TestEachSettingHasOneRow(t *testing.T) {
	for _, dir := range configurations(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			p := assert.Get(read(dir))(t)
			r := assert.Get(Postfix(dir, nil))(t)
			for _, s := range p.settings {
				n := 0
				for _, row := range r.Rows {
					if row.Setting == s.name {
						n++
						if row.Became == "" || row.Outcome == "" {
							t.Errorf("%s: an empty row", s.name)
						}
						if row.Page != "" {
							if _, err := os.Stat("../../../docs/" + row.Page); err != nil {
								t.Errorf("%s: %v", s.name, err)
							}
						}
					}
				}
				assert.Equal(t, n, 1, s.name)
			}
		})
	}
}

// The page for administrators of Postfix names each parameter of these configurations.
func TestPageNamesEachParameter(t *testing.T) {
	page := string(assert.Get(os.ReadFile("../../../docs/coming-from-postfix.md"))(t))
	for _, dir := range configurations(t) {
		p := assert.Get(read(dir))(t)
		for _, s := range p.settings {
			if !strings.Contains(page, "`"+s.name+"`") {
				t.Errorf("%s: %s", dir, s.name)
			}
		}
	}
}

// text returns a new file.
func text(r *Result, name string) string {
	i := slices.IndexFunc(r.Files, func(f File) bool { return f.Name == name })
	if i < 0 {
		return ""
	}
	return r.Files[i].Text
}

func TestSettingsHaveTheirCounterparts(t *testing.T) {
	tests := map[string]map[string][]string{ // configuration, file, lines that it has
		"debian": {
			"zmailer.conf": {"HOSTNAME=host.example.com", "RELAYNETS=\"127.0.0.0/8 ::ffff:127.0.0.0/104 ::1/128\"", "SMTPLISTEN=:25"},
			"localnames":   {"example.com", "localhost"}, "masquerade": {"@host.example.com: @example.com"}, "aliases": {"root: alice"},
		},
		"null-client": {
			"routes": {".\tsmtpx!mail.example.com:587"}, "credentials": {`mail.example.com:587 web1 "s3cret pass"`}, "tls": {"*\tencrypt"},
			"zmailer.conf": {`SMTPLISTEN="127.0.0.1:25 [::1]:25"`},
		},
		"small-company": {
			"zmailer.conf": {
				"MAILBOX=%h/Maildir/", "MAXSIZE=52428800", "MAILBOXQUOTA=1073741824", "AUTH=dovecot:/var/spool/postfix/private/auth", "SUBMISSIONLISTEN=:587",
				"SUBMISSIONSLISTEN=:465", "SMTPCONNECTRATE=60/60s", "SMTPMESSAGERATE=100/60s", "TLSCERT=/etc/ssl/private/mail.pem",
				`MILTERS="unix:/var/spool/postfix/opendkim/opendkim.sock inet:localhost:8893"`, "MILTERTROUBLE=accept", "MILTERDAEMONNAME=submission=ORIGINATING", "VIRTUALALIASDOMAINS=virtualaliasdomains",
			},
			"virtualaliasdomains": {"example.net"}, "fqdnaliases": {"sales@example.net: alice", "@example.net: bob", "boss@example.com: alice@example.com", "@old.example.com: %1@example.com"},
			"masquerade": {"alice@mail.example.com: Alice.Liddell@example.com", "bob@example.com: robert@example.com", "@.example.com: @example.com"},
			"tls":        {"*\tdane", "bank.example\tverify match=.bank.example,bank.example", "partner.example\tencrypt", "old.example\tnone"},
			"access": {
				"check_client_access file:clients.cidr client!=127.0.0.0/8,192.168.1.0/24,10.8.0.5", "reject_unknown_sender_domain client!=127.0.0.0/8,192.168.1.0/24,10.8.0.5 user=-",
				"reject_rbl_client zen.dnsbl.example client!=127.0.0.0/8,192.168.1.0/24,10.8.0.5 user=-",
				"check_policy_service unix:/var/spool/postfix/private/policyd-spf client!=127.0.0.0/8,192.168.1.0/24,10.8.0.5 user=-",
			},
			"header-rules": {"/^X-Mailer: Evil/ HOLD"}, "body-rules": {"/^buy now$/ REJECT"},
		},
		"postfixadmin": {
			"zmailer.conf": {
				"VIRTUALMAILBOXDOMAINS=mysql:mysql_virtual_domains_maps.mysql", "VIRTUALMAILBOXBASE=/var/mail/vhosts", "VIRTUALUIDMAPS=5000", "VIRTUALMINIMUMUID=104",
				`FQDNALIASES="mysql:mysql_virtual_alias_maps.mysql mysql:mysql_virtual_alias_domain_maps.mysql"`, "RELAYDOMAINS=mysql:mysql_relay_domains_maps.mysql",
			},
			"mysql_virtual_alias_domain_maps.mysql": {"query = SELECT goto FROM alias,alias_domain WHERE alias_domain.alias_domain = :domain AND alias.address = CONCAT(:user, '@', alias_domain.target_domain) AND alias.active = 1 AND alias_domain.active='1'"},
			"mysql_relay_domains_maps.mysql":        {"query = SELECT domain FROM domain WHERE domain=:key AND active = '1' AND (transport LIKE 'smtp%' OR transport LIKE 'relay%')"},
		},
		"mailcow": {
			"zmailer.conf": {"DNSBL_THRESHOLD=6", "DNSBL_ACTION=enforce", "VIRTUALTRANSPORT=lmtp!dovecot:24", "MILTERS=inet:rspamd:9900"},
		},
		"backup-mx": {
			"relaydomains": {"example.com", "example.org", "example.edu"}, "relayrecipientmaps": {"alice@example.com x", "@example.org x"},
			"routes":       {"example.com\tsmtpx!mx1.example.com", "example.org\tsmtpx![192.0.2.1]:2525", ".example.edu\tsmtp!edu.example.edu", "gone.example\terror!5.1.1:no+20such+20domain", "null.example\tbitbucket!", ".\tsmtpx!smart.example"},
			"zmailer.conf": {`SMTPLISTEN="192.0.2.53:25 127.0.0.1:25"`},
		},
		"srs-forwarder": {
			"zmailer.conf": {`FQDNALIASES="fqdnaliases regexp:forward.regexp"`, "SUBADDRESS=off"}, "virtualaliasdomains": {"club.example", "friends.example"},
		},
		"amavis": {
			"zmailer.conf":    {`RELAYNETS="127.0.0.0/8 10.1.0.0/16 10.2.0.0/16"`, "RELAYRECIPIENTMAPS=ldap:recipients.ldap", "CONTENTFILTER=smtpx!127.0.0.1:10024", "REINJECTLISTEN=127.0.0.1:10025"},
			"scheduler.conf":  {"smtpx/127.0.0.1:10024", "\tmaxthr=2"},
			"recipients.ldap": {"url = ldaps://ad.example.com", "password = p w", "filter = (proxyAddresses=smtp:%s)"},
			"access":          {"warn_if_reject reject_unknown_client_hostname client!=127.0.0.0/8,10.1.0.0/16,10.2.0.0/16", "check_policy_service inet:127.0.0.1:10040 client!=127.0.0.0/8,10.1.0.0/16,10.2.0.0/16 timeout=10s default_action=DUNNO"},
		},
	}
	for name, files := range tests {
		t.Run(name, func(t *testing.T) {
			r := assert.Get(Postfix(filepath.Join("testdata", name), nil))(t)
			for file, lines := range files {
				have := strings.Split(text(r, file), "\n")
				for _, line := range lines {
					if !slices.Contains(have, line) {
						t.Errorf("%s has no line %q:\n%s", file, line, text(r, file))
					}
				}
			}
			for _, f := range r.Files {
				if strings.Contains(f.Text, "s3cret") && !f.Secret {
					t.Errorf("%s: passwords in a file for all", f.Name)
				}
			}
		})
	}
}

// What cannot be read is named with file and line, or is a row.
func TestBadConfigurationIsNamed(t *testing.T) {
	dir := t.TempDir()
	if _, err := Postfix(dir, nil); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("no main.cf: %v", err)
	}
	for text, want := range map[string]string{"myhostname\n": "main.cf:1", "a = b\nb c = d\n": "main.cf:2"} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, "main.cf"), []byte(text), 0o600))
		if _, err := Postfix(dir, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	assert.Must(t, os.WriteFile(filepath.Join(dir, "main.cf"), []byte("myhostname = a.example\nloop = $loop ${loop}x\nvirtual_alias_maps = hash:/nonexistent/x, mysql:/nonexistent/y\nnosuch = $\n"), 0o600))
	r := assert.Get(Postfix(dir, nil))(t)
	for _, row := range r.Rows {
		if want := map[string]Outcome{"virtual_alias_maps": ByHand, "nosuch": ByHand}[row.Setting]; want != "" {
			assert.Equal(t, row.Outcome, want, row.Setting)
		}
	}
	assert.Must(t, os.WriteFile(filepath.Join(dir, "master.cf"), []byte("smtp inet n\n"), 0o600))
	if _, err := Postfix(dir, nil); err == nil || !strings.Contains(err.Error(), "master.cf:1") {
		t.Errorf("got %v", err)
	}
}

func unwrapAll(err error) error {
	for {
		next, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = next.Unwrap()
	}
}

func FuzzQuery(f *testing.F) {
	for _, q := range []string{"SELECT a FROM b WHERE c = '%s'", "x LIKE '%%%u'", "'%d", "%", "CONCAT('%u','@')"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, q string) {
		out, err := bindQuery(q)
		if err == nil && strings.Contains(strings.ReplaceAll(q, "%%", ""), "'%s'") && !strings.Contains(out, ":key") {
			t.Errorf("%q became %q", q, out)
		}
	})
}

// What not every user may read there is not for every user here: root reads all tables that a
// configuration names.
func TestClosedTablesStayClosed(t *testing.T) {
	dir := t.TempDir()
	for name, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"main.cf": {"myhostname = mx.example.org\nalias_maps = hash:$config_directory/shadow\nvirtual_alias_maps = hash:$config_directory/virtual\n" +
			"smtpd_sender_restrictions = check_sender_access hash:$config_directory/senders\n", 0o644},
		"master.cf": {"", 0o644},
		"shadow":    {"root: someone\n", 0o640},
		"virtual":   {"a@example.net b@example.org\n", 0o644},
		"senders":   {"example.com REJECT\n", 0o600},
	} {
		path := filepath.Join(dir, name)
		assert.Must(t, os.WriteFile(path, []byte(file.text), 0o600))
		assert.Must(t, os.Chmod(path, file.mode))
	}
	r := assert.Get(Postfix(dir, nil))(t)
	secret := map[string]bool{"aliases": true, "fqdnaliases": false, "senders": true, "zmailer.conf": false}
	for _, f := range r.Files {
		if want, ok := secret[f.Name]; ok {
			assert.Equal(t, f.Secret, want, "%s", f.Name)
			delete(secret, f.Name)
		}
	}
	assert.Equal(t, len(secret), 0, "files that were not made: %v", secret)
}

// Time limits and default actions of filters, of all and of one, are kept.
func TestOptionsOfFiltersAreConverted(t *testing.T) {
	dir := t.TempDir()
	assert.Must(t, os.WriteFile(filepath.Join(dir, "master.cf"), nil, 0o600))
	assert.Must(t, os.WriteFile(filepath.Join(dir, "main.cf"), []byte("myhostname = mx.example.org\n"+
		"smtpd_milters = inet:h:1, { inet:h:2, connect_timeout=9s, content_timeout=1m, default_action=quarantine, protocol=6 }\n"+
		"milter_default_action = reject\nmilter_connect_timeout = 4s\nmilter_command_timeout = 5s\nmilter_content_timeout = 6m\n"), 0o600))
	r := assert.Get(Postfix(dir, nil))(t)
	text := ""
	for _, f := range r.Files {
		if f.Name == "zmailer.conf" {
			text = f.Text
		}
	}
	for _, want := range []string{`MILTERS="{ inet:h:1, connect_timeout=4s } { inet:h:2, connect_timeout=9s, content_timeout=1m, default_action=quarantine }"`,
		"MILTERTROUBLE=reject", "MILTERTIME=5s", "MILTERCONTENTTIME=6m"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("zmailer.conf lacks %s:\n%s", want, text)
		}
	}
	for _, row := range r.Rows {
		if strings.HasPrefix(row.Setting, "milter_") || row.Setting == "smtpd_milters" {
			assert.Equal(t, row.Outcome, Converted, row.Setting)
		}
	}
}

// Verified and unlisted senders and recipients are rules in the order that Postfix has them, with the
// reply codes of the settings, and the times of the cache are kept.
func TestVerificationIsConverted(t *testing.T) {
	dir := t.TempDir()
	assert.Must(t, os.WriteFile(filepath.Join(dir, "master.cf"), nil, 0o600))
	assert.Must(t, os.WriteFile(filepath.Join(dir, "main.cf"), []byte("myhostname = mx.example.org\nmynetworks = 192.0.2.0/24\n"+
		"smtpd_sender_restrictions = reject_unlisted_sender, permit_mynetworks, reject_unverified_sender\n"+
		"smtpd_recipient_restrictions = permit_mynetworks, reject_unauth_destination, reject_unlisted_recipient, warn_if_reject reject_unverified_recipient\n"+
		"unverified_sender_reject_code = 550\nunverified_recipient_reject_code = 577\nunverified_recipient_tempfail_action = permit\n"+
		"address_verify_positive_expire_time = 14\naddress_verify_positive_refresh_time = 12h\n"+
		"address_verify_negative_expire_time = 1d\naddress_verify_negative_refresh_time = 2\naddress_verify_map = btree:$data_directory/verify\n"), 0o600))
	r := assert.Get(Postfix(dir, nil))(t)
	want := []string{
		"reject_unlisted_sender",
		"reject_unverified_sender reject_code=550 client!=192.0.2.0/24",
		"warn_if_reject reject_unverified_recipient reject_code=577 tempfail_action=permit client!=192.0.2.0/24",
	}
	var rules []string
	for line := range strings.Lines(text(r, "access")) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			rules = append(rules, line)
		}
	}
	assert.Equal(t, strings.Join(rules, "\n"), strings.Join(want, "\n"), "access")
	conf := strings.Split(text(r, "zmailer.conf"), "\n")
	for _, line := range []string{"ADDRESSVERIFYPOSITIVEEXPIRE=14d", "ADDRESSVERIFYPOSITIVEREFRESH=12h", "ADDRESSVERIFYNEGATIVEEXPIRE=1d", "ADDRESSVERIFYNEGATIVEREFRESH=2h"} {
		if !slices.Contains(conf, line) {
			t.Errorf("zmailer.conf has no line %s:\n%s", line, text(r, "zmailer.conf"))
		}
	}
	for _, row := range r.Rows {
		if strings.HasPrefix(row.Setting, "unverified_") || strings.HasPrefix(row.Setting, "address_verify_") && row.Setting != "address_verify_map" {
			assert.Equal(t, row.Outcome, Converted, row.Setting)
		}
	}
}
