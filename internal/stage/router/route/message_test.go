package route

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// Op10: router.star rejects before the 250, where it rejects the message for every recipient; the
// router decides about all else.
func TestOp10ProgramRejectsBeforeTheReply(t *testing.T) {
	v := newVerifier(t, map[string]string{"router.star": `
def message(m):
    if m.header("X-Bad"):
        return reject("5.7.9", "bad " + str(m.size) + " " + str(m.user))
    if m.header("X-Odd"):
        return freeze("odd", "odd")
    if m.header("X-Error"):
        return 1 // 0

def recipient(m, r):
    if r.local == "no" and m.header("X-Some"):
        return reject("5.7.8", "not for " + r.address)
`})
	head := func(to, header string) string {
		return "external\nsubmitted jane\nfrom <q@example.net>\n" + to + "env-end\n" + header + "\n"
	}
	const one, two = "to <no@example.org>\n", "to <no@example.org>\nto <bond@example.org>\n"
	var in strings.Builder
	want := []string{VerifyGreeting}
	for i, c := range []struct{ head, answer string }{
		{head(two, "Subject: x"), "known - "},
		{head(two, "X-Bad: 1"), "refused 5.7.9 bad 77 jane"},
		{head(one, "X-Some: 1"), "refused 5.7.8 not for no@example.org"},
		{head(two, "X-Some: 1"), "known - "}, // there is one reply for both
		{head(one, "X-Odd: 1"), "known - "},
		{head(one, "X-Error: 1"), "known - "},
	} {
		fmt.Fprintf(&in, "%d message %d 77\n%s\n", i, len(c.head), c.head)
		want = append(want, fmt.Sprintf("%d %s", i, c.answer))
	}
	var out strings.Builder
	assert.Must(t, v.Serve(context.Background(), strings.NewReader(in.String()), &out))
	got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	slices.Sort(got)
	slices.Sort(want)
	assert.Same(t, got, want)
	if err := v.Serve(context.Background(), strings.NewReader("1 message 10 1\nx"), &out); err == nil {
		t.Error("a head that is cut off: no error")
	}
	if err := v.Serve(context.Background(), strings.NewReader("1 message 99999999 1\nx"), &out); err == nil {
		t.Error("a head that is too long: no error")
	}
}
