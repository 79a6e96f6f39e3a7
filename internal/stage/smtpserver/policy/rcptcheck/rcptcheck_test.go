package rcptcheck

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
)

// program writes a shell script that plays the router, and gives a checker of it. $RUNS
// is a file with a line for each time it was started, $ASKED for each question.
func program(t *testing.T, o Options, script string) (*Checker, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "router")
	text := "#!/bin/sh\nRUNS=" + dir + "/runs ASKED=" + dir + "/asked\necho run >>$RUNS\n" + script
	assert.Must(t, os.WriteFile(path, []byte(text), 0o755))
	assert.Must(t, os.WriteFile(filepath.Join(dir, "generation"), []byte("1 0\n"), 0o644))
	o.Program = []string{path, "--verify"}
	if o.Time == 0 {
		o.Time = 20 * time.Second
	}
	c := assert.Get(New(o))(t)
	t.Cleanup(c.Close)
	return c, dir
}

// answering plays a router that knows everybody but those whose address has "no" in it.
const answering = `echo zmailer rcpt-check 1
while read id from to; do
	if [ "$from" = generation ]; then echo $id generation - $(cat ${ASKED%/*}/generation) ; continue; fi
	echo $to >>$ASKED
	case $to in
	*no*) echo $id unknown 5.1.1 User unknown;;
	*slow*) ;;
	*odd*) echo $id what;;
	*lookup*) echo $id trouble - the table is down;;
	*moved*) echo $id refused 5.1.6 moved away;;
	*die*) exit 3;;
	*) echo $id known - ;;
	esac
done
`

func box(s string) address.Mailbox { return address.Mailbox{Local: s, Domain: "example.org"} }

func lines(t *testing.T, dir, name string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

func TestAnswersOfTheChildAreTakenAsTheyAre(t *testing.T) {
	c, dir := program(t, Options{}, answering)
	for to, tt := range map[string]struct {
		want  Answer
		wrong string
	}{
		"bob":    {want: Answer{Known: true}},
		"nobody": {want: Answer{Code: status.BadMailbox, Text: "User unknown"}},
		"moved":  {want: Answer{Code: status.Code{Class: 5, Subject: 1, Detail: 6}, Text: "moved away"}},
		"lookup": {wrong: "the table is down"},
		"odd":    {wrong: `answers "what"`},
	} {
		got, err := c.Check(context.Background(), address.Mailbox{}, box(to))
		if tt.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: got %v, want %q", to, err, tt.wrong)
			}
		} else if got != tt.want || err != nil {
			t.Errorf("%s: got %+v, %v, want %+v", to, got, err, tt.want)
		}
	}
	assert.Equal(t, lines(t, dir, "runs"), 1)
}

// One child serves all sessions, several questions at a time.
func TestOneChildServesEverybody(t *testing.T) {
	c, dir := program(t, Options{}, answering)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			want := i%2 == 0
			name := "user" + strconv.Itoa(i)
			if !want {
				name = "no" + strconv.Itoa(i)
			}
			got, err := c.Check(context.Background(), box("a"), box(name))
			if err != nil || got.Known != want {
				t.Errorf("%s: got %+v, %v", name, got, err)
			}
		})
	}
	all.Wait()
	assert.Equal(t, lines(t, dir, "runs"), 1)
}

func TestAnswersAreRememberedForAWhile(t *testing.T) {
	now := time.Now()
	c, dir := program(t, Options{Keep: 10 * time.Minute, Now: func() time.Time { return now }}, answering)
	ask := func(to string, times int) {
		t.Helper()
		assert.Get(c.Check(context.Background(), box("a"), box(to)))(t)
		assert.Equal(t, lines(t, dir, "asked"), times)
	}
	ask("bob", 1)
	ask("nobody", 2)
	ask("moved", 3)
	now = now.Add(59 * time.Second)
	ask("bob", 3)
	ask("nobody", 3)
	ask("moved", 4) // that is for its sender
	now = now.Add(2 * time.Second)
	ask("nobody", 5)
	ask("bob", 5)
	now = now.Add(10 * time.Minute)
	ask("bob", 6)
	now = now.Add(-time.Hour)
	ask("bob", 7)
}

// Op9: what is kept ends when a table of the router's changes, and where one is asked that
// may change without notice, when the answer of that would end.
func TestAnswersEndWithTheTables(t *testing.T) {
	now := time.Now()
	c, dir := program(t, Options{Keep: 10 * time.Minute, Now: func() time.Time { return now }}, answering)
	ask := func(to string, times int) {
		t.Helper()
		assert.Get(c.Check(context.Background(), box("a"), box(to)))(t)
		assert.Equal(t, lines(t, dir, "asked"), times)
	}
	ask("bob", 1)
	ask("nobody", 2)
	assert.Must(t, os.WriteFile(filepath.Join(dir, "generation"), []byte("2 0\n"), 0o644))
	ask("bob", 2) // looked at within this second
	now = now.Add(time.Second)
	ask("bob", 3)
	ask("nobody", 4)
	ask("bob", 4)
	assert.Must(t, os.WriteFile(filepath.Join(dir, "generation"), []byte("3 5000000000\n"), 0o644))
	now = now.Add(time.Second)
	ask("bob", 5)
	now = now.Add(4 * time.Second)
	ask("bob", 5)
	now = now.Add(time.Second)
	ask("bob", 6)
}

// With a router.star nothing is kept, since it decides for each sender; and a next hop that is
// to be asked comes whole.
func TestNextHopComesWhole(t *testing.T) {
	c, dir := program(t, Options{}, strings.Replace(answering, "case $to in\n",
		"case $to in\n\t*hop*) echo $id verify - lmtp unix:/run/a+20b "+"a+2Bb@example.org;;\n\t*cut*) echo $id verify - lmtp;;\n", 1))
	c.o.Keep = time.Hour
	assert.Must(t, os.WriteFile(filepath.Join(dir, "generation"), []byte("1p 1\n"), 0o644))
	for range 2 {
		a := assert.Get(c.Check(context.Background(), box("a"), box("bob")))(t)
		assert.Equal(t, a, Answer{Known: true})
	}
	assert.Equal(t, lines(t, dir, "asked"), 2)
	a := assert.Get(c.Check(context.Background(), box("a"), box("hop")))(t)
	assert.Equal(t, a, Answer{Known: true, Next: NextHop{Channel: "lmtp", Host: "unix:/run/a b", User: "a+b@example.org"}, Verify: true})
	if _, err := c.Check(context.Background(), box("a"), box("cut")); err == nil {
		t.Error("a next hop without a user: got no error")
	}
}

func TestChildThatEndsIsStartedAgain(t *testing.T) {
	c, dir := program(t, Options{}, answering)
	ctx := context.Background()
	assert.Get(c.Check(ctx, box("a"), box("bob")))(t)
	if _, err := c.Check(ctx, box("a"), box("die")); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v, want that it has ended", err)
	}
	if got, err := c.Check(ctx, box("a"), box("carol")); !got.Known || err != nil {
		t.Errorf("afterwards got %+v, %v", got, err)
	}
	// Asked once more, by the child that was started for that.
	assert.Equal(t, lines(t, dir, "runs"), 3)
}

func TestChildThatDoesNotAnswerIsKilled(t *testing.T) {
	c, dir := program(t, Options{Time: 300 * time.Millisecond}, answering)
	ctx := context.Background()
	if _, err := c.Check(ctx, box("a"), box("slow")); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("got %v, want that it does not answer", err)
	}
	c.o.Time = 20 * time.Second
	if got, err := c.Check(ctx, box("a"), box("bob")); !got.Known || err != nil {
		t.Errorf("afterwards got %+v, %v", got, err)
	}
	assert.Equal(t, lines(t, dir, "runs"), 2)
}

// One that answers others is not killed for one question that takes long.
func TestSlowAnswerDelaysNoOtherQuestion(t *testing.T) {
	c, dir := program(t, Options{}, answering)
	ctx := context.Background()
	// Its time is over while others are answered: the program is not stuck.
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	waits := make(chan error, 1)
	go func() {
		_, err := c.Check(short, box("a"), box("slow"))
		waits <- err
	}()
	for i := 0; len(waits) == 0; i++ {
		if got, err := c.Check(ctx, box("a"), box("user"+strconv.Itoa(i))); !got.Known || err != nil {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	if err := <-waits; err == nil {
		t.Error("got an answer to what was not answered")
	}
	assert.Equal(t, lines(t, dir, "runs"), 1)
}

func TestProgramThatCannotRunIsTroubleAndLeftAlone(t *testing.T) {
	now := time.Now()
	c, dir := program(t, Options{Now: func() time.Time { return now }}, "echo there is no such setting >&2\nexit 78\n")
	ctx := context.Background()
	for range 3 {
		_, err := c.Check(ctx, box("a"), box("bob"))
		if err == nil || !strings.Contains(err.Error(), "no such setting") {
			t.Errorf("got %v, want what the program says", err)
		}
	}
	n := lines(t, dir, "runs")
	if _, err := c.Check(ctx, box("a"), box("bob")); err == nil || lines(t, dir, "runs") != n {
		t.Errorf("got %v and another start, want a pause", err)
	}
	now = now.Add(time.Minute)
	if _, err := c.Check(ctx, box("a"), box("bob")); err == nil || lines(t, dir, "runs") == n {
		t.Errorf("got %v and no start after the pause", err)
	}
	c.o.Program = []string{filepath.Join(dir, "nothing")}
	now = now.Add(time.Minute)
	if _, err := c.Check(ctx, box("a"), box("bob")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v, want that there is no such program", err)
	}
}

// What is asked about comes from outside: none of it ends a line or a word.
func TestQuestionIsOneLineOfThreeWords(t *testing.T) {
	c, dir := program(t, Options{}, answering)
	for _, local := range []string{"a b", "a\tb", `a"b`, "a\\b", "ü", "a+b=c"} {
		if got, err := c.Check(context.Background(), address.Mailbox{Local: local, Domain: "example.net"}, box(local)); !got.Known || err != nil {
			t.Errorf("%q: got %+v, %v", local, got, err)
		}
	}
	assert.Equal(t, lines(t, dir, "asked"), 6)
}

// FuzzAnswer: whatever the child says is an answer or an error.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{"known - ", "unknown 5.1.1 no such user", "unknown 4.1.1 x", "refused 5.7.1", "trouble - x", "", "known"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		_, a, err := parseAnswer(line)
		if err == nil && !a.Known && a.Code.Class != 5 {
			t.Errorf("%q: refused with %v", line, a.Code)
		}
	})
}
