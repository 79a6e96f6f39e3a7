package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// S19, M49 smtp and smtpx: by MX in the order of preference, by A without MX, by
// aliases of the name server, by A alone on smtpx; what has no mail server fails, what
// cannot be looked up waits.
func TestMailGoesWhereTheNameServerSays(t *testing.T) {
	t.Parallel()
	first := sinkAt(t, "127.0.0.1", 0)
	port := portOf(t, first)
	second := sinkAt(t, "127.0.0.2", port)
	server := mxtest.Start(t, `
first.example.   300 IN MX 10 a.first.example.
first.example.   300 IN MX 20 b.first.example.
a.first.example. 300 IN A 127.0.0.1
b.first.example. 300 IN A 127.0.0.2
dead.example.    300 IN MX 10 a.dead.example.
dead.example.    300 IN MX 20 b.dead.example.
a.dead.example.  300 IN A 127.0.0.3
b.dead.example.  300 IN A 127.0.0.2
bare.example.    300 IN A 127.0.0.2
other.example.   300 IN CNAME first.example.
x.example.       300 IN MX 10 a.first.example.
x.example.       300 IN A 127.0.0.2
null.example.    300 IN MX 0 .
late.example.    300 IN MX 10 a.first.example.
self.example.    300 IN MX 10 mta.example.
mta.example.     300 IN A 127.0.0.1
`)
	server.Fail("late.example MX", dns.RcodeServerFailure, -1)
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RESOLVER": server.Addr, "SMTPPORT": fmt.Sprint(port)}
		s.Files["routes"] = "x.example smtpx!\n. smtp!\n"
	})
	hosts := map[string]*peer.Sink{"first": first, "dead": second, "bare": second, "other": first, "x": second, "late": first}
	failures := map[string]string{"null": "5.1.10", "self": "5.4.6", "none": "5.1.2"}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(hosts)), slices.Collect(maps.Keys(failures))) {
		submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "user@"+name+".example")
	}
	event(t, s, "deferred", "rcpt", "user@late.example", "status", "4.4.3")
	server.Fail("late.example MX", dns.RcodeServerFailure, 0)
	awaitEmpty(t, s)
	awaitMail(t, s, "bob", len(failures))
	for name, host := range hosts {
		for _, sink := range []*peer.Sink{first, second} {
			wantEach(t, sink, map[bool]int{true: 1}[sink == host], "user@"+name+".example")
		}
	}
	for name, status := range failures {
		assert.Equal(t, s.Count("failed", "rcpt", "user@"+name+".example", "status", status), 1, status)
	}
}

// M49 lmtp: by TCP and by a socket, and each recipient has an answer of its own.
func TestLMTPAnswersForEachRecipient(t *testing.T) {
	t.Parallel()
	final := func(m *peer.Message) string {
		switch m.Recipients[0] {
		case "full@box.example":
			return "452 4.2.2 over quota"
		case "gone@box.example":
			return "550 5.1.1 no such mailbox"
		}
		return ""
	}
	socket := filepath.Join(openDir(t), "lmtp")
	for name, sink := range map[string]*peer.Sink{
		"tcp":  newSink(t, &peer.Sink{LMTP: true, Final: final}),
		"unix": newSink(t, &peer.Sink{LMTP: true, Final: final, Listen: "unix:" + socket}),
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, nil, func(s *suite.Suite) {
				host := sink.Addr()
				if name == "unix" {
					host = "unix:" + socket
				}
				s.Files["routes"] = "box.example lmtp!" + host + "\n"
			})
			submit(t, s, "Subject: x\n\n.dot\n", "-f", "bob@mta.example", "ok@box.example", "full@box.example", "gone@box.example", "too@box.example")
			event(t, s, "failed", "rcpt", "gone@box.example", "status", "5.1.1", "channel", "lmtp")
			event(t, s, "deferred", "rcpt", "full@box.example", "status", "4.2.2", "attempt", "2")
			event(t, s, "delivered", "rcpt", "ok@box.example")
			event(t, s, "delivered", "rcpt", "too@box.example")
			got := sink.Messages()
			if len(got) != 1 || strings.Join(got[0].Recipients, " ") != "ok@box.example too@box.example" {
				t.Errorf("%d messages: %+v", len(got), got)
			}
			wantIn(t, string(got[0].Data), "\r\n\r\n.dot\r\n")
		})
	}
}

// M49 local, file, bitbucket and error: aliases lead to an mbox file, a Maildir, and
// nowhere; a user has an mbox; an unknown user is reported.
func TestAliasesLeadToFilesAndNowhere(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	stores := filepath.Join(s.Dir, "stores")
	assert.Must(t, os.Mkdir(stores, 0o755))
	configure(t, s, "aliases", fmt.Sprintf("archive: %[1]s/archive\nkeep: %[1]s/keep/\nvoid: /dev/null\nall: archive, keep,\n  void, alice\n", stores))
	// Users' mail in mbox files.
	write(t, s.Config(), strings.Replace(read(t, s.Config()), "%u/\n", "%u\n", 1))
	begin(t, s)
	const body = "\nFrom here on\n>From there\n"
	submit(t, s, "Subject: one\n"+body, "-f", "bob@mta.example", "all@mta.example", "bob@mta.example")
	submit(t, s, "Subject: two\n"+body, "-f", "bob@mta.example", "archive@mta.example", "alice@mta.example")
	for _, file := range []string{filepath.Join(stores, "archive"), s.Maildir("alice")} {
		await(t, s, "two messages in "+file, func() (bool, error) {
			b, err := os.ReadFile(file)
			return strings.Count("\n"+string(b), "\nFrom bob@mta.example ") == 2, ignoreMissing(err)
		})
		wantIn(t, read(t, file), "Subject: one\n\n>From here on\n>>From there\n\n", "Subject: two\n", "Return-Path: <bob@mta.example>\n")
	}
	var mail [][]byte
	await(t, s, "a message in the Maildir", func() (bool, error) {
		var err error
		mail, err = suite.Mail(filepath.Join(stores, "keep"))
		return len(mail) > 0, ignoreMissing(err)
	})
	wantIn(t, string(mail[0]), "Subject: one\n"+body)
	event(t, s, "delivered", "channel", "bitbucket")

	submit(t, s, "Subject: three\n\n", "-f", "bob@mta.example", "nosuch@mta.example")
	event(t, s, "failed", "rcpt", "nosuch@mta.example", "channel", "error", "host", "nouser", "status", "5.1.1")
	event(t, s, "report", "rcpt", "bob@mta.example", "kind", "failed")
	awaitEmpty(t, s)
	wantIn(t, read(t, s.Maildir("bob")), "Subject: one\n", "Final-Recipient: rfc822; nosuch@mta.example\n", "Status: 5.1.1\n", "Action: failed\n")
}

func ignoreMissing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// M16: what ZMailer's own programs wrote is taken over: a message of its SMTP server in
// router/, and one that its router has routed, in queue/ and transport/.
func TestFilesOfZMailerAreTakenOver(t *testing.T) {
	t.Parallel()
	message := read(t, "../../internal/mail/envelope/testdata/zmailer/02-multi")
	specification := read(t, "../../internal/workspec/testdata/samples/02-multi/transport-before")
	for name, plant := range map[string]func(t *testing.T, s *suite.Suite){
		"accepted": func(t *testing.T, s *suite.Suite) { place(t, s, "router", message) },
		"routed": func(t *testing.T, s *suite.Suite) {
			// Its copy has another inode number, as after a restore.
			write(t, path(s, "queue/10117779"), message)
			write(t, path(s, "transport/10117779"), specification)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := sinkAt(t, "127.0.0.1", 0)
			port := portOf(t, a)
			b := sinkAt(t, "127.0.0.2", port)
			server := mxtest.Start(t, "a.example.com. 300 IN A 127.0.0.1\nb.example.com. 300 IN MX 5 mx.b.example.com.\nmx.b.example.com. 300 IN A 127.0.0.2\n")
			s := prepare(t, nil, func(s *suite.Suite) {
				s.Hostname, s.Users = "zm.example.org", []string{"root"}
				s.Settings = map[string]string{"RESOLVER": server.Addr, "SMTPPORT": fmt.Sprint(port)}
			})
			plant(t, s)
			begin(t, s)
			awaitEmpty(t, s)
			assert.Equal(t, rcptsOf(a), "alice@a.example.com carol@a.example.com")
			assert.Equal(t, rcptsOf(b), "bob@b.example.com")
			mail := awaitMail(t, s, "root", 1)
			_, body, _ := strings.Cut(message, "\n\n")
			for _, text := range []string{string(mail[0]), strings.ReplaceAll(string(a.Messages()[0].Data), "\r\n", "\n")} {
				wantIn(t, text, "Received: ", "\nMessage-ID: <02-multi@client.example.net>\n", "Subject: multiple recipients on several hosts\n")
				if !strings.HasSuffix(text, "\n\n"+body) {
					t.Errorf("the body differs: %q", text)
				}
			}
		})
	}
}

// M31: an agent works in transport/, has the message and its specification open from
// there, and its environment holds ZCONFIG and what the clause sets, nothing else.
func TestAgentWorksInTransport(t *testing.T) {
	t.Parallel()
	sink, g := newGate(t, peer.AtData)
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, `"ta-smtp`, `"[SET=by-clause] ta-smtp`, 1)
	})
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
	g.await(t)
	for _, p := range processes(t, s) {
		if p.Name != "ta-smtp" {
			continue
		}
		proc := fmt.Sprintf("/proc/%d/", p.Pid)
		if got, err := os.Readlink(proc + "cwd"); err != nil || got != path(s, "transport") {
			t.Errorf("it works in %s, %v, want transport/", got, err)
		}
		open := ""
		links, _ := filepath.Glob(proc + "fd/*")
		for _, l := range links {
			name, _ := os.Readlink(l)
			open += name + "\n"
		}
		name := only(t, s, "transport")
		wantIn(t, open, path(s, "transport/"+name)+"\n", path(s, "queue/"+name)+"\n")
		if got, want := read(t, proc+"environ"), "ZCONFIG="+s.Config()+"\x00ZCONFIGOF=scheduler\x00SET=by-clause\x00"; got != want {
			t.Errorf("its environment is %q, want %q", got, want)
		}
		return
	}
	t.Error("no ta-smtp runs")
}

// Z6, Z16, Z14: two clauses, two zones: each host's mail comes from its zone's address
// and under its name; a deferred message comes from the same address again, and a rule on
// replies makes it another one.
func TestZonesOfTheSchedulerReachTheServer(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, attempt int) string {
		switch {
		case attempt > 1:
			return ""
		case address == "later@named.example":
			return "451 4.2.1 come back"
		case address == "moved@named.example":
			return "451 4.7.1 poor reputation"
		}
		return ""
	}})
	host := sink.RouteHost()
	s := prepare(t, sink, func(s *suite.Suite) {
		s.Files["routes"] = ".named.example smtp-named!" + host + "\n.many.example smtp-many!" + host + "\n. smtp!" + host + "\n"
		s.Files["replies"] = "smtp-*/* source /reputation/\n"
		s.Files["scheduler.conf"] = `*/* interval=1s retries=1 expiry=1d maxthr=5
smtp-named/*
	sources="127.0.0.2=two.mta.example 127.0.0.3=three.mta.example" helo=zone.mta.example
	command="ta-smtp --slots=5 $channel"
smtp-many/*
	sources=127.0.0.4 helo=many.mta.example
	command="ta-smtp --slots=5 $channel"
smtp/*
	command="ta-smtp --slots=5 $channel"
local/*
	command="ta-mailbox $channel"
`
	})
	begin(t, s)
	names := map[string]string{"127.0.0.1": "mta.example", "127.0.0.2": "two.mta.example", "127.0.0.3": "three.mta.example", "127.0.0.4": "many.mta.example"}
	to := []string{"later@named.example", "moved@named.example", "u@many.example", "u@else.example"}
	for i := range 8 {
		to = append(to, fmt.Sprintf("u%d@named.example", i))
	}
	for _, a := range to {
		submit(t, s, "Subject: zones\n\nbody\n", "-f", "bob@mta.example", a)
	}
	assert.Must(t, sink.Wait(len(to), patience))
	peers := map[string]bool{}
	for _, m := range sink.Messages() {
		assert.Equal(t, names[m.Peer], m.Hello, m.Recipients)
		peers[m.Peer] = true
		switch want := map[string]string{"u@many.example": "127.0.0.4", "u@else.example": "127.0.0.1"}[m.Recipients[0]]; {
		case want != "" && m.Peer != want:
			t.Errorf("%v came from %s, want %s", m.Recipients, m.Peer, want)
		case want == "" && m.Peer != "127.0.0.2" && m.Peer != "127.0.0.3":
			t.Errorf("%v came from %s, which is not its zone's", m.Recipients, m.Peer)
		}
	}
	assert.Equal(t, len(peers), 4, peers)
	event(t, s, "reply-rule", "rcpt", "moved@named.example", "rule", confFile(s, "replies")+":1")
	// The reply that the history keeps, and the next attempt reads.
	event(t, s, "deferred", "rcpt", "moved@named.example", "reply", "another source")
}
