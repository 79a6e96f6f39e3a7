package route

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/rules"
)

// newVerifier has the users bond and moneypenny in example.org and mx.example.org.
func newVerifier(t testing.TB, tables map[string]string) *Verifier {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"users": "bond\nmoneypenny\n", "localnames": "example.org\n"} {
		if _, ok := tables[name]; !ok {
			tables[name] = text
		}
	}
	for name, text := range tables {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	v, err := NewVerifier(Config{Hostname: "mx.example.org", Rules: rules.Config{
		Dir: dir, Postmaster: "bond", LocalUsers: filepath.Join(dir, "users"), Subaddress: "+",
	}}, time.Minute)
	assert.Must(t, err)
	t.Cleanup(func() { v.Close() })
	return v
}

func TestVerifierSaysWhatAClientMayHear(t *testing.T) {
	tables := map[string]string{
		"aliases": "round: about\nabout: round\nbad: |/bin/sh\n",
		"routes":  "closed.example error!5.1.6:moved+20away\nshut.example error!4.7.0\n",
	}
	for to, want := range map[string]string{
		"bond@example.org":   "known - local bond@example.org bond@example.org",
		"x@far.example":      "known - smtp far.example x@far.example",
		"nobody@example.org": "unknown 5.1.1 User unknown",
		"round@example.org":  "unknown 5.4.6 Mail loops back to the address",
		"x@closed.example":   "unknown 5.1.6 moved away",
		"x@shut.example":     "unknown 5.7.0 Mail to this address is not accepted",
		"@":                  "unknown 5.1.3 Bad address syntax",
		"":                   "unknown 5.1.3 Bad address syntax",
	} {
		assert.Equal(t, newVerifier(t, tables).Verify(context.Background(), "<q@example.net>", to).String(), want, to)
	}
	nobodys := newVerifier(t, map[string]string{"aliases": "bad: |/bin/sh\n"})
	assert.Must(t, os.Chmod(filepath.Join(nobodys.en.c.Rules.Dir, "aliases"), 0o666))
	v := assert.Get(NewVerifier(nobodys.en.c, time.Minute))(t)
	defer v.Close()
	if got := v.Verify(context.Background(), "", "bad@example.org"); got.Text != "Mail to this address is not accepted" {
		t.Errorf("got %q, want nothing of our files", got)
	}
}

// Op9: router.star is asked as in routing, about every recipient: it may know whom the tables
// do not know, and refuse whom they know. What it decides by the content is not decided
// before that.
func TestVerifierAsksThePolicyFirst(t *testing.T) {
	for name, tt := range map[string]struct{ star, want, bond string }{
		"nothing":          {"def recipient(m, r):\n    return None\n", "refused 5.1.1 User unknown", "known - local bond@example.org bond@example.org"},
		"another place":    {"def recipient(m, r):\n    return redirect(\"bond\")\n", "known - ", "known - "},
		"drops it":         {"def recipient(m, r):\n    return drop()\n", "known - ", "known - "},
		"freezes it":       {"def message(m):\n    return freeze(\"odd\", \"look\")\n", "known - ", "known - "},
		"rejects it":       {"def recipient(m, r):\n    return reject(\"5.7.1\", \"not from \" + m.sender)\n", "refused 5.7.1 not from q@example.net", "refused 5.7.1 not from q@example.net"},
		"rejects all":      {"def message(m):\n    return reject(\"5.7.1\", \"no\")\n", "refused 5.7.1 no", "refused 5.7.1 no"},
		"makes an error":   {"def recipient(m, r):\n    return 1 // 0\n", "known - ", "known - "},
		"wants the header": {"def recipient(m, r):\n    return redirect(m.headers(\"X-To\")[0])\n", "known - ", "known - "},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVerifier(t, map[string]string{"router.star": tt.star})
			assert.Equal(t, v.Verify(context.Background(), "<q@example.net>", "old@example.org").String(), tt.want)
			assert.Equal(t, v.Verify(context.Background(), "<q@example.net>", "bond@example.org").String(), tt.bond, "whom the tables know")
		})
	}
}

// Op9: the generation is another one after each change that may change an answer.
func TestGenerationChangesWithEachTable(t *testing.T) {
	v := newVerifier(t, map[string]string{"aliases": "a: bond\n"})
	dir := v.en.c.Rules.Dir
	clock := time.Now().Add(time.Hour)
	v.en.c.Now = func() time.Time { return clock }
	v = assert.Get(NewVerifier(v.en.c, time.Minute))(t)
	defer v.Close()
	last, _ := v.Generation()
	again, keep := v.Generation()
	assert.Equal(t, again, last)
	assert.Equal(t, keep, time.Duration(0))
	for i, change := range []func() error{
		func() error { return os.WriteFile(filepath.Join(dir, "aliases"), []byte("b: bond\n"), 0o644) },
		func() error { return os.WriteFile(filepath.Join(dir, "users"), []byte("bond\n"), 0o644) },
		func() error { return os.Mkdir(filepath.Join(dir, "lists"), 0o755) },
		func() error { return os.WriteFile(filepath.Join(dir, "lists", "news"), []byte("bond\n"), 0o644) },
		func() error { return os.Remove(filepath.Join(dir, "lists", "news")) },
	} {
		assert.Must(t, change())
		clock = clock.Add(time.Hour) // what changed has settled
		now, _ := v.Generation()
		if now == last {
			t.Errorf("change %d: the generation stays %s", i, now)
		}
		last = now
	}
}

func TestServeAnswersEachQuestionOnce(t *testing.T) {
	v := newVerifier(t, map[string]string{})
	var in strings.Builder
	var want []string
	for i, to := range []string{"bond@example.org", "nobody@example.org", `"a b"@example.org`, "bond+tag@mx.example.org"} {
		id := string(rune('a' + i))
		in.WriteString(id + " " + address.EncodeXText("<q@example.net>") + " " + address.EncodeXText(to) + "\n")
		answer := []string{"known - local bond@example.org bond@example.org", "unknown 5.1.1 User unknown",
			"unknown 5.1.1 User unknown", "known - local bond@mx.example.org bond+2Btag@mx.example.org"}[i]
		want = append(want, id+" "+answer)
	}
	var out strings.Builder
	assert.Must(t, v.Serve(context.Background(), strings.NewReader(in.String()), &out))
	got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	assert.Equal(t, got[0], VerifyGreeting, "greeting")
	got = got[1:]
	slices.Sort(got)
	assert.Same(t, got, want)
	if err := v.Serve(context.Background(), strings.NewReader("what\n"), io.Discard); err == nil {
		t.Error("a line that is no question: got no error")
	}
	if err := v.Serve(context.Background(), strings.NewReader(in.String()), deaf{}); err == nil {
		t.Error("the client is gone: got no error")
	}
}

type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, errors.New("the client is gone") }

// FuzzServe: whatever comes in, each answer is one line of four words.
func FuzzServe(f *testing.F) {
	v := newVerifier(f, map[string]string{"aliases": "a: b\nb: a\n"})
	for _, s := range []string{"1 <> bond\n", "1 <a@b> nobody+2Bx@example.org\n2 x y\n", "\n", "1 + +\n", "1 2 3 4\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		var out strings.Builder
		_ = v.Serve(context.Background(), strings.NewReader(in), &out)
		for line := range strings.Lines(out.String()) {
			if strings.TrimSuffix(line, "\n") == VerifyGreeting {
				continue
			}
			if f := strings.SplitN(line, " ", 4); len(f) != 4 || !strings.HasSuffix(line, "\n") || strings.ContainsAny(line[:len(line)-1], "\r\n") {
				t.Errorf("%q: answer %q", in, line)
			}
		}
	})
}
