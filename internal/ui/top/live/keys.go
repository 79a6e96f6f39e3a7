package live

import (
	"slices"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"zmailer/internal/ui/top"
)

func (m *Model) key(k tea.KeyMsg) (tea.Model, tea.Cmd) {
	if k.String() == "ctrl+c" {
		return m, tea.Quit
	}
	if m.filtering {
		m.typed(k)
		return m, nil
	}
	switch k.String() {
	case "q":
		return m, tea.Quit
	case "?", "h":
		m.help = !m.help
	case "esc", "left", "backspace":
		m.help, m.inside, m.filter = false, nil, map[bool]string{true: m.filter}[m.inside != nil]
	case " ", "p":
		m.paused = !m.paused
	case "+":
		return m, m.pace(m.every / 2)
	case "-":
		return m, m.pace(m.every * 2)
	case "s":
		orders := top.Orders()
		m.order = orders[(slices.Index(orders, m.order)+1)%len(orders)]
	case "/":
		m.filtering, m.inside = true, nil
	case "enter", "right":
		return m, m.enter()
	default:
		m.move(k.String())
	}
	return m, nil
}

// pace changes the time between two samples.
func (m *Model) pace(every time.Duration) tea.Cmd {
	m.every = min(max(every, fastest), slowest)
	return m.tick()
}

func (m *Model) typed(k tea.KeyMsg) {
	switch k.String() {
	case "enter":
		m.filtering = false
	case "esc":
		m.filtering, m.filter = false, ""
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	default:
		if k.Type == tea.KeyRunes {
			m.filter += string(k.Runes)
		}
	}
	m.cursor = 0
}

// move moves the cursor, or the text of a thread.
func (m *Model) move(key string) {
	at, most := &m.cursor, len(m.threads())-1
	if m.inside != nil {
		at, most = &m.inside.top, len(m.inside.list)-1
	}
	page := max(m.height/2, 1)
	switch key {
	case "up", "k":
		*at--
	case "down", "j":
		*at++
	case "pgup":
		*at -= page
	case "pgdown":
		*at += page
	case "home", "g":
		*at = 0
	case "end", "G":
		*at = most
	}
	*at = max(min(*at, most), 0)
}

// enter looks into the thread at the cursor.
func (m *Model) enter() tea.Cmd {
	list := m.threads()
	if m.inside != nil || m.cursor >= len(list) {
		return nil
	}
	t := &list[m.cursor]
	m.inside = &inside{channel: t.Channel, host: t.Host}
	return m.look()
}

// threads returns those that are shown, in their order.
func (m *Model) threads() []top.Thread {
	if m.sample == nil {
		return nil
	}
	var list []top.Thread
	for _, t := range m.sample.Threads {
		if m.filter == "" || strings.Contains(strings.ToLower(t.Name()+" "+t.State), strings.ToLower(m.filter)) {
			list = append(list, t)
		}
	}
	m.order.Sort(list)
	return list
}
