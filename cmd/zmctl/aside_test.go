package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// M10, Op6 (one spelling, --all; the word all stays): by name, path, ID, cause, selector, and both together; what is not named stays.
func TestResubmitChooses(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string // $1 and so on: name, ID or path of a message
		want string   // which go
		code int
		says string
	}{
		"a name":                 {[]string{"$1.name"}, "1", 0, "deferred/$1.name is router/"},
		"a path":                 {[]string{"deferred/$2.name"}, "2", 0, ""},
		"an ID":                  {[]string{"$3.id"}, "3", 0, ""},
		"an ID twice":            {[]string{"$3.id", "$3.name"}, "3", 0, ""},
		"a cause":                {[]string{"users"}, "12", 0, "2 recipients of 2 messages given back"},
		"a pattern":              {[]string{"*c*"}, "34", 0, ""},
		"two causes":             {[]string{"include", "policy"}, "34", 0, ""},
		"all":                    {[]string{"--all"}, "1234", 0, ""},
		"all, as it was spelt":   {[]string{"all"}, "1234", 0, ""},
		"a selector":             {[]string{"--from", "@shop.example"}, "24", 0, ""},
		"cause by selector":      {[]string{"--cause", "inc*"}, "3", 0, ""},
		"a cause and a selector": {[]string{"--from", "@shop.example", "users"}, "2", 0, ""},
		"an expression":          {[]string{"--where", "not cause users and from @shop.example"}, "4", 0, ""},
		"dry run":                {[]string{"--dry-run", "all"}, "", 0, "would change 4 recipients of 4 messages; nothing was changed"},
		"no such name":           {[]string{"$1.name", "12.users"}, "", config.ExitUsage, "resubmit 12.users: no such message in deferred/"},
		"no such cause":          {[]string{"crash"}, "", config.ExitUsage, "no such message in deferred/ has that cause"},
		"another generation":     {[]string{"all", "$1.old"}, "", config.ExitUsage, "belongs to another message now, $1.id"},
		"no pattern":             {[]string{"[a"}, "", config.ExitUsage, "nor a pattern"},
		"flags behind":           {[]string{"users", "--json"}, "", config.ExitUsage, "go before"},
		"less than nothing":      {[]string{"--pace", "-1", "all"}, "", config.ExitUsage, "negative"},
		"nothing there by then":  {[]string{"--younger", "1s", "--older", "1h"}, "", 0, "nothing matches"},
	} {
		t.Run(name, func(t *testing.T) {
			o := office.New(t)
			var ids, names []string
			replace := []string{}
			for i, m := range [][2]string{{"users", "a@a.example"}, {"users", "a@shop.example"}, {"include", "a@a.example"}, {"policy", "b@shop.example"}} {
				a, name := o.Put(t, postoffice.Deferred, m[0], office.MailFrom(m[1]))
				old := a.ID
				old.MTime--
				ids, names = append(ids, strings.TrimPrefix(a.Name, "router/")), append(names, name)
				n := "$" + string(rune('1'+i))
				replace = append(replace, n+".name", name, n+".id", a.ID.String(), n+".old", old.String())
			}
			var args []string
			for _, a := range tt.args {
				args = append(args, strings.NewReplacer(replace...).Replace(a))
			}
			out, code, err := invoke(t, append([]string{"resubmit"}, args...)...)
			if err != nil {
				out += err.Error()
			}
			assert.Equal(t, code, tt.code, "exit code: %s", out)
			wantIn(t, out, strings.NewReplacer(replace...).Replace(tt.says))
			got := ""
			router := o.Names(t, postoffice.Router)
			for i := range ids {
				if slices.Contains(router, ids[i]) {
					got += string(rune('1' + i))
				} else if !slices.Contains(o.Names(t, postoffice.Deferred), names[i]) {
					t.Errorf("%s is nowhere", names[i])
				}
			}
			assert.Equal(t, got, tt.want, "went: %s", out)
		})
	}
}

// The list has the reasons in full, and so have show, why, history, queue and check.
func TestEveryViewTellsWhyAMessageWasPutAside(t *testing.T) {
	o := office.New(t)
	o.Run(t, "scheduler")
	a, _ := o.Put(t, postoffice.Deferred, "users", office.PlainMail)
	_, frozen := o.Put(t, postoffice.Freezer, "flood", office.PlainMail)
	hard, hardName := o.Put(t, postoffice.Postman, "x", office.PlainMail)
	for _, args := range [][]string{{"resubmit"}, {"queue"}, {"show", a.ID.String()}, {"why", a.ID.String()}, {"history", a.ID.String()}, {"check"}} {
		out, code, err := invoke(t, args...)
		if code != 0 && args[0] != "check" {
			t.Errorf("%q: %v", args, err)
		}
		wantIn(t, out, "full reason of users")
	}
	out, _, _ := invoke(t, "freezer", "list")
	wantIn(t, out, frozen, "why: full reason of flood", "1 message\n")
	out, _, _ = invoke(t, "postman", "list", "--json")
	var m view.Message
	if err := json.Unmarshal([]byte(out), &m); err != nil || m.ID != hard.ID.String() || m.Reason != "full reason of x" || m.Files[0] != "postman/"+hardName {
		t.Errorf("got %+v, %v of %s", m, err, out)
	}
	out = mustDo(t, "freezer", "show", "fl*")
	wantIn(t, out, "why it was put aside\n", "by router: full reason of flood", "zmctl freezer thaw "+frozen, "envelope\n")
	if out, _, _ := invoke(t, "queue", "--cause", "users"); strings.Contains(out, "flood") || !strings.Contains(out, a.ID.String()) {
		t.Errorf("queue --cause: %s", out)
	}
	if out, _, _ := invoke(t, "status"); strings.Contains(out, "no spool file") || !strings.Contains(out, "1 reason") {
		t.Errorf("status: %s", out)
	}
}

// balanced wants the account to be even.
func balanced(t *testing.T, when string) {
	t.Helper()
	exits(t, 0, "check", "--ledger")
}

// M13, A15: frozen mail is discarded by cause, put back by undo, and the account is even
// all the time; thawed mail is in router/.
func TestFreezerThawsAndDiscards(t *testing.T) {
	o := office.New(t)
	journal := ledger.New(o.PostOffice, ledger.Config{Role: "test"})
	defer journal.Close()
	var names []string
	var ids []postoffice.Accepted
	for _, cause := range []string{"flood", "flood", "policy"} {
		a, name := o.Put(t, postoffice.Freezer, cause, office.PlainMail)
		journal.Accepting().In(a.ID, 1)
		ids, names = append(ids, a), append(names, name)
	}
	balanced(t, "frozen")
	if out, code, _ := invoke(t, "freezer", "discard", "flood"); code != config.ExitUsage || len(o.Names(t, postoffice.Freezer)) != 3 {
		t.Errorf("without --yes: exit code %d, %s", code, out)
	}
	exits(t, config.ExitUsage, "freezer", "discard")
	out := mustDo(t, "freezer", "discard", "--yes", "--reason", "a flood", "flood")
	wantIn(t, out, ids[0].ID.String()+"  removed from freezer/", "of 2 messages discarded; order ", "zmctl undo puts it back")
	if got := o.Names(t, postoffice.Freezer); len(got) != 1 || got[0] != names[2] {
		t.Errorf("left: %q", got)
	}
	balanced(t, "discarded")
	out, _, _ = invoke(t, "orders")
	wantIn(t, out, "discard  2 messages", "freezer/ flood, \"a flood\"")
	out, _, _ = invoke(t, "removed")
	wantIn(t, out, ids[1].ID.String(), "2 messages")
	out = exits(t, 0, "undo")
	wantIn(t, out, "is freezer/"+names[0]+" again", "undone for 2 messages")
	if got := o.Names(t, postoffice.Freezer); len(got) != 3 {
		t.Errorf("put back: %q", got)
	}
	balanced(t, "put back")
	// One alone, by its ID.
	exits(t, 0, "freezer", "discard", ids[0].ID.String())
	out = exits(t, 0, "undo", ids[0].ID.String())
	wantIn(t, out, "is freezer/"+names[0]+" again")
	other := ids[0].ID
	other.MTime++
	exits(t, config.ExitUsage, "freezer", "thaw", other.String())
	out = mustDo(t, "freezer", "thaw", "--reason", "asked them", names[0])
	wantIn(t, out, "freezer/"+names[0]+" is "+ids[0].Name+" now", "1 recipient of 1 message given to the router")
	list, err := o.Aside.Reasons(ids[0].ID)
	if err != nil || list[len(list)-1].What != postoffice.WasThawed || list[len(list)-1].Text != "asked them" {
		t.Errorf("got %+v, %v", list, err)
	}
	balanced(t, "thawed")
}

// M12: a copy is discarded, the only copy of a message only by its ID and with --force;
// one that is mended goes to the router, a copy never.
func TestPostmanKeepsOnlyCopies(t *testing.T) {
	o := office.New(t)
	journal := ledger.New(o.PostOffice, ledger.Config{Role: "test"})
	defer journal.Close()
	hard, name := o.Put(t, postoffice.Postman, "broken", "from <a b>\nto x\nenv-end\n\n")
	journal.Accepting().In(hard.ID, 1)
	// A copy of a message that is queued.
	queued := o.Submit(t, office.PlainMail)
	assert.Must(t, os.Link(filepath.Join(o.Dir, queued.Name), filepath.Join(o.Dir, "postman", filepath.Base(queued.Name)+"_header")))
	soft := filepath.Base(queued.Name) + "_header"
	refused := func(what string, want int, args ...string) {
		t.Helper()
		out, code, err := invoke(t, append([]string{"postman"}, args...)...)
		if err != nil {
			out += err.Error()
		}
		if code != want || !strings.Contains(out, what) || len(o.Names(t, postoffice.Postman)) != 2 {
			t.Errorf("postman %q: exit code %d, %s; left %q", args, code, out, o.Names(t, postoffice.Postman))
		}
	}
	refused("zmctl postman discard --force "+hard.ID.String(), 1, "discard", name)
	refused("the only copy", 1, "discard", hard.ID.String())
	refused("the only copy", 1, "discard", "--force", name)
	refused("it still cannot be routed: envelope line", 1, "resubmit", name)
	refused("it would be delivered twice", 1, "resubmit", soft)
	refused("nothing matches", 0, "resubmit", "header")
	out := mustDo(t, "postman", "discard", "--yes", "all")
	wantIn(t, out, "1 recipient of 1 message discarded")
	if got := o.Names(t, postoffice.Postman); len(got) != 1 || got[0] != name {
		t.Fatalf("left: %q", got)
	}
	// The message that the copy is of has the same ID, and is not touched.
	out = exits(t, 0, "undo")
	wantIn(t, out, "is postman/"+soft+" again")
	if _, err := os.Stat(filepath.Join(o.Dir, queued.Name)); err != nil {
		t.Error(err)
	}
	out = mustDo(t, "postman", "discard", "--force", hard.ID.String())
	wantIn(t, out, "why: full reason of broken", "PROBLEM", "removed from postman/")
	balanced(t, "discarded")
	exits(t, 0, "undo", hard.ID.String())
	balanced(t, "put back")
	// Mended as an editor does, in another file: other inode, other time.
	path := filepath.Join(o.Dir, "postman", name)
	assert.Must(t, errors.Join(os.WriteFile(path+"~", []byte(office.PlainMail), 0o600), os.Rename(path+"~", path)))
	out = exits(t, 0, "postman", "resubmit", name)
	info, err := o.FS().Stat("router/" + strings.Fields(out[strings.Index(out, "is router/")+len("is router/"):])[0])
	if err != nil || info.Ino == hard.ID.Ino {
		t.Errorf("%s: got %+v, %v", out, info, err)
	}
	balanced(t, "given back mended")
	// One that lost its end says what to do.
	o.Write(t, "postman/4711", "comment octets 0000000000009999\n"+office.PlainMail)
	exits(t, 1, "postman", "resubmit", "4711")
}
