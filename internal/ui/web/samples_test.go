package web

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
)

// noon is when these tests are.
var noon = time.Date(2026, 11, 22, 12, 0, 30, 0, time.UTC)

func at(d time.Duration) int64 { return noon.Add(d).UnixMilli() }

func accepted(d time.Duration) postoffice.SpoolID {
	return postoffice.SpoolID{Ino: 7, MTime: noon.Add(d).UnixNano()}
}

// day is some lines of the ledger.
func day() []ledger.Line {
	return []ledger.Line{
		{Time: at(-3 * time.Minute), Verb: ledger.In, N: 2},
		{Time: at(-3*time.Minute + 5), Verb: ledger.Routed, N: 2, Entered: true},
		{Time: at(-3 * time.Minute), Verb: ledger.Routed, N: 1}, // submitted: there is no record of its arrival
		{Time: at(-2 * time.Minute), Verb: ledger.Done, ID: accepted(-2*time.Minute - 40*time.Millisecond), End: ledger.Outcomes{Delivered: 2}},
		{Time: at(-2 * time.Minute), Verb: ledger.Done, ID: accepted(-5 * time.Hour), End: ledger.Outcomes{Delivered: 1, Failed: 1, Silent: 1, Expired: 1}},
		{Time: at(-1 * time.Minute), Verb: ledger.Done, ID: accepted(-9 * time.Hour), End: ledger.Outcomes{Removed: 3}},
	}
}

func counted(t *testing.T, s *Samples, lines []ledger.Line) {
	t.Helper()
	for _, l := range lines {
		assert.Must(t, s.Count(l))
	}
}

func openDisk(t *testing.T, dir string) durable.FS {
	t.Helper()
	f, err := durable.NewOS(dir)
	assert.Must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestMinutesCountWhatTheLedgerSays(t *testing.T) {
	s, err := NewSamples(nil)
	assert.Must(t, err)
	counted(t, s, day())
	s.Waiting(noon, 12)
	list := s.since(noon, 5, 1)
	var got [][4]int64
	for _, m := range list {
		got = append(got, [4]int64{m.accepted, m.delivered, m.failed, m.waiting})
	}
	want := [][4]int64{{0, 0, 0, -1}, {2, 0, 0, -1}, {0, 3, 3, -1}, {0, 0, 0, -1}, {0, 0, 0, 12}}
	for i := range want {
		assert.Equal(t, got[i], want[i], "minute %d", i)
	}
	if h, q := list[2].quantile(0.5), list[2].quantile(0.95); h < 20*time.Millisecond || h > 50*time.Millisecond || q < 2*time.Hour || q > 12*time.Hour {
		t.Errorf("got half within %v, 19 of 20 within %v", h, q)
	}
	if one := s.since(noon, 1, 20)[0]; one.delivered != 0 && one.accepted+one.delivered < 1 {
		t.Errorf("got %+v", one)
	}
}

// What an earlier process has counted is not counted again, though the journals still
// have it.
func TestNothingIsCountedTwiceAfterARestart(t *testing.T) {
	dir := t.TempDir()
	disk := openDisk(t, dir)
	s, err := NewSamples(disk)
	assert.Must(t, err)
	counted(t, s, day()[:4])
	assert.Must(t, s.Save())
	if info, err := os.Stat(filepath.Join(dir, SampleFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info, err)
	}
	s, err = NewSamples(disk)
	assert.Must(t, err)
	late := ledger.Line{Time: at(-time.Minute), Verb: ledger.In}
	counted(t, s, append(day()[:4], late))
	in, out := int64(0), int64(0)
	for _, m := range s.since(noon, 60, 1) {
		in, out = in+m.accepted, out+m.delivered
	}
	if in != 3 || out != 2 {
		t.Errorf("got %d accepted, %d delivered, want 3 and 2", in, out)
	}
}

func TestBrokenSamplesAreBegunAnew(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "another file": "from <x@y>\n", "torn": sampleWord + " 1795243780402\n29920729 1 2\n", "no number": sampleWord + " 17\n" + strings.Repeat("x ", 5+classes) + "\n",
	} {
		dir := t.TempDir()
		assert.Must(t, os.WriteFile(filepath.Join(dir, SampleFile), []byte(text), 0o600))
		s, err := NewSamples(openDisk(t, dir))
		if err == nil || s == nil || len(s.list) != 0 {
			t.Errorf("%s: got %v, %v", name, s, err)
			continue
		}
		counted(t, s, day())
		if err := s.Save(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A minute without mail is a zero, one that was not counted a gap: what arrived while the
// page was not served is known as far back as the journals reach.
func TestGapIsShownWhereNobodyCounted(t *testing.T) {
	disk := openDisk(t, t.TempDir())
	begin := func() *Samples {
		s, err := NewSamples(disk)
		assert.Must(t, err)
		return s
	}
	known := func(s *Samples) string {
		text := ""
		for _, m := range s.since(noon, 10, 1) {
			switch r := m.rates(noon); {
			case r[0] < 0:
				text += "-"
			case r[0] > 0:
				text += "x"
			default:
				text += "0"
			}
		}
		return text
	}
	line := func(ago time.Duration) ledger.Line { return ledger.Line{Time: at(-ago), Verb: ledger.In} }
	first := begin()
	counted(t, first, []ledger.Line{line(9 * time.Minute)})
	first.Seen(noon.Add(-7 * time.Minute))
	assert.Must(t, first.Save())
	assert.Equal(t, known(first), "x00-------", "the first")
	folded := begin()
	counted(t, folded, []ledger.Line{line(3 * time.Minute)})
	folded.Seen(noon)
	assert.Equal(t, known(folded), "x00---x000", "after older journals are gone")
	whole := begin()
	counted(t, whole, []ledger.Line{line(9 * time.Minute), line(3 * time.Minute)})
	whole.Seen(noon)
	assert.Equal(t, known(whole), "x00000x000", "with all journals")
	for _, p := range folded.plots(noon, spanOf("1h"))[:1] {
		if strings.Count(p.Lines[0].Path, "M") != 2 || !strings.Contains(p.Spots[len(p.Spots)-5].Text, "not counted") {
			t.Errorf("the curve has no gap: %s, %s", p.Lines[0].Path, p.Spots[len(p.Spots)-5].Text)
		}
	}
}

func TestOnlyADayIsKept(t *testing.T) {
	s, err := NewSamples(nil)
	assert.Must(t, err)
	for i := range 3 * kept {
		s.Waiting(noon.Add(time.Duration(i)*time.Minute), i)
	}
	if len(s.list) > kept+61 {
		t.Errorf("got %d minutes", len(s.list))
	}
}

func TestPlotsStayInTheirArea(t *testing.T) {
	for name, lines := range map[string][]ledger.Line{"nothing": nil, "a day": day()} {
		s, err := NewSamples(nil)
		assert.Must(t, err)
		counted(t, s, lines)
		for _, of := range spans() {
			for _, p := range s.plots(noon, of) {
				for _, r := range p.Rows {
					if r.At < p.Top-1 || r.At > p.Bottom+1 {
						t.Errorf("%s, %s, %s: a row at %d", name, of.Name, p.Name, r.At)
					}
				}
				for _, l := range p.Lines {
					if strings.Contains(l.Path, "NaN") || strings.Contains(l.Path, "Inf") || strings.Contains(l.Path, "-") {
						t.Errorf("%s, %s, %s: path %q", name, of.Name, p.Name, l.Path)
					}
				}
				if p.Caption == "" {
					t.Errorf("%s: it says nothing to who cannot see it", p.Name)
				}
			}
		}
	}
}

func FuzzSampleLine(f *testing.F) {
	f.Add("29920729 1 2 3 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0")
	f.Fuzz(func(t *testing.T, line string) {
		if m, err := parseSample(line); err == nil && m.quantile(0.95) < 0 {
			t.Errorf("got %+v", m)
		}
	})
}
