package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

func TestInitMakesDirectoriesAndLeavesFilesAlone(t *testing.T) {
	dir, conf := filepath.Join(t.TempDir(), "a", "po"), filepath.Join(t.TempDir(), "conf")
	t.Setenv("ZCONFIG", "")
	assert.Must(t, os.MkdirAll(conf, 0o755))
	assert.Must(t, os.WriteFile(filepath.Join(conf, "routes"), []byte("# mine\n"), 0o644))
	for range 2 {
		exits(t, 0, "--postoffice", dir, "init", "--config-dir", conf)
	}
	office.Open(t, dir, 0)
	for _, f := range config.Files() {
		b, err := os.ReadFile(filepath.Join(conf, f))
		assert.NoError(t, err)
		if f == "routes" && string(b) != "# mine\n" {
			t.Errorf("routes: got %q, want what was there", b)
		}
		if f == "zmailer.conf" {
			wantIn(t, string(b), "\nPOSTOFFICE="+dir+"\n")
		}
	}
	exits(t, 0, "--config", filepath.Join(conf, "zmailer.conf"), "status")
}

// A configuration that is named before it is there is made; where, --config-dir may say.
func TestInitMakesTheConfigurationThatIsNamed(t *testing.T) {
	at := func(dir, file string) string { return filepath.Join(dir, file) }
	for name, tt := range map[string]struct {
		named, where string // of ZCONFIG and --config-dir, below a new directory
		made         string // "": it is refused
	}{
		"by its name":          {"conf/zmailer.conf", "", "conf/zmailer.conf"},
		"the same twice":       {"conf/zmailer.conf", "conf", "conf/zmailer.conf"},
		"elsewhere":            {"conf/zmailer.conf", "etc", "etc/zmailer.conf"},
		"another name":         {"mine.conf", "", ""},
		"another name's place": {"mine.conf", "etc", "etc/zmailer.conf"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("ZCONFIG", at(dir, tt.named))
			args := []string{"--postoffice", at(dir, "po"), "init"}
			if tt.where != "" {
				args = append(args, "--config-dir", at(dir, tt.where))
			}
			out, code, err := invoke(t, args...)
			if tt.made == "" {
				if _, serr := os.Stat(at(dir, "po")); code != config.ExitConfig || !strings.Contains(err.Error(), at(dir, tt.named)+": does not exist; ") || serr == nil {
					t.Errorf("got %d, %v; the postoffice: %v", code, err, serr)
				}
				return
			}
			if code != 0 || !strings.Contains(out, "configuration "+at(dir, tt.made)+"\n") {
				t.Fatalf("got %d, %v, %s", code, err, out)
			}
			exits(t, 0, "--config", at(dir, tt.made), "--postoffice", "", "status")
			office.Open(t, at(dir, "po"), 0)
		})
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	office.New(t)
	cases := map[string][]string{
		"unknown command":       {"list"},
		"status with a name":    {"status", "x"},
		"queue with a name":     {"queue", "x"},
		"check with a name":     {"check", "x"},
		"init with a name":      {"init", "x"},
		"run with a name":       {"run", "x"},
		"show of nothing":       {"show"},
		"show of no spool ID":   {"show", "12-34"},
		"resubmit without name": {"resubmit", "12.routes"},
	}
	for _, args := range cases {
		exits(t, config.ExitUsage, args...)
	}
}

// plant puts one message into every state and gives their spool IDs.
func plant(t *testing.T, o *office.Office) map[string]string {
	t.Helper()
	o.Run(t, "scheduler")
	ids := map[string]string{}
	o.Write(t, postoffice.Public+"/draft", "from <a@b>\n")
	ids[view.StateAccepted] = o.Submit(t, office.PlainMail).ID.String()
	a := o.Submit(t, office.PlainMail)
	c := o.Claim(t, a)
	if w, err := c.CreateWork(); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	ids[view.StateClaimed] = a.ID.String()
	aside := map[string]func(c *postoffice.Claim) error{
		view.StateDeferred: func(c *postoffice.Claim) error { return c.Defer("routes") },
		view.StateFrozen:   func(c *postoffice.Claim) error { return c.Freeze("policy") },
		view.StateSetAside: func(c *postoffice.Claim) error { return c.ToPostman() },
		view.StateCopy:     func(c *postoffice.Claim) error { return errors.Join(c.SoftCopy("bad-header"), c.Defer("x")) },
	}
	for state, do := range aside {
		a := o.Submit(t, office.PlainMail)
		assert.Must(t, do(o.Claim(t, a)))
		ids[state] = a.ID.String()
	}
	q, name, offsets := o.Enqueue(t, "defer1@a.example.com", "ok@a.example.com", "no@a.example.com", "now@a.example.com", "new@a.example.com")
	ids[view.StateQueued] = q.ID.String()
	o.Event(t, name, workspec.DeferredEvent(time.Now(), offsets[0], 1, time.Now().Add(time.Minute), status.MailboxFull, "452 4.2.2 full"))
	o.Event(t, name, workspec.DeferredEvent(time.Now(), offsets[0], 2, time.Now().Add(time.Hour+time.Minute), status.SystemTrouble, "451 4.3.0 try\nagain \x1b[2Jlater"))
	o.Tag(t, name, offsets[1], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
	o.Edit(t, name, func(s *postoffice.Spec) error {
		return s.Append(workspec.AppendDiagnostic(nil, &workspec.Diagnostic{Recipient: offsets[2], Time: time.Now(), Reported: true,
			Notary: workspec.Notary{Address: "no@a.example.com", Action: "failed", Status: "5.1.1", Diagnostic: "smtp; 550 5.1.1 no such user"}}))
	})
	o.Tag(t, name, offsets[2], workspec.TagBytes(workspec.FormatOurs, workspec.TagFailed))
	agent := o.Run(t, "ta-smtp smtp")
	o.Tag(t, name, offsets[3], workspec.LockBytes(agent.Number()))
	_, name, _ = o.Enqueue(t, "gone@a.example.com")
	assert.Must(t, os.Remove(filepath.Join(o.Dir, postoffice.Queue, name)))
	ids[view.StateFinishing] = name
	return ids
}

func TestQueueInJSONHoldsTheSame(t *testing.T) {
	o := office.New(t)
	if out, _, err := invoke(t, "queue", "--json"); err != nil || out != "" {
		t.Errorf("an empty queue: got %q, %v, want nothing", out, err)
	}
	ids := plant(t, o)
	out := mustDo(t, "queue", "--json")
	got := map[string]view.Message{}
	for line := range strings.Lines(out) {
		var m view.Message
		assert.Must(t, json.Unmarshal([]byte(line), &m))
		got[m.State] = m
	}
	q := got[view.StateQueued]
	if q.ID != ids[view.StateQueued] || q.Sender != "sender@client.example.net" || len(q.Recipients) != 5 || len(q.Files) != 2 {
		t.Fatalf("queued: got %+v", q)
	}
	first := q.Recipients[0]
	if first.Attempts != 2 || first.Status != "4.3.0" || first.Next == nil || first.Channel != "smtp" || first.Host != "a.example.com" {
		t.Errorf("deferred recipient: got %+v", first)
	}
	if r := q.Recipients[3]; r.State != view.Delivering || r.Owner == nil || !r.Owner.Alive {
		t.Errorf("locked recipient: got %+v", r)
	}
	if m := got[view.StateDeferred]; m.Why == "" {
		t.Errorf("deferred message: got %+v, want its reason", m)
	}
}

// A18: the counts are those of the disk.
func TestStatusCountsFilesOfTheDisk(t *testing.T) {
	o := office.New(t)
	plant(t, o)
	o.Write(t, postoffice.Router+"/core", "x")
	o.DeadOwner(t, 999998, "router")
	o.Rename(t, postoffice.Deferred+"/"+first(t, o, postoffice.Deferred), postoffice.Router+"/77-999998")
	out := mustDo(t, "status", "--json")
	var got struct {
		Directories []view.Directory `json:"directories"`
		Scheduler   bool             `json:"scheduler_runs"`
		Owners      []view.Owner     `json:"owners"`
	}
	assert.Must(t, json.Unmarshal([]byte(out), &got))
	if !got.Scheduler || len(got.Owners) != 4 {
		t.Errorf("owners: got %+v, scheduler %v, want 4 and a scheduler", got.Owners, got.Scheduler)
	}
	states := map[string]int{}
	for _, d := range got.Directories {
		sum := 0
		for _, g := range d.States {
			sum += g.Files
			states[d.Name+" "+g.State] = g.Files
		}
		if want := countFiles(t, filepath.Join(o.Dir, d.Name)); d.Files != want || sum != want {
			t.Errorf("%s: got %d files, %d in states, want %d", d.Name, d.Files, sum, want)
		}
	}
	for what, want := range map[string]int{
		"public writing": 1, "router accepted": 1, "router claimed": 1, "router claimed by the dead": 1, "router work file": 1,
		"router no spool file": 1, "queue queued": 1, "transport queued": 1, "transport finishing": 1, "deferred deferred": 1,
		"freezer frozen": 1, "postman set aside": 1, "postman copy": 1,
	} {
		assert.Equal(t, states[what], want, "%s", what)
	}
	text := mustDo(t, "status")
	wantIn(t, text, "router      5", "1 claimed by the dead", "999998", "ended  router pid 999998")
	if strings.Contains(text, "no scheduler") {
		t.Errorf("got\n%s\nwith a scheduler alive", text)
	}
}

func first(t *testing.T, o *office.Office, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(o.Dir, dir))
	if err != nil || len(entries) == 0 {
		t.Fatalf("%s: got %d files, %v", dir, len(entries), err)
	}
	return entries[0].Name()
}

func countFiles(t *testing.T, dir string) int {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		return err
	})
	assert.Must(t, err)
	return n
}

func TestShowTellsEverythingOfAMessage(t *testing.T) {
	o := office.New(t)
	ids := plant(t, o)
	cases := map[string][]string{
		view.StateAccepted: {"files\n  router/", "envelope\n  comment octets 0000", "  from <sender@client.example.net>\n", "free claims and routes it"},
		view.StateClaimed:  {"It is being routed by router pid "},
		view.StateDeferred: {"The router could not route it (routes). It tries again in 4m, at ", "zmctl resubmit " + ids[view.StateDeferred]},
		view.StateFrozen:   {"held by policy (policy)"},
		view.StateSetAside: {"this is the only copy"},
		view.StateQueued: {"  transport/", "  queue/", "work specification\n  @ 0x00000007\n", "history\n", "deferred <defer1@a.example.com>",
			"failed <no@a.example.com> 5.1.1, reported: 550 5.1.1 no such user", "<defer1@a.example.com> is tried again in 1h",
			"<new@a.example.com> waits for its first attempt over smtp/a.example.com", "<now@a.example.com> is being delivered by ta-smtp smtp pid "},
	}
	for state, parts := range cases {
		out, code, err := invoke(t, "show", ids[state])
		if code != 0 {
			t.Errorf("%s: %v", state, err)
			continue
		}
		for _, p := range parts {
			wantIn(t, out, p)
		}
		if strings.ContainsAny(out, "\x01\x1b\r\x00") {
			t.Errorf("%s: a control character reached the terminal: %q", state, out)
		}
	}
	out, _, _ := invoke(t, "show", ids[view.StateQueued])
	wantIn(t, out, "r+          smtp a.example.com ok@a.example.com 65534\n", "r-          smtp a.example.com no@a.example.com")
}

func TestShowTellsAMessageFromOneThatTookItsNumber(t *testing.T) {
	o := office.New(t)
	a := o.Submit(t, office.PlainMail)
	other := a.ID
	other.MTime--
	exits(t, 1, "show", other.String())
	gone := a.ID
	gone.Ino += 1 << 40
	exits(t, 1, "show", gone.String())
}

// Messages are found at every hash depth, whatever the configured one is.
func TestMessagesAreFoundAtEveryHashDepth(t *testing.T) {
	o := office.New(t)
	for levels := 0; levels <= 2; levels++ {
		a, name, _ := o.Enqueue(t, "user@a.example.com")
		n, _ := postoffice.ParseName(name)
		for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
			if levels > 0 {
				o.Rename(t, dir+"/"+name, dir+"/"+postoffice.HashDir(n.Ino, levels)+"/"+name)
			}
		}
		out := mustDo(t, "show", a.ID.String())
		wantIn(t, out, "queued\n", "waits for its first attempt")
	}
	out, _, _ := invoke(t, "queue")
	wantIn(t, out, "3 messages\n")
}

// M10: what the router set aside goes back to it, by name, by ID or all of it.
func TestResubmitGivesMessagesBackToTheRouter(t *testing.T) {
	o := office.New(t)
	deferOne := func() postoffice.Accepted {
		a := o.Submit(t, office.PlainMail)
		assert.Must(t, o.Claim(t, a).Defer("routes"))
		return a
	}
	byName, byID, third, fourth := deferOne(), deferOne(), deferOne(), deferOne()
	name := filepath.Base(byName.Name) + ".routes"
	out := mustDo(t, "resubmit")
	wantIn(t, out, name, "deferred: routes", "to resubmit them")
	out = mustDo(t, "resubmit", name, byID.ID.String())
	wantIn(t, out, byName.ID.String()+"  deferred/"+name+" is "+byName.Name+" now\n", byID.ID.String())
	for _, a := range []postoffice.Accepted{byName, byID} {
		if _, err := os.Stat(filepath.Join(o.Dir, a.Name)); err != nil {
			t.Errorf("after resubmit: %v", err)
		}
	}
	other := third.ID
	other.MTime++
	exits(t, config.ExitUsage, "resubmit", other.String())
	// A name that is taken in router/ costs another name.
	o.Write(t, fourth.Name, office.PlainMail)
	exits(t, 0, "resubmit", "all", name2(third))
	assert.Equal(t, countFiles(t, filepath.Join(o.Dir, postoffice.Deferred)), 0, "left in deferred/")
	// M10: it may come back.
	assert.Must(t, o.Claim(t, third).Defer("again"))
	out, _, _ = invoke(t, "resubmit")
	wantIn(t, out, "deferred: again")
}

func name2(a postoffice.Accepted) string { return filepath.Base(a.Name) + ".routes" }
