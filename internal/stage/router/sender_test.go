package router

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// asUser gives a message file to another user, as if that one had submitted it.
func (o *office) asUser(a postoffice.Accepted, uid int) {
	o.t.Helper()
	if err := os.Chown(filepath.Join(o.dir, a.Name), uid, -1); err != nil {
		o.t.Fatal(err)
	}
}

// somebody is a uid with a login that is neither root nor ours.
func somebody(t *testing.T) (int, string) {
	t.Helper()
	for _, login := range []string{"daemon", "bin", "mail", "nobody"} {
		u, err := user.Lookup(login)
		if err != nil {
			continue
		}
		if uid, err := strconv.Atoi(u.Uid); err == nil && uid != 0 {
			return uid, login
		}
	}
	t.Skip("the system has none of the usual users")
	return 0, ""
}

func TestSenderIsWhoTheFileBelongsTo(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("giving files to other users needs root")
	}
	uid, login := somebody(t)
	const unknown = 1999999999
	at := func(local string) string { return "<" + local + "@mx.example.org>" }
	tests := map[string]struct {
		uid       int
		trusted   bool
		from      string // envelope lines
		header    string
		want      string // envelope sender
		sender    string // the Sender line put on top
		replaced  int
		wantsFrom string // a From line put on top
	}{
		"root is believed":                    {0, false, "from <q@example.net>", "From: a@b.example", "<q@example.net>", "", 0, ""},
		"root may send reports":               {0, false, "channel error", "From: a@b.example", "<>", "", 0, ""},
		"root without a from line":            {0, false, "", "From: a@b.example", at("root"), "", 0, ""},
		"root with a bare name":               {0, false, "from <bond>", "From: a@b.example", at("bond"), "", 0, ""},
		"user without a from line":            {uid, false, "", "From: a@b.example", at(login), "", 0, ""},
		"user at a local domain":              {uid, false, "from <" + login + "@Example.ORG>", "From: a@b.example", "<" + login + "@Example.ORG>", "", 0, ""},
		"user by login alone":                 {uid, false, "from <" + login + ">", "From: a@b.example", at(login), "", 0, ""},
		"user as another":                     {uid, false, "from <bond@example.org>", "From: bond@example.org", at(login), at(login), 1, ""},
		"user at a foreign domain":            {uid, false, "from <" + login + "@example.net>", "From: x@example.net", at(login), at(login), 1, ""},
		"user as another, From is the truth":  {uid, false, "from <bond@example.org>", "From: X <" + login + "@mx.example.org>", at(login), "", 1, ""},
		"user as another without From":        {uid, false, "from <bond@example.org>", "Subject: x", at(login), "", 1, "From: " + login + "@mx.example.org"},
		"user as another, Sender says so":     {uid, false, "from <bond@example.org>", "From: a@b.example\nSender: " + login + "@mx.example.org", at(login), "", 1, ""},
		"user as the null sender":             {uid, false, "channel error", "From: a@b.example", at(login), at(login), 1, ""},
		"user as from outside":                {uid, false, "external\nrcvdfrom evil.test\nwith ESMTP\nerrormsg", "Subject: x", at(login), "", 0, "From: " + login + "@mx.example.org"},
		"trusted user":                        {uid, true, "external\nfrom <q@example.net>", "From: a@b.example", "<q@example.net>", "", 0, ""},
		"uid without a login":                 {unknown, false, "", "From: a@b.example", at(fmt.Sprint("uid", unknown)), "", 0, ""},
		"uid without a login, as another one": {unknown, false, "from <bond@example.org>", "From: a@b.example", at(fmt.Sprint("uid", unknown)), at(fmt.Sprint("uid", unknown)), 1, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil, func(c *Config) {
				c.OwnSenders = true
				if tt.trusted {
					c.Trusted = []uint32{uint32(tt.uid)}
				}
			})
			from := tt.from
			if from != "" {
				from += "\n"
			}
			a := o.submit(from + "to <a@example.net>\nenv-end\n" + tt.header + "\n\nbody\n")
			o.asUser(a, tt.uid)
			list := o.route()
			if len(list) != 1 {
				t.Fatalf("got %d messages\n%s", len(list), &o.log)
			}
			m := list[0]
			s := m.spec.Groups[0].Sender
			if got := "<" + strings.Trim(s.Address, "<>") + ">"; got != tt.want {
				t.Errorf("sender: got %s, want %s", got, tt.want)
			}
			if errorTo := "<" + strings.Join(m.spec.ErrorTo, " ") + ">"; errorTo != tt.want {
				t.Errorf("reports go to %s, want %s", errorTo, tt.want)
			}
			if (s.Channel == "error") != (tt.want == "<>") {
				t.Errorf("channel of the sender: got %s", s.Channel)
			}
			line := ""
			if tt.sender != "" {
				line = "Sender: " + strings.Trim(tt.sender, "<>") + "\n"
			}
			top := strings.TrimSuffix(m.header(), tt.header+"\n")
			if got := strings.Contains(top, "Sender: "); got != (line != "") || !strings.Contains(top, line) {
				t.Errorf("lines on top: got %q, want %q among them", top, line)
			}
			if tt.wantsFrom != "" && !strings.Contains(top, tt.wantsFrom+"\n") {
				t.Errorf("lines on top: got %q, want %q among them", top, tt.wantsFrom)
			}
			if strings.Contains(top, "evil.test") || strings.Contains(top, "ESMTP") {
				if !tt.trusted {
					t.Errorf("lines on top: got %q, want nothing that the user said", top)
				}
			}
			o.logged(tt.replaced, "msg=sender-replaced", "uid="+strconv.Itoa(tt.uid))
		})
	}
}

// Loc5: by default a user may name any sender, as with Postfix, and the Received line has
// the uid; nothing else that the user's envelope says is believed.
func TestLoc5SenderOfAnyUserIsHonoured(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("giving files to other users needs root")
	}
	uid, login := somebody(t)
	for name, tt := range map[string]struct{ envelope, want string }{
		"another's":      {"from <boss@far.example>", "<boss@far.example>"},
		"a local user's": {"from <bond>", "<bond@mx.example.org>"},
		"the null one":   {"channel error", "<>"},
		"none":           {"", "<" + login + "@mx.example.org>"},
		"with others":    {"external\nrcvdfrom evil.test\nwith ESMTP\nfrom <boss@far.example>", "<boss@far.example>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			lines := tt.envelope
			if lines != "" {
				lines += "\n"
			}
			a := o.submit(lines + "to <a@example.net>\nenv-end\nFrom: x@example.net\n\nbody\n")
			o.asUser(a, uid)
			list := o.route()
			if len(list) != 1 {
				t.Fatalf("got %d messages\n%s", len(list), &o.log)
			}
			m := list[0]
			if got := "<" + strings.Trim(m.spec.Groups[0].Sender.Address, "<>") + ">"; got != tt.want {
				t.Errorf("sender: got %s, want %s", got, tt.want)
			}
			if got := "<" + strings.Join(m.spec.ErrorTo, " ") + ">"; got != tt.want {
				t.Errorf("reports go to %s, want %s", got, tt.want)
			}
			top := m.header()
			if !strings.Contains(top, fmt.Sprintf("(from userid %d)", uid)) || !strings.Contains(top, "Date: ") || strings.Contains(top, "Sender: ") || strings.Contains(top, "evil.test") {
				t.Errorf("lines on top: %q", top)
			}
			o.logged(0, "msg=sender-replaced")
		})
	}
}

// Loc5: SENDERCHECK chooses between the two.
func TestLoc5SenderCheckIsASetting(t *testing.T) {
	for text, want := range map[string]bool{"": false, "SENDERCHECK=any\n": false, "SENDERCHECK=owner\n": true} {
		path := filepath.Join(t.TempDir(), "zmailer.conf")
		if err := os.WriteFile(path, []byte("HOSTNAME=mx.example.org\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ConfigFrom(c); err != nil || got.OwnSenders != want {
			t.Errorf("%q: %v, %v", text, got.OwnSenders, err)
		}
	}
}

func TestTrustedUsersAreNamedByLoginOrNumber(t *testing.T) {
	dir := t.TempDir()
	load := func(text string) (Config, error) {
		path := filepath.Join(dir, "zmailer.conf")
		if err := os.WriteFile(path, []byte("HOSTNAME=mx.example.org\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		return ConfigFrom(c)
	}
	c, err := load("TRUSTED=\"root 1234\"\nROUTERWORKERS=3\nROUTERPOLL=1m\nHASHLEVELS=1\nSYNC=strict\n")
	if err != nil || fmt.Sprint(c.Trusted) != "[0 1234]" || c.Workers != 3 || c.Poll.Seconds() != 60 || c.HashLevels != 1 || !c.Strict || c.Rules.Dir != dir {
		t.Errorf("got %+v, %v", c, err)
	}
	_, err = load("TRUSTED=no-such-login\n")
	if config.Exit(err) != config.ExitConfig || !strings.Contains(err.Error(), "zmailer.conf:2") || !strings.Contains(err.Error(), "no-such-login") {
		t.Errorf("got %v, want an error with line and login", err)
	}
}

func TestUnusablePostofficeOrTableEndsTheProgramWith78(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	c := o.config()
	c.Once = true
	c.PostOffice = t.TempDir()
	if err := Run(t.Context(), c); config.Exit(err) != config.ExitConfig || !strings.Contains(err.Error(), "zmctl init") {
		t.Errorf("no postoffice: got %v", err)
	}
	c.PostOffice = o.dir
	o.table("routes", "a.example smtp!\nb.example nothing\n")
	if err := Run(t.Context(), c); config.Exit(err) != config.ExitConfig || !strings.Contains(err.Error(), "routes:2: ") {
		t.Errorf("bad table: got %v", err)
	}
}
