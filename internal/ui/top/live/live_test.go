package live

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"

	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/assert"
	"zmailer/internal/ui/top"
	"zmailer/internal/wire/mailq"
)

// planned is a source that gives what a test wants.
type planned struct {
	sample  *top.Sample
	waiting []mailq.WaitingInfo
	err     error
}

func (p *planned) Take(context.Context) (*top.Sample, error) { return p.sample, p.err }

func (p *planned) Waiting(context.Context, string, string, int) ([]mailq.WaitingInfo, error) {
	return p.waiting, p.err
}

func newSample(threads int) *top.Sample {
	x := &top.Sample{Time: time.Now(), PostOffice: "/var/spool/postoffice", Router: true, Scheduler: &mailq.StatusInfo{Agents: 3}, Seconds: 1,
		Rates:  top.Rates{Accepted: 12, Delivered: 7, Deferred: 1},
		Stages: []top.Stage{{Name: "router", Messages: 4}, {Name: "queue", Messages: 120, Recipients: 300}, {Name: "deferred", Problem: "permission denied"}},
		Alarms: []alarm.Alarm{{Kind: alarm.TooOld, Subject: "deferred", Text: "a message stands there for 3d"}}}
	for i := range threads {
		state := "active"
		if i == 7 {
			state = "trouble"
		}
		x.Threads = append(x.Threads, top.Thread{ThreadInfo: mailq.ThreadInfo{Channel: "smtp", Host: fmt.Sprintf("host%02d.example", i), State: state, Recipients: i, Trouble: "no"}})
	}
	return x
}

func newModel(t *testing.T, from *planned) *Model {
	t.Helper()
	m := New(t.Context(), from, time.Second)
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
	m.Update(m.Init()())
	return m
}

// press types keys, and takes what their commands say at once.
func press(m *Model, keys ...string) (quit bool) {
	for _, k := range keys {
		msg := tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(k)}
		for _, special := range []tea.KeyType{tea.KeyEnter, tea.KeyEsc, tea.KeyDown, tea.KeyUp, tea.KeyEnd, tea.KeyHome, tea.KeyBackspace, tea.KeyCtrlC, tea.KeySpace} {
			if (tea.KeyMsg{Type: special}).String() == k {
				msg = tea.KeyMsg{Type: special}
			}
		}
		_, cmd := m.Update(msg)
		if cmd == nil || k == "+" || k == "-" {
			continue
		}
		switch said := cmd().(type) {
		case tea.QuitMsg:
			quit = true
		default:
			m.Update(said)
		}
	}
	return quit
}

func wantIn(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		assert.Contains(t, text, p)
	}
}

func TestScreenShowsTheSample(t *testing.T) {
	m := newModel(t, &planned{sample: newSample(10)})
	wantIn(t, m.View(), "/var/spool/postoffice", "router runs, scheduler runs", "queue            120", "deferred: permission denied", "accepted", "12", "█",
		"too-old deferred: a message stands there", "> smtp/host07.example", "trouble", "smtp/host01.example", "s sort: need")
	m = newModel(t, &planned{sample: &top.Sample{Time: time.Now(), Silent: "not running"}})
	wantIn(t, m.View(), "no router runs, scheduler: not running", "no threads")
	m = newModel(t, &planned{err: errors.New("no such postoffice")})
	wantIn(t, m.View(), "taking the first sample")
}

func TestKeys(t *testing.T) {
	from := &planned{sample: newSample(60), waiting: []mailq.WaitingInfo{{ID: "S1A2", Rcpt: "joe@a\x1b[2J", State: "waiting", Attempts: 2,
		Accepted: time.Now().Add(-60*time.Minute - 30*time.Second), Next: time.Now().Add(10*time.Minute + 30*time.Second), Answer: "451 later"}}}
	m := newModel(t, from)
	press(m, "down", "down")
	wantIn(t, m.View(), "> smtp/host58.example")
	press(m, "end")
	wantIn(t, m.View(), "> smtp/host00.example")
	press(m, "home", "enter")
	wantIn(t, m.View(), "smtp/host07.example\n", "S1A2  1h  joe@a\\x1b[2J  waiting  tried 2 times  next in 10m", "451 later", "esc back")
	press(m, "esc", "s")
	wantIn(t, m.View(), "s sort: recipients", "> smtp/host59.example")
	press(m, "/", "0", "3", "enter")
	wantIn(t, m.View(), "only: 03", "> smtp/host03.example")
	if strings.Contains(m.View(), "host04") {
		t.Error("what the filter does not hold is shown")
	}
	press(m, "esc", "?")
	wantIn(t, m.View(), "zmctl why ID")
	press(m, "?", " ")
	wantIn(t, m.View(), "paused")
	press(m, "+", "+", "+", "+")
	assert.Equal(t, m.every, fastest, "every")
	for range 12 {
		press(m, "-")
	}
	assert.Equal(t, m.every, slowest, "every")
	if !press(m, "q") || !press(m, "ctrl+c") {
		t.Error("it does not leave")
	}
}

// One sample is asked for at a time, and a pause asks for none.
func TestTicks(t *testing.T) {
	m := newModel(t, &planned{sample: newSample(1)})
	if _, cmd := m.Update(tickMsg(m.round - 1)); cmd != nil {
		t.Error("a tick that does not count any more asks for a sample")
	}
	if _, cmd := m.Update(tickMsg(m.round)); cmd == nil {
		t.Error("a tick asks for nothing")
	}
	m.paused = true
	before := m.sample
	m.from = &planned{sample: newSample(2)}
	if m.Update(tickMsg(m.round)); m.sample != before {
		t.Error("it is not paused")
	}
}

// Whatever the terminal's size, nothing stands outside of it.
func TestScreenFitsTheTerminal(t *testing.T) {
	m := newModel(t, &planned{sample: newSample(200), waiting: make([]mailq.WaitingInfo, 300)})
	for _, view := range []string{"threads", "inside", "help"} {
		switch view {
		case "inside":
			press(m, "enter")
		case "help":
			press(m, "esc", "?")
		}
		for width := 1; width <= 200; width += 13 {
			for height := 1; height <= 60; height += 7 {
				m.Update(tea.WindowSizeMsg{Width: width, Height: height})
				text := m.View()
				assert.Equal(t, strings.Count(text, "\n")+1, height, "%s, %dx: lines", view, width)
				if got := lipgloss.Width(text); got > width {
					t.Errorf("%s, %dx%d: %d columns", view, width, height, got)
				}
			}
		}
	}
}
