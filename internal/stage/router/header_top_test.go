package router

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
)

// plainDates puts words for what differs in every run.
func plainDates(header string) string {
	for _, r := range []struct{ from, to string }{
		{`<S[0-9]+A[0-9A-Za-z]+@`, "<ID@"},
		{`[A-Z][a-z]{2}, [0-9]+ [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} [-+][0-9]{4}`, "DATE"},
	} {
		header = regexp.MustCompile(r.from).ReplaceAllString(header, r.to)
	}
	return header
}

// below is a header without the Received field on its top.
func below(t *testing.T, m routed) string {
	t.Helper()
	_, rest, ok := strings.Cut(m.header(), "\n\tid ")
	_, rest, more := strings.Cut(rest, "\n")
	if !strings.HasPrefix(m.header(), "Received: ") || !ok || !more {
		t.Fatalf("got %q, want a Received field on top", m.header())
	}
	return plainDates(rest)
}

// RFC 5322 §3.6.3 and §3.6.6, RFC 6409 §8: what is put on, what is left out, and that
// all else stays.
func TestFieldsOnTopAndFieldsLeftOut(t *testing.T) {
	t.Parallel()
	const (
		from  = "From: q@example.net\n"
		local = "from <q@example.net>\nto <a@example.net>\nenv-end\n"
		far   = "external\nfrom <q@example.net>\nto <a@example.net>\nenv-end\n"
		made  = "Date: DATE\nMessage-ID: <ID@mx.example.org>\n"
		again = "Resent-Date: DATE\nResent-Message-ID: <ID@mx.example.org>\n"
	)
	tests := map[string]struct{ file, want string }{
		"local: what is missing":                {local + from, made + from},
		"local: nothing is missing":             {local + from + "Date: x\nMessage-ID: y\n", from + "Date: x\nMessage-ID: y\n"},
		"local: no From":                        {"fullname J. Bond\nfrom <q@example.net>\nto a\nenv-end\nSubject: x\n", "From: \"J. Bond\" <q@example.net>\n" + made + "Subject: x\n"},
		"outside: nothing is put on":            {far + "Subject: x\n", "Subject: x\n"},
		"local: Bcc, envelope has recipients":   {local + from + "Bcc: b@example.net,\n c@example.net\nTo: a@example.net\n", made + from + "To: a@example.net\n"},
		"local: Bcc, recipients in the header":  {"from <q@example.net>\nenv-end\n" + from + "bcc: b@example.net\nBCC:\n", made + from},
		"local: Resent-Bcc":                     {local + "Resent-From: r@x\nRESENT-BCC: b@example.net\n" + from, again + "Resent-From: r@x\n" + from},
		"outside: Bcc stays":                    {far + from + "Bcc: b@example.net\n", from + "Bcc: b@example.net\n"},
		"outside: Bcc goes if we read it":       {"external\nfrom <q@example.net>\nenv-end\n" + from + "Bcc: b@example.net\nTo: a@example.net\n", from + "To: a@example.net\n"},
		"resent: the author's fields stay":      {local + "Resent-From: r@x\nResent-To: a@example.net\nSubject: x\n", again + "Resent-From: r@x\nResent-To: a@example.net\nSubject: x\n"},
		"resent: no Resent-From":                {local + "Resent-To: a@example.net\n" + from, "Resent-From: q@example.net\n" + again + "Resent-To: a@example.net\n" + from},
		"resent: nothing is missing":            {local + "Resent-Message-ID: i\nResent-Date: d\nResent-From: r@x\n" + from, "Resent-Message-ID: i\nResent-Date: d\nResent-From: r@x\n" + from},
		"resent: the block stays together":      {local + "X-First: x\nResent-From: r@x\nResent-To: a@x\n" + from, "X-First: x\n" + again + "Resent-From: r@x\nResent-To: a@x\n" + from},
		"resent: a second block below":          {local + "Resent-From: r@x\nResent-From: s@x\nResent-Date: d\n" + from, again + "Resent-From: r@x\nResent-From: s@x\nResent-Date: d\n" + from},
		"resent elsewhere: Received above":      {local + "Received: x\nResent-From: r@x\n" + from, made + "Received: x\nResent-From: r@x\n" + from},
		"resent, from outside":                  {far + "Resent-From: r@x\n" + from, "Resent-From: r@x\n" + from},
		"a line that is no field":               {local + from + "no colon here\n Bcc: folded into it\n", made + from + "no colon here\n Bcc: folded into it\n"},
		"Bcc is no prefix":                      {local + from + "Bcc-Archive: x\n", made + from + "Bcc-Archive: x\n"},
		"outside: two of each, odd case, blank": {far + "FROM : a@x\nfrom:b@x\nDate:\nDate: \n", "FROM : a@x\nfrom:b@x\nDate:\nDate: \n"},
		"local: an empty field is there":        {local + "From:\nDate:\nMessage-ID:\n", "From:\nDate:\nMessage-ID:\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			if got := below(t, o.one(tt.file+"\nbody\n")); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// What cannot be a field of its own must not become part of one that counts.
func TestHeaderThatBeginsWithABlankFollowsReceived(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"header-rules": "all add X-Added 1\n"})
	m := o.one("from <q@example.net>\nto <a@example.net>\nenv-end\n begins with a blank\nFrom: q@example.net\n\nbody\n")
	got := plainDates(m.header())
	if !strings.HasPrefix(got, "X-Added: 1\nDate: DATE\nMessage-ID: <ID@mx.example.org>\nReceived: ") || !strings.HasSuffix(got, "DATE\n begins with a blank\nFrom: q@example.net\n") {
		t.Errorf("got\n%s", got)
	}
}

// RFC 5322 §3.6.2, §3.6.6: a submitter who is not who he says stands in Sender, of a
// message that he resends in Resent-Sender.
func TestSubmitterWhoIsNotWhoHeSaysIsNamed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("giving files to other users needs root")
	}
	uid, login := somebody(t)
	o := newOffice(t, nil, func(c *Config) { c.OwnSenders = true })
	o.asUser(o.submit("from <bond@example.org>\nto <a@example.net>\nenv-end\nResent-From: bond@example.org\nFrom: q@example.net\n\n"), uid)
	list := o.route()
	if len(list) != 1 {
		t.Fatalf("got %d messages", len(list))
	}
	want := "Resent-Sender: " + login + "@mx.example.org\nResent-Date: DATE\nResent-Message-ID: <ID@mx.example.org>\nResent-From: bond@example.org\nFrom: q@example.net\n"
	if got := below(t, list[0]); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// S13: however often a message is routed, what is put on is put on once, and is the same.
func TestFieldsArePutOnOnceHoweverOftenAMessageIsRouted(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "members")
	now := time.Now()
	o := newOffice(t, map[string]string{
		"aliases":      "team: :include:" + list + "\n",
		"header-rules": "local add X-Origin inside\n",
		"masquerade":   "q@example.net: other@example.com\n",
	}, func(c *Config) { c.Now = func() time.Time { return now } })
	a := o.submit("from <q@example.net>\nto <team@example.org>\nenv-end\nFrom: q@example.net\nBcc: x@y\nSubject: x\n\nbody\n")
	before, err := os.ReadFile(filepath.Join(o.dir, a.Name))
	if err != nil {
		t.Fatal(err)
	}
	// Deferred and resubmitted, and the claim of a router that died, in turns.
	for try := range 3 {
		now = now.Add(time.Hour)
		o.route()
		o.expect(fmt.Sprint("deferred ", try), map[string]int{"deferred": 1})
		names, err := o.po.Aside.ListDeferred()
		if err != nil || len(names) != 1 {
			t.Fatalf("got %q, %v", names, err)
		}
		if _, err := o.po.Aside.Resubmit(names[0]); err != nil {
			t.Fatal(err)
		}
		o.leave(a, 7)
		if err := o.r.Recover(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(list, []byte("bond\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	routed := o.route()
	if len(routed) != 1 {
		t.Fatalf("got %d messages", len(routed))
	}
	m := routed[0]
	id := postoffice.Accepted(a).ID
	date := id.Time().Format("Mon, 2 Jan 2006 15:04:05 -0700")
	want := fmt.Sprintf("Received: by mx.example.org (from userid %d)\n\tid %s; %s\nX-Origin: inside\nDate: %s\nMessage-ID: <%s@mx.example.org>\nFrom: other@example.com\nSubject: x\n",
		os.Geteuid(), id, date, date, id)
	if got := m.header(); got != want {
		t.Errorf("header: got\n%s\nwant\n%s", got, want)
	}
	if string(m.message) != string(before) {
		t.Errorf("message file: got %q, want it as it was, %q", m.message, before)
	}
}
