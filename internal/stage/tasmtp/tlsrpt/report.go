package tlsrpt

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxLine bounds a line of a day's file; a longer one was not written by us.
const maxLine = 64 << 10

// Read takes the sessions of a day's file. Lines that are none, as a torn one, are passed
// over.
func Read(r io.Reader) ([]Session, error) {
	counts := map[Session]int{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4<<10), maxLine)
	for lines.Scan() {
		var s Session
		if json.Unmarshal(lines.Bytes(), &s) != nil || s.Domain == "" || s.Count < 1 {
			continue
		}
		n := s.Count
		s.Count = 0
		counts[s] += n
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	list := make([]Session, 0, len(counts))
	for s, n := range counts {
		s.Count = n
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Session) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Lines, b.Lines), cmp.Compare(a.Result, b.Result),
			cmp.Compare(a.MX, b.MX), cmp.Compare(a.To, b.To), cmp.Compare(a.From, b.From), cmp.Compare(a.Reason, b.Reason))
	})
	return list, nil
}

// Domains returns those of sessions, in order.
func Domains(sessions []Session) []string {
	seen := map[string]bool{}
	for _, s := range sessions {
		seen[s.Domain] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// Report is what a domain gets (RFC 8460 §4.4).
type Report struct {
	Organization string    `json:"organization-name"`
	Range        DateRange `json:"date-range"`
	Contact      string    `json:"contact-info"`
	ID           string    `json:"report-id"`
	Policies     []Policy  `json:"policies"`
}

// DateRange is the time that a report is about.
type DateRange struct {
	Start time.Time `json:"start-datetime"`
	End   time.Time `json:"end-datetime"`
}

// Policy is what happened under one policy.
type Policy struct {
	Policy   Which     `json:"policy"`
	Summary  Summary   `json:"summary"`
	Failures []Failing `json:"failure-details,omitempty"`
}

// Which identifies the policy.
type Which struct {
	Type   string   `json:"policy-type"`
	Lines  []string `json:"policy-string,omitempty"`
	Domain string   `json:"policy-domain"`
	Hosts  []string `json:"mx-host,omitempty"`
}

// Summary counts sessions.
type Summary struct {
	Good int `json:"total-successful-session-count"`
	Bad  int `json:"total-failure-session-count"`
}

// Failing is one kind of failure.
type Failing struct {
	Result string `json:"result-type"`
	From   string `json:"sending-mta-ip,omitempty"`
	MX     string `json:"receiving-mx-hostname,omitempty"`
	To     string `json:"receiving-ip,omitempty"`
	Count  int    `json:"failed-session-count"`
	Reason string `json:"failure-reason-code,omitempty"`
}

// Make makes a domain's report of a day; who is our host's name. The sessions are in
// Read's order.
func Make(sessions []Session, domain, who, contact string, day time.Time) *Report {
	day = day.UTC().Truncate(24 * time.Hour)
	r := &Report{Organization: who, Contact: contact,
		Range: DateRange{Start: day, End: day.Add(24*time.Hour - time.Second)},
		ID:    fmt.Sprintf("%s.%s@%s", Day(day), domain, who), Policies: []Policy{}}
	var last *Session
	for i := range sessions {
		s := &sessions[i]
		if s.Domain != domain {
			continue
		}
		if last == nil || last.Type != s.Type || last.Lines != s.Lines || last.Hosts != s.Hosts {
			r.Policies = append(r.Policies, Policy{Policy: Which{Type: s.Type, Domain: s.Domain,
				Lines: fields(s.Lines, "\n"), Hosts: strings.Fields(s.Hosts)}})
		}
		last = s
		p := &r.Policies[len(r.Policies)-1]
		if s.Result == "" {
			p.Summary.Good += s.Count
			continue
		}
		p.Summary.Bad += s.Count
		p.Failures = append(p.Failures, Failing{Result: s.Result, From: s.From, MX: s.MX, To: s.To, Count: s.Count, Reason: s.Reason})
	}
	return r
}

func fields(s, sep string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, sep)
}
