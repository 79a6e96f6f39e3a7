package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// M21: the depth of the hash directories is changed while mail waits: both files of
// each message move to their place, attempts go on, nothing is lost or doubled.
func TestHashLevelsChangeWithMailWaiting(t *testing.T) {
	t.Parallel()
	const count = 30
	var accept atomic.Bool
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string {
		if accept.Load() {
			return ""
		}
		return "451 4.3.0 later"
	}})
	s := prepare(t, sink, nil)
	conf := read(t, s.Config())
	began := false
	for _, levels := range []int{0, 2, 1} {
		write(t, s.Config(), conf+fmt.Sprintf("HASHLEVELS=%d\n", levels))
		if !began {
			began = true
			begin(t, s)
			for n := range count {
				submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", recipientOf(n))
			}
		} else {
			restart(t, s)
		}
		await(t, s, fmt.Sprintf("%d messages at %d levels", count, levels), func() (bool, error) {
			left, err := s.Left()
			return inPlace(left, levels) == 2*count, err
		})
		if got := strings.Count(zmctl(t, s, "queue"), "@sink.example  "); got != count {
			t.Errorf("%d levels: zmctl queue lists %d recipients, want %d", levels, got, count)
		}
		stop(t, s)
	}
	accept.Store(true)
	restart(t, s)
	awaitEmpty(t, s)
	for n := range count {
		if got := len(arrivals(sink, recipientOf(n))); got != 1 {
			t.Errorf("%s arrived %d times, want once", recipientOf(n), got)
		}
	}
}

// inPlace counts the files of queue/ and transport/ that stand where they belong; -1
// if one does not.
func inPlace(left []string, levels int) int {
	n := 0
	for _, name := range left {
		dir, file, _ := strings.Cut(name, "/")
		if dir != "queue" && dir != "transport" {
			continue
		}
		base := file[strings.LastIndexByte(file, '/')+1:]
		parsed, ok := postoffice.ParseName(base)
		want := base
		if hash := postoffice.HashDir(parsed.Ino, levels); hash != "" {
			want = hash + "/" + base
		}
		if !ok || file != want {
			return -1
		}
		n++
	}
	return n
}

// A file that a person leaves in a hash directory is nobody's work.
func TestStrangeFilesInHashDirectoriesAreLeft(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := prepare(t, sink, func(s *suite.Suite) { s.Settings = map[string]string{"HASHLEVELS": "1"} })
	for _, dir := range []string{"queue/A", "transport/A"} {
		if err := os.MkdirAll(path(s, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path(s, dir+"/notes.txt"), "mine\n")
	}
	begin(t, s)
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
	if err := sink.Wait(1, patience); err != nil {
		t.Fatal(err)
	}
	var left []string
	await(t, s, "end of the message", func() (bool, error) {
		var err error
		left, err = s.Left()
		return len(left) == 2, err
	})
	if got := strings.Join(left, " "); got != "queue/A/notes.txt transport/A/notes.txt" {
		t.Errorf("left: %q", got)
	}
}
