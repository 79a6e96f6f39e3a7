package route

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/table/text"
)

// Op10: the rules that smtpserver follows before its reply decide in the router about mail that
// came another way; where a client has a 250, nothing is refused any more.
func TestOp10RouterFollowsTheRulesForOtherMail(t *testing.T) {
	const rules = "all reject X-Bad /(.*)/ 5.7.9 no $1\nall discard X-Drop\nall hold X-Odd /./ look\n" +
		"all redirect X-Other other@example.net\nall filter X-Filter smtp![127.0.0.1]:10025\nall bcc X-Log log@example.net\nall remove X-Secret\n"
	for name, tt := range map[string]struct {
		envelope string
		header   string
		want     string // in the specification; "": there is none
		not      string
	}{
		"rejected":                      {"", "X-Bad: 1", "error 5.7.9:no+201 q@example.com", "smtp"},
		"rejected by the body":          {"", "X: y\n\nspam", "error 5.7.1", "smtp"},
		"accepted by smtpserver before": {"external\nrules followed\n", "X-Bad: 1", "smtp example.com q@example.com", "error"},
		"another program's, external":   {"external\n", "X-Bad: 1", "error 5.7.9", "smtp"},
		"discarded":                     {"", "X-Drop: 1", "bitbucket - q@example.com", "smtp"},
		"held":                          {"", "X-Odd: 1", "", ""},
		"held, after a 250":             {"external\nrules followed\n", "X-Odd: 1", "smtp example.com q@example.com", ""},
		"redirected":                    {"", "X-Other: 1", "smtp example.net other@example.net", "smtp example.com"},
		"redirected, after a 250":       {"external\nrules followed\n", "X-Other: 1", "smtp example.net other@example.net", "smtp example.com"},
		"to a filter":                   {"", "X-Filter: 1", "smtp [127.0.0.1]:10025 q@example.com", ""},
		"a copy":                        {"", "X-Log: 1", "smtp example.net log@example.net", ""},
		"changed":                       {"external\nrules followed\n", "X-Secret: 1", "smtp example.com q@example.com", "X-Secret"},
		"exempt":                        {"external\nrules skipped\n", "X-Secret: 1\nX-Filter: 1", "X-Secret", "10025"},
		"a report of ours":              {"errormsg\n", "X-Bad: 1", "smtp example.com q@example.com", "error"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.table("header-rules", rules)
			r.table("body-rules", "/spam/ REJECT\n")
			m := r.route(r.engine(), r.claim(uint32(os.Geteuid()), tt.envelope+"from <a@example.org>\nto <q@example.com>\nenv-end\n"+tt.header+"\n\ntext\n"))
			if tt.want == "" {
				_, frozen := IsFrozen(m.Err)
				assert.Equal(t, frozen, true, "%v", m.Err)
				return
			}
			assert.Must(t, m.Err)
			assert.Contains(t, string(m.file), tt.want)
			if tt.not != "" && strings.Contains(string(m.file), tt.not) {
				t.Errorf("%q in\n%s", tt.not, m.file)
			}
		})
	}
	// Nobody else's file can say that the rules are followed.
	r := newRig(t)
	r.table("header-rules", rules)
	m := r.route(r.engine(), r.claim(1, "external\nrules followed\nfrom <a@example.org>\nto <q@example.com>\nenv-end\nX-Bad: 1\n\n"))
	assert.Contains(t, string(m.file), "error 5.7.9")
}

// Mail that is not marked by a daemon as filtered goes to the content filter, and nowhere else.
func TestMailGoesThroughTheContentFilter(t *testing.T) {
	const head = "from <a@example.org>\nto <q@example.com>\nto <alice>\nenv-end\n"
	for name, tt := range map[string]struct {
		uid      uint32
		envelope string
		header   string
		want     []string
		not      string
	}{
		"from outside":                {0, "external\n", "X: y", []string{"smtpx 127.0.0.1:10024 q@example.com", "smtpx 127.0.0.1:10024 alice@"}, "smtp example.com"},
		"of a user":                   {1, "", "X: y", []string{"smtpx 127.0.0.1:10024 q@example.com"}, "smtp example.com"},
		"filtered":                    {0, "external\nfiltered\n", "X: y", []string{"smtp example.com q@example.com"}, "10024"},
		"filtered, says a user":       {1, "external\nfiltered\n", "X: y", []string{"smtpx 127.0.0.1:10024 q@example.com"}, "smtp example.com"},
		"a report of ours":            {0, "errormsg\n", "X: y", []string{"smtp example.com q@example.com"}, "10024"},
		"errormsg, says a user":       {1, "errormsg\n", "X: y", []string{"smtpx 127.0.0.1:10024 q@example.com"}, "smtp example.com"},
		"an access rule's":            {0, "external\nfilter smtp!other:25\n", "X: y", []string{"smtp other:25 q@example.com", "smtp other:25 alice@"}, "10024"},
		"an access rule's, no host":   {0, "external\nfilter smtpx!\n", "X: y", []string{"smtpx example.com q@example.com"}, "10024"},
		"access rule and header rule": {0, "external\nfilter smtp!first:25\n", "X-Filter: 1", []string{"smtp other:25 q@example.com"}, "first"},
		"a filter, says a user":       {1, "external\nfilter smtp!other:25\n", "X: y", []string{"smtpx 127.0.0.1:10024 q@example.com"}, "other"},
		"back from an access rule's":  {0, "external\nfilter smtp!other:25\nfiltered\n", "X: y", []string{"smtp example.com q@example.com"}, "other"},
		"a rule's, as in Postfix":     {0, "external\n", "X-Amavis: 1", []string{"smtpx 127.0.0.1:10026 q@example.com"}, "10024"},
		"a rule's filter, no host":    {0, "external\n", "X-Bare: 1", []string{"smtpx example.com q@example.com"}, "10024"},
		"a rule's own filter":         {0, "external\n", "X-Filter: 1", []string{"smtp other:25 q@example.com"}, "10024"},
		"a rule's redirection":        {0, "external\n", "X-Other: 1", []string{"smtpx 127.0.0.1:10024 other@example.net"}, "smtp example.net"},
		"a rule's copy":               {0, "external\n", "X-Log: 1", []string{"smtpx 127.0.0.1:10024 log@example.net", "smtpx 127.0.0.1:10024 q@example.com"}, "smtp example.net"},
		"rejected by a rule":          {0, "external\n", "X-Bad: 1", []string{"error 5.7.9"}, "10024"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.table("header-rules", "all filter X-Filter smtp!other:25\n/^X-Bare:/ FILTER smtpx:\n/^X-Amavis:/ FILTER smtp-amavis:[127.0.0.1]:10026\nall redirect X-Other other@example.net\nall bcc X-Log log@example.net\nall reject X-Bad /./ 5.7.9 no\n")
			r.config.ContentFilter = &text.Route{Channel: "smtpx", Host: "127.0.0.1:10024"}
			uid := tt.uid
			if uid == 0 {
				uid = uint32(os.Geteuid())
			}
			m := r.route(r.engine(), r.claim(uid, tt.envelope+head+tt.header+"\n\ntext\n"))
			assert.Must(t, m.Err)
			for _, want := range tt.want {
				assert.Contains(t, string(m.file), want)
			}
			if strings.Contains(string(m.file), tt.not) {
				t.Errorf("%q in\n%s", tt.not, m.file)
			}
		})
	}
}

// Mail that the content filter gives back to port 25 is known at once. Mail that was filtered and comes
// from this host again is not, nor are others' claims.
func TestMailThatTheFilterReturnsToPort25IsFrozen(t *testing.T) {
	const (
		theirs = "Received: from localhost by localhost (amavisd-new); Thu, 26 Nov 2026 10:00:00 +0000\n"
		marked = "Received: from far.example ([192.0.2.1]:25)\n\tby mta.example with ESMTP (to the\n\tcontent filter)\n\tid S1; Thu, 26 Nov 2026 10:00:00 +0000\n"
		after  = "Received: from localhost ([127.0.0.1]:25) by mta.example with ESMTP id S2; Thu, 26 Nov 2026 10:00:00 +0000\n"
		local  = "external\nrcvdfrom localhost ([127.0.0.1]:9)\n"
	)
	for name, tt := range map[string]struct {
		envelope, header string
		want             bool
	}{
		"from the filter":                  {local, theirs + marked, true},
		"the filter adds no field":         {local, marked, true},
		"from elsewhere":                   {"external\nrcvdfrom far ([192.0.2.1]:9)\n", theirs + marked, false},
		"the filter names the client":      {local + "forwarded far ([192.0.2.1]:9)\n", theirs + marked, true},
		"another host in a filter's name":  {"external\nrcvdfrom far ([192.0.2.1]:9)\nforwarded localhost ([127.0.0.1]:9)\n", marked, false},
		"a list manager, after the filter": {local, theirs + after + theirs + marked, false},
		"new mail of this host":            {local, "", false},
		"another host's filter":            {local, strings.ReplaceAll(marked, "mta.example", "other.example"), false},
		"by a program":                     {"", marked, false},
		"given back where it should be":    {local + "filtered\n", theirs + marked, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.config.Hostname, r.config.ContentFilter = "mta.example", &text.Route{Channel: "smtpx", Host: "127.0.0.1:10024"}
			r.config.FilterNets = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			m := r.route(r.engine(), r.claim(uint32(os.Geteuid()), tt.envelope+"from <a@example.org>\nto <q@example.com>\nenv-end\n"+tt.header+"Subject: x\n\ntext\n"))
			frozen, is := IsFrozen(m.Err)
			if is != tt.want || is && frozen.Cause != loopCause {
				t.Errorf("got %v, want frozen: %v", m.Err, tt.want)
			}
		})
	}
}

// The mark of the loop is in the field that the router itself writes, and only on the way to the
// filter.
func TestReceivedFieldOnTheWayToTheFilterIsMarked(t *testing.T) {
	for _, filtered := range []string{"", "filtered\n"} {
		r := newRig(t)
		r.config.Hostname, r.config.ContentFilter = "mta.example", &text.Route{Channel: "smtpx", Host: "127.0.0.1:10024"}
		m := r.route(r.engine(), r.claim(uint32(os.Geteuid()), "external\nrcvdfrom a.very.long.name.of.a.host.example (a.very.long.name.of.a.host.example [192.0.2.1]:9)\nwith ESMTPSA\n"+filtered+"from <a@example.org>\nto <q@example.com>\nenv-end\nSubject: x\n\ntext\n"))
		assert.Must(t, m.Err)
		_, block, _ := strings.Cut(string(m.file), "Received:")
		var h header
		h.look([]byte("Received:" + block))
		assert.Equal(t, h.isMarked("mta.example"), filtered == "", "%s", m.file)
	}
}

func TestContentFilterIsWrittenAsInPostfixToo(t *testing.T) {
	for value, want := range map[string]string{
		"smtp-amavis:[127.0.0.1]:10024": "smtpx!127.0.0.1:10024", "smtp:[127.0.0.1]:10024": "smtpx!127.0.0.1:10024", "smtp:[::1]:10024": "smtpx![::1]:10024",
		"smtp:filter.example:25": "smtp!filter.example:25", "lmtp:unix:/run/lmtp": "lmtp!unix:/run/lmtp", "lmtp-filter:[127.0.0.1]:24": "lmtp!127.0.0.1:24",
		"smtpx!127.0.0.1:10024": "smtpx!127.0.0.1:10024", "smtpx![::1]:10024": "smtpx![::1]:10024",
		"filter:dummy": "", "smtp:": "smtp!", "smtpx!": "smtpx!", "local!": "", "hold!": "", "127.0.0.1:10024": "", "smtp:[127.0.0.1]:1 x": "", "error!x": "",
	} {
		got, err := text.ParseFilter(value)
		if text := got.Channel + "!" + got.Host; (err == nil) != (want != "") || err == nil && text != want {
			t.Errorf("%s: got %s, %v, want %s", value, text, err, want)
		}
	}
}
