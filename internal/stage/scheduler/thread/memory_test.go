package thread

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// A million recipients fit: what the core keeps of one message with one recipient,
// its address, its expiry and its reminder included, whether it waits for its time or
// for its turn.
func TestMemoryOfARecipient(t *testing.T) {
	const messages, hosts, most = 200_000, 2_000, 270
	for _, wait := range []bool{false, true} {
		t.Run(fmt.Sprintf("waiting %v", wait), func(t *testing.T) {
			before := liveHeap()
			c, list := fill(messages, hosts, wait)
			got := int(liveHeap()-before) / messages
			runtime.KeepAlive(c)
			runtime.KeepAlive(list)
			t.Logf("%d bytes; a message has %d, a vertex %d", got, unsafe.Sizeof(Message{}), unsafe.Sizeof(Vertex{}))
			if got > most {
				t.Errorf("%d bytes a recipient, want at most %d", got, most)
			}
		})
	}
}

// A hundred thousand hosts fit.
func TestMemoryOfAThread(t *testing.T) {
	const hosts, most = 100_000, 1000
	before := liveHeap()
	c, list := fill(hosts, hosts, true)
	got := int(liveHeap()-before) / hosts
	runtime.KeepAlive(c)
	runtime.KeepAlive(list)
	t.Logf("%d bytes for a host with one message; a thread has %d", got, unsafe.Sizeof(Thread{}))
	if got > most {
		t.Errorf("%d bytes for a host with one message, want at most %d", got, most)
	}
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fill makes a core with messages of as many senders.
func fill(messages, hosts int, wait bool) (*Core, []*Message) {
	now := time.Unix(1_800_000_000, 0)
	c := New(rand.New(rand.NewPCG(1, 2)))
	r := c.Ring("r", Policy{Interval: time.Minute, Retries: []int{1, 2, 3}, Expiry: 72 * time.Hour, AgeOrder: true, MaxThread: 20})
	var h History
	if wait {
		h = History{Attempts: 2, Next: now.Add(time.Hour)}
	}
	list := make([]*Message, 0, messages)
	for i := range messages {
		m := &Message{Number: uint64(i + 1), Stamp: now.Add(-time.Duration(i%3600) * time.Second).UnixNano(), Open: 1, Total: 1, Sender: SenderKey(uint32(i)*2654435761, Own)}
		m.SetName(fmt.Sprintf("%d-%d", i+1, 4711))
		address := strings.Clone(fmt.Sprintf("user%d@host%d.example", i, i%hosts))
		c.Add(m, r, "smtp", fmt.Sprintf("host%d.example", i%hosts), []Recipient{NewRecipient(123, address)}, h, now)
		c.Remind(m, now.Add(4*time.Hour))
		list = append(list, m)
	}
	return c, list
}

// Whatever a file is called, its message is called so.
func TestNamesOfMessages(t *testing.T) {
	m := &Message{Number: 54}
	for _, name := range []string{
		"54", "54-1", "54-999999", "C/54-17", "C/C/54-17", "C/54", "D/54-17", "54-1048576", "54-0", "54-017", "54-",
		"A/B/C/54-1", "55-1", "A/C/54-2", "54-1-2", "C/C/C/54-3", "/54",
	} {
		m.SetName(name)
		if m.Name() != name || !m.Named(name) || m.Named(name+"1") {
			t.Errorf("set %q, got %q", name, m.Name())
		}
	}
}

// The name of a message as the postoffice makes them takes no memory of its own.
func TestUsualNamesTakeNoMemory(t *testing.T) {
	m := &Message{Number: 54}
	for _, name := range []string{"54", "54-1", "54-999999", "C/54-17", "C/C/54-17"} {
		if m.SetName(name); m.odd != nil {
			t.Errorf("%s is kept", name)
		}
	}
	for range 2 {
		if m.SetName("D/54-17"); m.Name() != "D/54-17" {
			t.Errorf("got %s", m.Name())
		}
		if m.SetName("C/54-17"); m.Name() != "C/54-17" {
			t.Errorf("got %s", m.Name())
		}
	}
}

// BenchmarkDepth is one message that comes, is delivered and goes while so many others
// are queued, to 10,000 hosts or to one.
func BenchmarkDepth(b *testing.B) {
	for _, hosts := range []int{10_000, 1} {
		for _, n := range []int{1_000, 10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("hosts=%d/queued=%d", hosts, n), func(b *testing.B) {
				c, list := fill(n, min(hosts, n), false)
				r := c.rings["r"]
				now := time.Unix(1_800_000_000, 0)
				number := uint64(n)
				b.ReportAllocs()
				for b.Loop() {
					number++
					m := &Message{Number: number, Stamp: now.UnixNano(), Open: 1, Total: 1, Sender: SenderKey(uint32(scatter(number)), Own)}
					c.Add(m, r, "smtp", fmt.Sprintf("host%d.example", number%uint64(hosts)), []Recipient{NewRecipient(1, "x")}, History{}, now)
					v := c.Take(r, now)
					v.Recipients()[0].Result = Delivered
					c.End(v, HostWait{}, now)
				}
				_ = list
			})
		}
	}
}
