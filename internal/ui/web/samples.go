package web

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice/ledger"
)

const (
	// SampleFile holds the counts, in the postoffice; TokenFile is zmctl web's secret.
	SampleFile = ".web.samples"
	TokenFile  = ".web.token"

	// kept is how many minutes are kept.
	kept = 24 * 60
	// sampleWord begins the file.
	sampleWord = "web-samples 1"
)

// latencyBounds are the upper ends of the classes of times, the last class has none.
var latencyBounds = [...]time.Duration{
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 12 * time.Hour, 5 * 24 * time.Hour,
}

const classes = len(latencyBounds) + 1

// sample is what happened in a minute.
type sample struct {
	minute    int64 // since 1970
	accepted  int64 // messages
	delivered int64 // recipients
	failed    int64 // recipients, expired ones with them
	waiting   int64 // messages in the queue at its end; -1: unknown
	took      [classes]int64

	// Of several minutes: how many of them somebody counted, and the last of those.
	known int64
	last  int64
}

func (s *sample) add(o *sample) {
	s.accepted += o.accepted
	s.delivered += o.delivered
	s.failed += o.failed
	s.waiting = max(s.waiting, o.waiting)
	s.known++
	s.last = max(s.last, o.minute)
	for i := range s.took {
		s.took[i] += o.took[i]
	}
}

// Samples are the counts of the minutes of a day. Their methods may be used by many
// goroutines.
type Samples struct {
	disk durable.FS // nil: they are kept in memory alone
	mu   sync.Mutex
	list map[int64]*sample
	// until is the time of the last line of the ledger that was counted.
	until int64
	next  int64
	first int64 // the time from which on this process has found all lines; 0: none yet
	seen  int64 // the last minute of Seen
	dirty bool
}

// NewSamples reads what an earlier process has counted. disk may be nil. A file that
// cannot be used is reported, and begun anew.
func NewSamples(disk durable.FS) (*Samples, error) {
	s := &Samples{disk: disk, list: map[int64]*sample{}}
	if disk == nil {
		return s, nil
	}
	f, err := disk.Open(SampleFile, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read %s: %w", SampleFile, err)
	}
	defer f.Close()
	if err := s.read(io.LimitReader(f, 4<<20)); err != nil {
		s.list, s.until, s.next = map[int64]*sample{}, 0, 0
		return s, fmt.Errorf("read %s: %w", SampleFile, err)
	}
	return s, nil
}

func (s *Samples) read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		return errors.Join(lines.Err(), errors.New("it is empty"))
	}
	text, ok := strings.CutPrefix(lines.Text(), sampleWord+" ")
	until, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil {
		return errors.New("its first line is not ours")
	}
	s.until, s.next = until, until
	for lines.Scan() {
		m, err := parseSample(lines.Text())
		if err != nil {
			return err
		}
		s.list[m.minute] = m
	}
	return lines.Err()
}

func parseSample(line string) (*sample, error) {
	words := strings.Fields(line)
	if len(words) != 5+classes {
		return nil, fmt.Errorf("a line has %d numbers, not %d", len(words), 5+classes)
	}
	var m sample
	for i, to := range m.numbers() {
		n, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil || n < -1 || n > math.MaxInt32*1000 {
			return nil, fmt.Errorf("%q is no count", clean(words[i]))
		}
		*to = n
	}
	return &m, nil
}

func (s *sample) numbers() []*int64 {
	list := []*int64{&s.minute, &s.accepted, &s.delivered, &s.failed, &s.waiting}
	for i := range s.took {
		list = append(list, &s.took[i])
	}
	return list
}

func (s *Samples) at(ms int64) *sample {
	minute := ms / 60000
	one := s.list[minute]
	if one == nil {
		one = &sample{minute: minute, waiting: -1}
		s.list[minute] = one
		if len(s.list) > kept+60 {
			for m := range s.list {
				if m < minute-kept {
					delete(s.list, m)
				}
			}
		}
	}
	s.dirty = true
	return one
}

// Count takes a line of the ledger. Lines that an earlier process has counted are passed
// over; Round begins a new reading.
func (s *Samples) Count(l ledger.Line) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Time <= s.until {
		s.first = s.until // what came since then is still there as well
		return nil
	}
	s.next = max(s.next, l.Time)
	if s.first == 0 {
		s.first = l.Time
	}
	switch l.Verb {
	case ledger.In:
		s.at(l.Time).accepted++
	case ledger.Routed:
		if !l.Entered {
			s.at(l.Time).accepted++ // its arrival was not recorded
		}
	case ledger.Done:
		m := s.at(l.Time)
		m.delivered += l.End.Delivered
		m.failed += l.End.Failed + l.End.Silent + l.End.Expired
		if l.End.Delivered > 0 {
			m.took[class(time.Duration(l.Time)*time.Millisecond-time.Duration(l.ID.MTime))]++
		}
	}
	return nil
}

// Seen notes that the ledger has been read up to now: in a minute without records nothing
// happened. Minutes that were not noted are unknown.
func (s *Samples) Seen(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := now.UnixMilli() / 60000
	for m := s.seenFrom(until); m <= until; m++ {
		if s.list[m] == nil {
			s.at(m * 60000)
		}
	}
	s.seen = until
}

// seenFrom returns the first minute that the last reading of the ledger covers: that of the
// last one, or of the first line that was found at the start.
func (s *Samples) seenFrom(until int64) int64 {
	from := s.seen
	if from == 0 && s.first > 0 {
		from = s.first / 60000
	}
	if from == 0 || from < until-kept {
		return until
	}
	return from
}

// class returns where a time is counted.
func class(d time.Duration) int {
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	return i
}

// Waiting notes how many messages wait now.
func (s *Samples) Waiting(now time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at(now.UnixMilli()).waiting = int64(n)
}

// since returns n samples of so many minutes each, the last one the running one.
func (s *Samples) since(now time.Time, n, minutes int) []sample {
	out := make([]sample, n)
	last := now.UnixMilli() / 60000 / int64(minutes)
	for i := range out {
		out[i] = sample{minute: (last - int64(n-1-i)) * int64(minutes), waiting: -1}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for minute, one := range s.list {
		if i := int64(n-1) - (last - minute/int64(minutes)); i >= 0 && i < int64(n) {
			out[i].add(one)
		}
	}
	return out
}

// Save writes the counts since the last time.
func (s *Samples) Save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disk == nil || !s.dirty {
		return nil
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %d\n", sampleWord, s.next)
	for _, m := range s.list {
		for i, n := range m.numbers() {
			b.WriteString(" "[:min(i, 1)])
			b.WriteString(strconv.FormatInt(*n, 10))
		}
		b.WriteByte('\n')
	}
	const next = SampleFile + ".new"
	f, err := s.disk.Open(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", SampleFile, err)
	}
	_, err = f.Write(b.Bytes())
	if err = errors.Join(err, f.Close()); err == nil {
		// Crash: the old counts, the new ones, or after a power loss none: then they begin anew.
		err = s.disk.Rename(next, SampleFile)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", SampleFile, err)
	}
	s.dirty = false
	return nil
}

// quantile returns the time in which this part of the messages was done; zero: there were
// none.
func (s *sample) quantile(part float64) time.Duration {
	all := int64(0)
	for _, n := range s.took {
		all += n
	}
	if all == 0 {
		return 0
	}
	left := part * float64(all)
	for i, n := range s.took {
		if n == 0 || float64(n) < left {
			left -= float64(n)
			continue
		}
		if i >= len(latencyBounds) {
			break
		}
		low, high := time.Millisecond, latencyBounds[i]
		if i > 0 {
			low = latencyBounds[i-1]
		}
		return time.Duration(float64(low) * math.Pow(float64(high)/float64(low), left/float64(n)))
	}
	return latencyBounds[len(latencyBounds)-1]
}
