package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"zmailer/test/suite"
)

// life prints the log's events as the story of each message.
type life struct {
	mu  sync.Mutex
	out io.Writer
	dir string // of the postoffice
}

func newLife(out io.Writer) *life { return &life{out: out} }

// say prints a line between events.
func (l *life) say(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprint(l.out, line)
}

// told are the keys that stand in columns; the others follow as they are.
var told = map[string]bool{"time": true, "level": true, "msg": true, "program": true, "id": true}

// order is how the other keys are told.
var order = []string{"from", "rcpt", "channel", "host", "status", "reply", "attempt", "next", "report", "took"}

func (l *life) print(e suite.Event) {
	id := e.Get("id")
	if id == "" && e.Level != "WARN" && e.Level != "ERROR" {
		return // starts and stops are not a message's life
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-10s %-10s %-22s %-24s", e.Time.Format("15:04:05.000"), e.Program, e.Word, id, file(e))
	for _, k := range order {
		v := e.Get(k)
		if n, ok := e.Attrs[k].(float64); ok && k == "took" {
			v = time.Duration(n).Round(time.Microsecond).String() // JSON has nanoseconds
		}
		if v != "" && !told[k] {
			fmt.Fprintf(&b, " %s=%s", k, strings.TrimPrefix(v, l.dir+"/"))
		}
	}
	if e.Level == "ERROR" || e.Level == "WARN" {
		fmt.Fprintf(&b, " %s: %s", strings.ToLower(e.Level), e.Get("reason"))
	}
	l.say(b.String() + "\n")
}

// file returns where the message stands after an event.
func file(e suite.Event) string {
	switch name := e.Get("name"); {
	case e.Word == "accepted":
		ino, _, _ := strings.Cut(strings.TrimPrefix(e.Get("id"), "S"), "A")
		return "router/" + ino
	case e.Word == "routed":
		return "queue/" + name
	case name != "":
		return "transport/" + name
	}
	return ""
}
