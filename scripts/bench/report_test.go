package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func sample() (options, *report) {
	o := options{messages: 5000, connections: 20, scale: 1, share: 1}
	r := newReport(o, []contender{{name: "zmailer"}, {name: "postfix", version: "3.7"}})
	for _, s := range scenarios() {
		for n, v := range []float64{3, 1, 2} {
			mine, theirs := values{}, values{}
			for _, f := range s.figures {
				mine[f.Key], theirs[f.Key] = []float64{v}, []float64{10 * v}
			}
			if n == 0 {
				delete(theirs, s.figures[0].Key) // not all is measured in all runs
			}
			r.add(s, o, "zmailer", mine)
			r.add(s, o, "postfix", theirs)
		}
	}
	return o, r
}

func TestTablesHaveMediansRangesAndRatios(t *testing.T) {
	_, r := sample()
	got := r.tables("performance")
	for _, want := range []string{
		"| delivered, /s | 2.00 (1.00–3.00) | 20.0 (10.0–20.0) | 0.10 |",
		"| 10000 wait, /s |",
		"5000 messages of 4 kB on 20 connections",
		"![Rate](performance/rate.svg)",
	} {
		assert.Contains(t, got, want)
	}
	if strings.Contains(got, "%!") {
		t.Errorf("a number is missing:\n%s", got)
	}
}

func TestPlotsAreWellFormed(t *testing.T) {
	_, r := sample()
	for i := range r.Scenarios {
		d := xml.NewDecoder(strings.NewReader(plot(&r.Scenarios[i])))
		rects := 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", r.Scenarios[i].Name, err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
				rects++
			}
		}
		if rects == 0 {
			t.Errorf("%s has no bars", r.Scenarios[i].Name)
		}
	}
}

// A run of some scenarios leaves the others' results, and the page around them.
func TestResultsAreReplacedByScenario(t *testing.T) {
	o, r := sample()
	top := t.TempDir()
	o.out = filepath.Join(top, "performance")
	page := o.out + ".md"
	assert.Must(t, os.WriteFile(page, []byte("above\n"+begins+"\nold\n"+ends+"\nbelow\n"), 0o644))
	assert.Must(t, r.write(o))
	o.only = "rate"
	again := newReport(o, []contender{{name: "zmailer"}})
	again.add(scenarios()[0], o, "zmailer", values{"delivered": {77}})
	assert.Must(t, again.write(o))
	b, err := os.ReadFile(page)
	assert.Must(t, err)
	text := string(b)
	if !strings.HasPrefix(text, "above\n"+begins) || !strings.HasSuffix(text, ends+"\nbelow\n") || strings.Contains(text, "old") {
		t.Errorf("the page is\n%s", text)
	}
	for _, want := range []string{"| 77.0 |", "### Latency", "### Growth"} {
		assert.Contains(t, text, want)
	}
	var kept report
	b, err = os.ReadFile(filepath.Join(o.out, "results.json"))
	assert.Must(t, err)
	if err := json.Unmarshal(b, &kept); err != nil || len(kept.Scenarios) != len(scenarios()) || kept.Scenarios[0].Name != "rate" {
		t.Errorf("got %d scenarios, %v", len(kept.Scenarios), err)
	}
	if _, err := os.Stat(filepath.Join(o.out, "growth.svg")); err != nil {
		t.Error(err)
	}
}

// Single results have no range, and none is no zero.
func TestFiguresThatWereNotMeasuredStayEmpty(t *testing.T) {
	m := &measured{Systems: []string{"zmailer", "exim"}, Runs: map[string][]values{"zmailer": {{"a": {5}}}}}
	var b strings.Builder
	m.row(&b, figure{Key: "a", Title: "a"})
	assert.Equal(t, b.String(), "| a | 5.00 |  |  |\n")
}
