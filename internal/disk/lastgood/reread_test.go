package lastgood

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Op4: when settings no longer name what is in trouble, a DNS list for example, its alarm ends with
// the reload; a reload that is refused ends none.
func TestOp4AlarmEndsWhenAReloadNoLongerNamesItsSubject(t *testing.T) {
	site := newSite(t, "MAXSIZE=1k\n")
	f, po, file := site.follow("smtpserver"), site.dir, site.file
	store := f.store
	opens := func(names ...string) {
		for _, name := range names {
			config.NewOutage(store, config.Backend{Name: name, AtOnce: true})
		}
	}
	alarms := func() (names []string) {
		for _, f := range findings(t, po) {
			names = append(names, f.Path)
		}
		slices.Sort(names)
		return names
	}
	expect := func(what string, names ...string) {
		t.Helper()
		assert.Equal(t, strings.Join(alarms(), " "), strings.Join(names, " "), "%s", what)
	}
	const one, two, access = "dnsbl:one.test", "policy:127.0.0.1:1", "/etc/zmailer/access"
	for _, name := range []string{one, two} {
		config.NewOutage(store, config.Backend{Name: name, AtOnce: true}).Failed(errors.New("no answer"))
	}
	store.Good(access, []byte("# none\n"), 0, nil)
	store.Bad(access, errors.New("line 1"), true)
	f.Settle()
	expect("before", access, one, two)

	site.write("MAXSIZE=x\n")
	next, err := f.Read()
	if err == nil {
		_, err = next.Size("MAXSIZE", 0)
	}
	f.Refuse(err)
	expect("a reload that is refused", access, file, one, two)

	site.write("MAXSIZE=2k\n")
	assert.Get(f.Read())(t)
	opens(two)
	store.Bad(access, errors.New("line 1"), true)
	f.Accept()
	expect("without one of them", access, two)
	assert.Equal(t, string(store.Last(access).Text), "# none\n", "copy")

	site.write("MAXSIZE=3k\n")
	assert.Get(f.Read())(t)
	opens(one, two)
	config.NewOutage(store, config.Backend{Name: one, AtOnce: true}).Failed(errors.New("no answer"))
	f.Accept()
	expect("with both again, without the table", one, two)

	// Another process of the program has noted a table that this one can use.
	again := assert.Get(Open(po, "smtpserver", slog.New(slog.DiscardHandler)))(t)
	again.Bad(access, errors.New("line 1"), true)
	store.Good(access, []byte("# none\n"), 0, nil)
	expect("the table is corrected", one, two)
}
