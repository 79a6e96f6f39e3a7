package engine

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/wire/mailq"
)

// A new mailqsock holds without a new start: its socket takes the old one's place, who is
// connected stays so, and one that could not be made is tried again.
func TestQuerySocketFollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	clause := scriptConf("", "")
	r := newRig(t, clause, 0, nil)
	put, ask := r.follow(clause)
	path := filepath.Join(t.TempDir(), "query")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	answers := func(c *mailq.Client) {
		t.Helper()
		if lines := askedLines(t, c, mailq.Request{Kind: mailq.Threads2}); len(lines) != 0 {
			t.Errorf("got %q", lines)
		}
	}
	reads := 0
	serve := func(mailqsock string) {
		t.Helper()
		put("PARAM mailqsock = " + mailqsock + "\n" + clause)
		ask()
		reads++
		r.wait(reads, "msg=conf-read", "why=asked")
	}
	r.start()
	serve(path)
	r.wait(1, "msg=query-served", "socket="+path)
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	old, _ := r.client(conn)
	answers(old)

	serve("TCP:" + taken.Addr().String())
	r.wait(1, "msg=query-not-served", taken.Addr().String())
	answers(old)
	if _, err := os.Lstat(path); err == nil {
		t.Error("the old socket is there still")
	}
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		t.Error("the old socket is served still")
	}

	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	serve("TCP:" + taken.Addr().String())
	r.wait(1, "msg=query-served", "socket="+taken.Addr().String())
	if conn, err = net.Dial("tcp", taken.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	answers(old)
	home, _ := r.dial()
	answers(home)
}
