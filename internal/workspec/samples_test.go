package workspec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

// samples are specifications that a running ZMailer wrote.
func samples(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/samples/*/transport-*")
	if err != nil || len(names) == 0 {
		t.Fatalf("samples: %v, %v", names, err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		b := assert.Get(os.ReadFile(name))(t)
		rel, _ := filepath.Rel("testdata/samples", name)
		files[rel] = b
	}
	return files
}

// M16
func TestRecordedSpecificationsReadAsTheGoldenFile(t *testing.T) {
	got := map[string]*Spec{}
	for name, file := range samples(t) {
		s := assert.Get(Parse(file))(t)
		if !s.Complete || s.HasZ || s.Torn {
			t.Errorf("%s: complete %v, z %v, torn %v; want only complete", name, s.Complete, s.HasZ, s.Torn)
		}
		for i := range s.Diagnostics {
			s.Diagnostics[i].Time = s.Diagnostics[i].Time.UTC()
		}
		got[name] = s
	}
	checkGolden(t, "testdata/samples.golden", append(assert.Get(json.MarshalIndent(got, "", " "))(t), '\n'))
}

// Dur1: ZMailer's agents write -1 where a recipient has no N line; the line counts,
func TestDur1MinusOneInADiagnosticIsNone(t *testing.T) {
	before := assert.Get(os.ReadFile("testdata/samples/05-fail/transport-before"))(t)
	file := append(before, "d 181:548:-1::1795220010\tfail1@b.example.com\x01failed\x015.1.1\x01smtp; 550 no\x01\x01smtp[1199]\t\r->> 550 no\n"+
		"d -1:-1:-1::-1\t\x01failed\x01\x01\x01\x01\t\n"...)
	s, err := Parse(file)
	if err != nil || len(s.Diagnostics) != 2 {
		t.Fatalf("got %d diagnostics, %v", len(s.Diagnostics), err)
	}
	if d := s.Diagnostics[0]; d.Recipient != 181 || d.HeaderOffset != 548 || d.NotaryOffset != None || d.Notary.Status != "5.1.1" {
		t.Errorf("got %+v", d)
	}
	if d := s.Diagnostics[1]; d.Recipient != None || d.HeaderOffset != None || d.Time.Unix() != 0 {
		t.Errorf("got %+v", d)
	}
}
