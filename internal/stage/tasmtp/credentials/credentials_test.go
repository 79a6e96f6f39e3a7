package credentials

import (
	"errors"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

func TestLinesThatCannotBe(t *testing.T) {
	cases := map[string]string{
		"too few words":          "a.test user",
		"no host":                "a.test:x user hush",
		"a domain":               ".a.test user hush",
		"a quote that is open":   `a.test user "hush`,
		"a quote without blank":  `a.test "user"hush x`,
		"an unknown word":        "a.test user hush clear",
		"a password in two":      "a.test user hush hush",
		"an empty user":          `a.test "" hush`,
		"any host, without name": "* user hush",
		"an empty name":          "a.test user hush name=",
		"from= without @":        "a.test user hush from=ann",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("credentials", []byte("# x\n"+text))
			var bad *config.Error
			if !errors.As(err, &bad) || bad.Line != 2 {
				t.Fatalf("got %v", err)
			}
			if strings.Contains(err.Error(), "hush") {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}

func TestPortAndOrderOfLines(t *testing.T) {
	table, err := Parse("credentials", []byte("a.test first p\na.test second p\na.test:587 port p\nb.test x p name=n\n"))
	assert.Must(t, err)
	cases := map[string]struct {
		host, name string
		port       int
		want       string
	}{
		"the first of two":          {"a.test", "", 25, "first"},
		"with the port":             {"a.test", "", 587, "port"},
		"below the host":            {"x.a.test", "", 25, ""},
		"a name without password":   {"b.test", "", 25, ""},
		"by name":                   {"b.test", "n", 25, "x"},
		"by name, for another host": {"a.test", "n", 25, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := ""
			if a := table.Find(c.host, c.port, "", c.name); a != nil {
				got = a.User
			}
			assert.Equal(t, got, c.want)
		})
	}
}

// FuzzParse: no file ends the program, and no error has a password.
func FuzzParse(f *testing.F) {
	f.Add("a.test u \"p \\\" q\" from=a@b name=n cleartext\n")
	f.Add("* u p name=x\n[::1]:25 u p\n")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := Parse("credentials", []byte(text))
		if err == nil {
			table.Find("a.test", 25, "a@b", "n")
		}
	})
}
