package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// states returns the state of each recipient that zmctl queue lists.
func states(t *testing.T, args ...string) map[string]string {
	t.Helper()
	out := mustDo(t, append([]string{"queue", "--json"}, args...)...)
	all := map[string]string{}
	for line := range strings.Lines(out) {
		var m view.Message
		assert.Must(t, json.Unmarshal([]byte(line), &m))
		for _, r := range m.Recipients {
			all[r.Address] = r.State
		}
	}
	return all
}

func wantStates(t *testing.T, what string, want map[string]string) {
	t.Helper()
	got := states(t, "--state", "queued")
	for address, state := range want {
		assert.Equal(t, got[address], state, "%s: %s", what, address)
	}
}

// mustDo calls a command that is to succeed.
func mustDo(t *testing.T, args ...string) string {
	t.Helper()
	out, code, err := invoke(t, args...)
	if code != 0 {
		t.Fatalf("zmctl %q: exit code %d, %v\n%s", args, code, err, out)
	}
	return out
}

// M41 A20: each verb acts on the recipients that the selector means, and on no others;
// a dry run gives the same numbers and changes nothing; undo takes it back.
func TestVerbsActOnSelectedRecipientsAlone(t *testing.T) {
	selectors := map[string][]string{ // each means a1 and a2
		"thread": {"--channel", "smtp", "--host", "a.example"}, "address": {"--to", "a1@*,a2@*"}, "expression": {"--where", "host a.example and not to b*"},
	}
	cases := []struct {
		verb   string
		before []string // verb that is used on everything first
		flags  []string
		want   string // state of the chosen
		undone string // and after undo; "": it cannot be undone
	}{
		{"hold", nil, nil, view.Held, view.Waiting},
		{"hold", nil, []string{"--until", "2h"}, view.Held, view.Waiting},
		{"release", []string{"hold", "--until", "3h"}, nil, view.Waiting, view.Held},
		{"freeze", nil, nil, view.Frozen, view.Waiting},
		{"thaw", []string{"freeze"}, nil, view.Waiting, view.Frozen},
		{"remove", nil, nil, view.Removed, view.Waiting},
		{"remove", nil, []string{"--report"}, view.Removed, view.Waiting},
		{"expire", nil, nil, view.Failed, view.Waiting},
		{"expire", nil, []string{"--silent"}, view.Failed, view.Waiting},
		{"retry", nil, nil, view.Waiting, ""},
		{"flush", nil, nil, view.Waiting, ""},
		{"reroute", nil, nil, view.Rerouted, ""},
	}
	for name, sel := range selectors {
		for _, c := range cases {
			t.Run(name+" "+c.verb+strings.Join(c.flags, " "), func(t *testing.T) {
				o := office.New(t)
				o.Run(t, "scheduler")
				_, first, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"), office.To("b.example", "b1@x"))
				o.EnqueueFrom(t, "y@client.example", office.To("b.example", "b2@x"), office.To("a.example", "a2@x"))
				was := view.Waiting
				if c.before != nil {
					mustDo(t, append(append(c.before, "--yes"), "--all")...)
					was = map[string]string{"hold": view.Held, "freeze": view.Frozen}[c.before[0]]
				}
				size := len(o.Read(t, "transport/"+first))
				args := slices.Concat([]string{c.verb}, c.flags, sel)
				dry := mustDo(t, append(args, "--dry-run")...)
				wantIn(t, dry, "2 recipients of 2 messages; nothing was changed")
				if got := len(o.Read(t, "transport/"+first)); got != size {
					t.Fatalf("a dry run has changed the specification")
				}
				done := mustDo(t, append(args, "--yes", "--reason", "a test")...)
				wantIn(t, done, "2 recipients of 2 messages ", "; order ")
				wantStates(t, c.verb, map[string]string{"a1@x": c.want, "a2@x": c.want, "b1@x": was, "b2@x": was})
				if c.undone == "" {
					exits(t, 1, "undo")
					return
				}
				mustDo(t, "undo")
				wantStates(t, "undo", map[string]string{"a1@x": c.undone, "a2@x": c.undone, "b1@x": was, "b2@x": was})
				wantIn(t, mustDo(t, "orders"), "undone ", "\"a test\"")
			})
		}
	}
}

// M41: without a selector, or without a terminal to ask on, nothing is done.
func TestVerbsRefuseWhatIsNotMeant(t *testing.T) {
	o := office.New(t)
	id, name, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	size := len(o.Read(t, "transport/"+name))
	for _, v := range verbs() {
		for what, c := range map[string]struct {
			args []string
			part string
		}{
			"no selector": {nil, "needs a "}, "no terminal to ask on": {[]string{"--host", "*"}, "--yes confirms"},
			"bad selector": {[]string{"--older", "3x"}, "--older: column 1"}, "bad expression": {[]string{"--where", "host a or"}, "column 10"},
			"flag behind": {[]string{"x", "--yes"}, ""},
		} {
			out, code, err := invoke(t, append([]string{v.Name}, c.args...)...)
			if what == "no terminal to ask on" && (v.Name == "release" || v.Name == "thaw") {
				// Nothing can be released: there is nothing to ask about.
				assert.Equal(t, code, 0, "%s, %s: exit code, %v", v.Name, what, err)
				continue
			}
			if code != config.ExitUsage || !strings.Contains(err.Error(), c.part) {
				t.Errorf("%s, %s: exit code %d, %v\n%s", v.Name, what, code, err, out)
			}
			if what == "no terminal to ask on" && err != nil && !strings.Contains(err.Error(), "1 recipient of 1 message") {
				t.Errorf("%s: got %v, want the numbers", v.Name, err)
			}
		}
	}
	if got := len(o.Read(t, "transport/"+name)); got != size {
		t.Error("the specification was changed")
	}
	last := "0"
	if strings.HasSuffix(id, last) {
		last = "1"
	}
	other := id[:len(id)-1] + last
	exits(t, 1, "hold", other)
	exits(t, config.ExitUsage, "hold", "--until", "2001-01-01", id)
}

// The question has the numbers; only yes is yes.
func TestOnlyYesIsYes(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "y": true, "\n": false, "": false, "n\n": false, "yeah\n": false} {
		assert.Equal(t, agreed(strings.NewReader(answer), io.Discard, "?"), want, "%q", answer)
	}
}

// M41: recipients that are being delivered to are named, with exit code 75; the rest is done.
func TestVerbsNameBusyRecipients(t *testing.T) {
	for _, verb := range []string{"hold", "freeze", "expire", "remove", "retry", "reroute"} {
		o := office.New(t)
		o.Run(t, "scheduler")
		id, name, offsets := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"), office.To("a.example", "a2@x"))
		agent := o.Run(t, "ta-smtp smtp")
		o.Tag(t, name, offsets[0], workspec.LockBytes(agent.Number()))
		wantIn(t, mustDo(t, verb, "--dry-run", "--to", "a1@x"), "delivery to 1 of them is in progress")
		out, code, err := invoke(t, verb, id)
		if code != config.ExitTempFail || !strings.Contains(fmt.Sprint(err), "delivery is in progress to <a1@x>") || !strings.Contains(out, "<a2@x>") {
			t.Errorf("%s: exit code %d, %v\n%s", verb, code, err, out)
		}
	}
}

// A13 M41: what is not routed is frozen and given back to the router; what a verb cannot
// do there is said.
func TestVerbsOnMailThatIsNotRouted(t *testing.T) {
	o := office.New(t)
	deferred := o.Submit(t, office.PlainMail)
	assert.Must(t, o.Claim(t, deferred).Defer("users"))
	id := deferred.ID.String()
	for _, verb := range []string{"hold", "release", "thaw", "expire"} {
		exits(t, 1, verb, id)
	}
	wantIn(t, mustDo(t, "freeze", "--yes", "--state", "deferred"), "is freezer/", ".person now")
	wantIn(t, mustDo(t, "queue", "--state", "frozen"), "frozen: person", "1 message")
	wantIn(t, mustDo(t, "thaw", id), " is router/")
	wantIn(t, mustDo(t, "freeze", id), "is freezer/")
	wantIn(t, mustDo(t, "undo"), "is router/")
	for _, verb := range []string{"retry", "reroute"} {
		d := o.Submit(t, office.PlainMail)
		assert.Must(t, o.Claim(t, d).Defer("routes"))
		wantIn(t, mustDo(t, verb, d.ID.String()), " is router/")
	}
	wantIn(t, mustDo(t, "remove", "--yes", "--state", "accepted"), "removed from router/", "3 messages")
	wantIn(t, mustDo(t, "undo"), "is router/", "undone for 3 messages")
}

// A13: recipients that have failed are opened again, if the sender does not know yet.
func TestRetryOpensFailedRecipients(t *testing.T) {
	o := office.New(t)
	id, name, offsets := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"), office.To("a.example", "a2@x"), office.To("a.example", "a3@x"))
	for i, told := range []bool{false, true} {
		o.Edit(t, name, func(s *postoffice.Spec) error {
			return s.Append(workspec.AppendDiagnostic(nil, &workspec.Diagnostic{Recipient: offsets[i], Time: time.Now(), Reported: told,
				Notary: workspec.Notary{Address: fmt.Sprintf("a%d@x", i+1), Action: "failed", Status: "5.1.1", Diagnostic: "smtp; 550 no"}}))
		})
		o.Tag(t, name, offsets[i], workspec.TagBytes(workspec.FormatOurs, workspec.TagFailed))
	}
	wantStates(t, "before", map[string]string{"a1@x": view.Failed, "a2@x": view.Failed, "a3@x": view.Waiting})
	mustDo(t, "retry", "--failed", "--yes", "--where", "state failed")
	wantStates(t, "retry --failed", map[string]string{"a1@x": view.Waiting, "a2@x": view.Failed})
	mustDo(t, "retry", "--failed", "--told", id)
	wantStates(t, "retry --failed --told", map[string]string{"a2@x": view.Waiting, "a3@x": view.Waiting})
}

// M41: an order names its messages before they are touched; undo of one order leaves
// those of others alone.
func TestUndoTakesBackOneOrder(t *testing.T) {
	o := office.New(t)
	one, _, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"), office.To("b.example", "b1@x"))
	two, _, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a2@x"))
	mustDo(t, "hold", "--yes", "--host", "a.example")
	mustDo(t, "hold", "--yes", "--host", "b.example")
	mustDo(t, "remove", two)
	list, err := o.Operations.List()
	if err != nil || len(list) != 3 {
		t.Fatalf("%d orders, %v", len(list), err)
	}
	var byHost postoffice.OperationID
	for _, id := range list {
		if h, err := act.ReadOperation(o.PostOffice, id, nil); err == nil && h.Selector == "host a.example" {
			byHost = id
		}
	}
	if got := strings.Fields(mustDo(t, "orders", string(byHost))); !slices.Contains(got, one) || !slices.Contains(got, two) || len(got) != 2 {
		t.Errorf("order %s is about %q", byHost, got)
	}
	mustDo(t, "undo", two)
	wantStates(t, "undo of a message", map[string]string{"a1@x": view.Held, "b1@x": view.Held, "a2@x": view.Held})
	wantIn(t, mustDo(t, "undo", "--dry-run", string(byHost)), "would undo", "host a.example")
	mustDo(t, "undo", string(byHost))
	wantStates(t, "undo of one", map[string]string{"a1@x": view.Waiting, "b1@x": view.Held, "a2@x": view.Waiting})
	exits(t, 1, "undo", string(byHost))
	mustDo(t, "undo", one)
	wantStates(t, "undo of a message's last order", map[string]string{"b1@x": view.Waiting})
	for _, arg := range []string{"20200101-000000-hold-1", "x"} {
		if _, code, err := invoke(t, "undo", arg); code == 0 {
			t.Errorf("undo %s: exit code 0, %v", arg, err)
		}
	}
}

// M41: what was delivered or given up is let alone; a deferral's answer selects.
func TestReplySelects(t *testing.T) {
	o := office.New(t)
	_, name, offsets := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"), office.To("a.example", "a2@x"), office.To("a.example", "a3@x"))
	o.Event(t, name, workspec.DeferredEvent(time.Now(), offsets[0], 1, time.Now().Add(time.Hour), status.SystemTrouble, "451 4.7.1 Greylisted"))
	o.Event(t, name, workspec.DeferredEvent(time.Now(), offsets[1], 1, time.Now().Add(time.Hour), status.MailboxFull, "452 4.2.2 full"))
	o.Tag(t, name, offsets[2], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
	if got := states(t, "--reply", "^451.*grey"); len(got) != 1 || got["a1@x"] == "" {
		t.Errorf("got %v", got)
	}
	wantIn(t, mustDo(t, "expire", "--dry-run", "--all"), "2 recipients of 1 message;")
	mustDo(t, "retry", "--yes", "--reply", "greylisted")
	if got := states(t, "--state", "due"); len(got) != 1 || got["a1@x"] == "" {
		t.Errorf("due now: got %v", got)
	}
}

// A20: each filter by itself, on the files, for looking and for acting alike.
func TestEachFilterFindsItsMail(t *testing.T) {
	o := office.New(t)
	_, old, offsets := o.EnqueueFrom(t, "news@shop.example", office.To("a.example", "a1@one"), office.To("b.example", "b1@two"))
	o.Event(t, old, workspec.DeferredEvent(time.Now(), offsets[0], 1, time.Now().Add(time.Hour), status.SystemTrouble, "451 4.7.1 Greylisted"))
	o.Age(t, "queue/"+old, 50*time.Hour)
	o.EnqueueFrom(t, "bob@client.example", office.To("a.example", "a2@one"))
	o.Submit(t, strings.Replace(office.PlainMail, "user@", "new@", 1)+strings.Repeat("x\n", 5000))
	for args, want := range map[string]string{
		"--from @shop.example": "a1@one b1@two", "--from bob@*": "a2@one", "--to *@one": "a1@one a2@one", "--host b.example": "b1@two",
		"--channel smtp": "a1@one a2@one b1@two", "--channel local": "", "--state due": "a2@one b1@two", "--state accepted": "new@a.example.com",
		"--older 2d": "a1@one b1@two", "--younger 2d": "a2@one new@a.example.com", "--larger 5k": "new@a.example.com", "--smaller 5k --host a.example": "a1@one a2@one",
		"--reply greylist": "a1@one", "--older 2d --host a.example": "a1@one", "--host a.example,b.example --older 2d": "a1@one b1@two",
		"--where host=a.example!older=2d": "a2@one", "--host a.example --host b.example --to b*": "b1@two",
	} {
		got := slices.Sorted(maps.Keys(states(t, strings.Fields(args)...)))
		if strings.Join(got, " ") != want {
			t.Errorf("queue %s: got %q, want %q", args, got, want)
		}
		n := 0
		for _, address := range got {
			if !strings.HasPrefix(address, "new@") {
				n++
			}
		}
		wantIn(t, mustDo(t, slices.Concat([]string{"expire", "--dry-run"}, strings.Fields(args))...), fmt.Sprintf("would change %d recipient", n))
	}
}
