package mailq

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/run/human"
)

// ThreadLine is a thread in the form of SHOW QUEUE.
type ThreadLine struct {
	Channel, Host string
	Messages      int           // N
	Recipients    int           // R
	Attempts      int           // A
	PID           int           // P: of an agent that works on it; 0: none does
	Wait          time.Duration // W: until it is tried next; 0: it does not wait
	Age           time.Duration // QA: of the oldest message
	Pending       string        // "channelwait" or "threadwait": it waits for a place
}

// numbers returns what follows channel and host, in ZMailer's words.
func (t *ThreadLine) numbers(sep string) string {
	list := []string{}
	if t.PID > 0 {
		list = append(list, "P="+strconv.Itoa(t.PID))
	}
	if t.Wait > 0 {
		list = append(list, "W="+strconv.FormatInt(int64((t.Wait+time.Second-1)/time.Second), 10)+"s")
	}
	list = append(list, "QA="+Span(t.Age))
	if t.Pending != "" {
		list = append(list, t.Pending)
	}
	return strings.Join(list, sep)
}

// AppendThreads2 appends a line of SHOW QUEUE THREADS2, for programs.
func AppendThreads2(b []byte, t *ThreadLine) []byte {
	return AppendLine(b, fmt.Sprintf("%s\t%s\tN=%d\tR=%d\tA=%d\t%s", human.Blank(t.Channel), human.Blank(t.Host), t.Messages, t.Recipients, t.Attempts, t.numbers("\t")))
}

// AppendThreads appends a line of SHOW QUEUE THREADS, for operators.
func AppendThreads(b []byte, t *ThreadLine) []byte {
	name := "    " + human.Blank(t.Channel) + "/" + human.Blank(t.Host) + "/0"
	// To the column of the classic listing.
	width := len(name) + 7
	for _, stop := range []int{15, 23, 31, 39} {
		if width < stop {
			name += "\t"
		}
	}
	if width >= 39 {
		name += " "
	}
	return AppendLine(b, fmt.Sprintf("%sR=%-3d A=%-2d %s", name, t.Recipients, t.Attempts, t.numbers(" ")))
}

// AppendThreadHead appends what an answer to SHOW THREAD begins with if there is such a
// thread: its line of SHOW QUEUE THREADS behind "#", as ZMailer's scheduler has it
// (thread_detail_report in its threads.c). Its mailq shows that line in place of an entry.
func AppendThreadHead(b []byte, t *ThreadLine) []byte {
	return AppendLine(b, fmt.Sprintf("#%s/%s/0  N=%-3d R=%-3d A=%-2d %s", human.Blank(t.Channel), human.Blank(t.Host), t.Messages, t.Recipients, t.Attempts, t.numbers(" ")))
}

// RingLine is the line below the threads of a ring.
type RingLine struct {
	Pattern                          string // channel/host of its clause
	Threads, Recipients, Procs, Idle int
	Limit, Overfeed                  int
}

// AppendRing appends it.
func AppendRing(b []byte, r *RingLine) []byte {
	return AppendLine(b, fmt.Sprintf("\tThreads: %4d Msgs: %5d Procs: %3d Idle: %3d Plim: %3d Flim: %3d",
		r.Threads, r.Recipients, r.Procs, r.Idle, r.Limit, r.Overfeed))
}

// Sums are the counts of the whole scheduler.
type Sums struct {
	Agents, Idle, Messages, Threads, Recipients int
	Uptime                                      time.Duration
	MessagesIn, MessagesOut                     uint64
	RecipientsIn, RecipientsOut                 uint64
}

// AppendSums appends the two lines at the end of SHOW QUEUE SHORT and THREADS, which are
// all of SHOW SNMP: there the uptime is in seconds.
func AppendSums(b []byte, s *Sums, snmp bool) []byte {
	up := Span(s.Uptime)
	if snmp {
		up = strconv.FormatInt(int64(s.Uptime/time.Second), 10) + " sec"
	}
	b = AppendLine(b, fmt.Sprintf("Kids: %d  Idle: %2d  Msgs: %3d  Thrds: %3d  Rcpnts: %4d  Uptime: %s",
		s.Agents, s.Idle, s.Messages, s.Threads, s.Recipients, up))
	return AppendLine(b, fmt.Sprintf("Msgs in %d out %d stored %d Rcpnts in %d out %d stored %d",
		s.MessagesIn, s.MessagesOut, s.Messages, s.RecipientsIn, s.RecipientsOut, s.Recipients))
}

// Entry is a line of SHOW THREAD: one recipient.
type Entry struct {
	File    string // below transport/
	Index   int    // of the recipient in its message's group for the thread
	Sender  string // where reports go, without brackets; "" is the null sender
	Offset  int64  // of the r line
	Expires time.Time
	Next    time.Time // of the next attempt, zero: now
	Last    time.Time // when it was last given to an agent, zero: never
	Tries   int
	State   string
	Answer  string // the last one; LF parts its lines
}

// AppendEntry appends the line.
func AppendEntry(b []byte, e *Entry) []byte {
	flat := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "\t", " "), "\r", " ") }
	return AppendLine(b, fmt.Sprintf("%s\t%d\t<%s>\t%d\t%d\t%d\t%d\t%d\t%s\t%s", human.Blank(e.File), e.Index, human.Blank(e.Sender), e.Offset,
		unix(e.Expires), unix(e.Next), unix(e.Last), e.Tries, human.Blank(e.State), flat(e.Answer)))
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// Span returns a time as ZMailer writes it: "5m8s", the two greatest of its parts.
func Span(d time.Duration) string {
	s := int64(d / time.Second)
	sign := ""
	if s < 0 {
		sign, s = "-", -s
	}
	if s == 0 {
		return "0s"
	}
	parts := []struct {
		n    int64
		unit string
	}{{s / 86400, "d"}, {s / 3600 % 24, "h"}, {s / 60 % 60, "m"}, {s % 60, "s"}}
	text, fields := "", 0
	for _, p := range parts {
		if p.n > 0 && fields < 2 {
			text += strconv.FormatInt(p.n, 10) + p.unit
			fields++
		}
	}
	return sign + text
}

// AppendCounter appends a line of SHOW COUNTERS.
func AppendCounter(b []byte, name string, n uint64) []byte {
	return AppendLine(b, fmt.Sprintf("%-30s %11d", human.Blank(name), n))
}
