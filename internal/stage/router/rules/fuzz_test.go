package rules

import (
	"errors"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	tabletext "zmailer/internal/table/text"
)

// oneUser is a user database that holds carol.
type oneUser struct{}

func (oneUser) Lookup(login string) (User, bool, error) {
	return User{Login: "carol", UID: 1000}, login == "carol", nil
}

func (oneUser) LookupUID(uint32) (User, bool, error) { return User{}, false, nil }

// fuzzTables parses a text as one of the tables.
func fuzzTables(t testing.TB, name, text string) (*Tables, error) {
	t.Helper()
	k := assert.Get(newTables(Config{Hostname: "mx.example.org", Passwd: oneUser{}, Now: time.Now}))(t)
	s := source{name: name, text: text, rights: rights{uid: 1}}
	return k, k.addText(name, s)
}

// addText puts a text table in its place.
func (t *Tables) addText(name string, s source) error {
	for _, kind := range tabletext.Kinds() {
		if string(kind) == name {
			*t.layersOf(kind) = make([]layer, 1)
			return t.parseLayer(kind, 0, s)
		}
	}
	return t.parseUsers(s)
}

// Whatever stands in a table: it is refused with its line, or every recipient gets
// targets that a work specification can hold.
func FuzzTables(f *testing.F) {
	_, list := readCases(f, "testdata/tables.txt")
	for _, part := range list {
		name, text := part.name, part.body
		if part.kind != "table" {
			continue
		}
		for line := range strings.Lines(text) {
			f.Add(name, line, "carol@example.com")
		}
		f.Add(name, text, "sales@example.org")
	}
	f.Add("aliases", "a: \"|x, y\" , b@[IPv6:::1], \\c\n d\n", "a")
	f.Add("fqdnaliases", "@[IPv6:::1]: \"%1 x\"@y, :include:/nonexistent\n", "a@[IPv6:::1]")
	f.Fuzz(func(t *testing.T, name, text, rcpt string) {
		k, err := fuzzTables(t, name, text)
		if err != nil {
			bad := (*config.Error)(nil)
			if !errors.As(err, &bad) || bad.Line < 1 || bad.Line > strings.Count(text, "\n")+1 {
				t.Fatalf("got %v, want an error that names a line of the text", err)
			}
			return
		}
		m, err := address.Parse(rcpt)
		if err != nil {
			return
		}
		list, err := collect(k, m, true)
		if trouble, ok := IsTrouble(err); err != nil && (!ok || trouble.Why != "include") {
			t.Fatalf("got %v, want no trouble but with lists", err)
		}
		if err == nil && len(list) == 0 {
			t.Fatal("no target")
		}
		for _, to := range list {
			if to.Channel == "" || to.Host == "" || strings.ContainsAny(to.Channel+to.Host, " \t\n") || strings.ContainsRune(to.User, '\n') {
				t.Errorf("got %+v: no line of a work specification", to)
			}
		}
	})
}
