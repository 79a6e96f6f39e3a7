// Package live shows samples of a mail system on a terminal, until the user has seen
// enough. It changes nothing of the mail; what it draws on is the terminal's second
// screen, so that what was there before is back at the end.
//
// What survives a crash: nothing is kept. A kill can leave the terminal as it was drawn;
// reset(1) helps then.
//
// Diagnostics: Run errs when the terminal cannot be used. A sample that cannot be taken is
// told on the screen, and the next one is tried.
package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"zmailer/internal/ui/top"
	"zmailer/internal/wire/mailq"
)

// Source is where samples come from.
type Source interface {
	Take(ctx context.Context) (*top.Sample, error)
	Waiting(ctx context.Context, channel, host string, most int) ([]mailq.WaitingInfo, error)
}

// Run shows samples until the user quits, or ctx is done.
func Run(ctx context.Context, from Source, every time.Duration) error {
	_, err := tea.NewProgram(New(ctx, from, every), tea.WithAltScreen(), tea.WithContext(ctx), tea.WithoutSignalHandler()).Run()
	if err != nil && (ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted)) {
		return nil // it was asked to end
	}
	if err != nil {
		return fmt.Errorf("show on the terminal: %w", err)
	}
	return nil
}

// Bounds of the time between two samples.
const (
	fastest = 200 * time.Millisecond
	slowest = time.Minute
)

// mostWaiting is how many recipients of a thread are shown.
const mostWaiting = 200

// Model is the content of the screen, a model of bubbletea.
type Model struct {
	ctx   context.Context
	from  Source
	every time.Duration

	width, height int
	sample        *top.Sample
	err           error
	rates         map[string]*top.History
	paused        bool
	round         int // of the tick that counts

	order     top.Order
	filter    string
	filtering bool
	cursor    int
	help      bool
	inside    *inside
}

// inside is a thread that is looked into.
type inside struct {
	channel, host string
	list          []mailq.WaitingInfo
	err           error
	loaded        bool
	top           int // first line that is shown
}

type (
	sampleMsg struct {
		sample *top.Sample
		err    error
	}
	tickMsg    int
	waitingMsg struct {
		of   *inside
		list []mailq.WaitingInfo
		err  error
	}
)

// New makes a Model.
func New(ctx context.Context, from Source, every time.Duration) *Model {
	return &Model{ctx: ctx, from: from, every: min(max(every, fastest), slowest), rates: map[string]*top.History{}, order: top.ByNeed, width: 80, height: 24}
}

// Init takes the first sample.
func (m *Model) Init() tea.Cmd { return m.take }

func (m *Model) take() tea.Msg {
	x, err := m.from.Take(m.ctx)
	return sampleMsg{x, err}
}

// tick waits for the time of the next sample.
func (m *Model) tick() tea.Cmd {
	m.round++
	round := m.round
	return tea.Tick(m.every, func(time.Time) tea.Msg { return tickMsg(round) })
}

// Update handles an event. One sample is under way at a time: the next one is
// asked for when it has come.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case sampleMsg:
		m.took(msg)
		return m, m.tick()
	case tickMsg:
		if int(msg) != m.round {
			return m, nil // of an interval that was changed
		}
		if m.paused {
			return m, m.tick()
		}
		return m, tea.Batch(m.take, m.look())
	case waitingMsg:
		if msg.of == m.inside {
			m.inside.list, m.inside.err, m.inside.loaded = msg.list, msg.err, true
		}
	case tea.KeyMsg:
		return m.key(msg)
	}
	return m, nil
}

func (m *Model) took(msg sampleMsg) {
	m.err = msg.err
	if msg.sample == nil {
		return
	}
	m.sample = msg.sample
	if msg.sample.Seconds <= 0 {
		return
	}
	for _, r := range msg.sample.Rates.Named() {
		h := m.rates[r.Name]
		if h == nil {
			h = &top.History{}
			m.rates[r.Name] = h
		}
		h.Add(r.Value)
	}
}

// look asks for the recipients of the thread that is looked into.
func (m *Model) look() tea.Cmd {
	in := m.inside
	if in == nil {
		return nil
	}
	return func() tea.Msg {
		list, err := m.from.Waiting(m.ctx, in.channel, in.host, mostWaiting)
		return waitingMsg{in, list, err}
	}
}
