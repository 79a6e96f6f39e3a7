package answer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/hostile"
)

// Each answer is a line, however many are found at the same time, and no more are than may be.
func TestAnswersAreWholeLines(t *testing.T) {
	var b strings.Builder
	s, ctx := New(context.Background(), &b, 3, "hello")
	var now, most atomic.Int32
	want := []string{"hello"}
	for i := range 200 {
		text := fmt.Sprint(i, strings.Repeat("x", i))
		want = append(want, text)
		s.Go(func() string {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			return text
		})
	}
	assert.Must(t, ctx.Err(), s.Wait())
	got := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	slices.Sort(got)
	slices.Sort(want)
	assert.Same(t, got, want)
	if most.Load() > 3 {
		t.Errorf("%d at the same time", most.Load())
	}
}

// A client that is gone ends the server, also while all places are taken.
func TestAClientThatIsGoneEndsTheServer(t *testing.T) {
	r, w := io.Pipe()
	go func() { // it reads the greeting
		_, _ = r.Read(make([]byte, 100))
		_ = r.Close()
	}()
	s, ctx := New(context.Background(), w, 1, "hello")
	for range 10 {
		s.Go(func() string { return "x" })
	}
	<-ctx.Done()
	if err := s.Wait(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

func TestTextIsTheRestOfALine(t *testing.T) {
	for _, s := range append(hostile.Texts(t), strings.Repeat("é", 300), "\xff\xfe", strings.Repeat("\xff", 500)) {
		got := Text(s)
		if strings.ContainsAny(got, "\r\n\x00") || !utf8.ValidString(got) || len(got) > maxText {
			t.Errorf("%q: %q", s, got)
		}
	}
}
