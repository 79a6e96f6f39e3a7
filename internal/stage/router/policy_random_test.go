package router

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
)

// randomProgram is text that is sometimes a program: pieces of some, put together.
func randomProgram(r *rand.Rand) string {
	pieces := []string{
		"def message(m):\n", "def recipient(m, r):\n", "    return ", "    x = ", "    if ", "    for i in ", ":\n", "\n",
		"None", "drop()", "accept()", `freeze("x")`, `defer("y")`, `reject("5.1.1", "no")`, `route("smtp!h")`, `redirect("bond")`, `redirect(r.address)`,
		`add_header("A", m.id)`, `remove_header("*")`, `set_sender("a@b.example")`, `copy("c@d.example")`, `split(r.local)`,
		"m", "r", ".sender", ".recipients", ".header", `("Subject")`, "[0]", "[", "]", "(", ")", ", ", " + ", " * ", " % ", "1000000000", "-1", "\"%s\"",
		"range(10)", "x", "i", "lambda: ", "not ", "while True", "load(\"a.star\", \"b\")", "\x00", "\xff", "\\", "\"", "'''", "#", "\t",
		`rate("k", 1)`, `resolve("bond")`, `table("aliases")`, `match("(", "x")`, `log("x")`, "fail(", "{", "}", "str(", "sorted(", "zip(",
	}
	var b strings.Builder
	if r.IntN(3) > 0 {
		// Mostly something that runs.
		hook := pieces[r.IntN(2)]
		b.WriteString(hook + "    x = [m]\n    i = 3\n    return ")
		for range 1 + r.IntN(3) {
			b.WriteString("[" + pieces[8+r.IntN(14)] + "] + ")
		}
		b.WriteString("[]\n")
		return b.String()
	}
	for range r.IntN(40) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return b.String()
}

// Whatever stands in router.star, the router goes on, and every message is in one place:
// handed over, frozen or deferred.
func TestNoProgramLosesAMessage(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	now := time.Now()
	o := newOffice(t, nil, func(c *Config) { c.Now = func() time.Time { return now } })
	var ids []string
	place := map[string]int{}
	for range 150 {
		// Each is another file: written, and looked at later.
		text := randomProgram(r)
		o.table("router.star~", text)
		if err := os.Rename(filepath.Join(o.conf, "router.star~"), filepath.Join(o.conf, "router.star")); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Minute)
		a := o.submit("external\nfrom <q@example.net>\nto <bond@example.org>\nto <x@far.example>\nenv-end\nSubject: s\nFrom: q@x\n\nbody\n")
		ids = append(ids, fmt.Sprint(a.ID.Ino))
		if _, err := o.r.RouteAll(); err != nil {
			t.Fatalf("seed %d: %v\nby\n%s", seed, err, text)
		}
	}
	var there []string
	for _, dir := range []string{postoffice.Public, postoffice.Router, postoffice.Queue, postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		for _, name := range o.names(dir) {
			place[dir]++
			ino, _, _ := strings.Cut(strings.ReplaceAll(name, "-", "."), ".")
			there = append(there, ino)
		}
	}
	slices.Sort(ids)
	slices.Sort(there)
	if !slices.Equal(ids, there) || place[postoffice.Queue]+place[postoffice.Deferred]+place[postoffice.Freezer] != len(ids) {
		t.Errorf("seed %d: of %d messages there are %d: %v", seed, len(ids), len(there), place)
	}
	if o.log.Count("msg=crash") > 0 || o.log.Count("msg=policy-crash") > 0 {
		t.Errorf("seed %d: a crash:\n%s", seed, &o.log)
	}
	if place[postoffice.Queue] == 0 || place[postoffice.Freezer] == 0 || o.log.Count("msg=policy-refused") == 0 || o.log.Count("msg=policy-read") == 0 {
		t.Errorf("seed %d: it shows little: %v", seed, place)
	}
}
