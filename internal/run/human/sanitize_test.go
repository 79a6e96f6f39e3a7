package human

import "testing"

func TestWhatCannotBeSeenIsShownAsItsCode(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"Grüße, 今日は":           "Grüße, 今日は",
		"a\tb":                 "a b",
		"a\nb\r":               `a\x0ab\x0d`,
		"\x1b[2J\a":            `\x1b[2J\x07`,
		"a\xffb":               `a\xffb`,
		"a\uFFFDb":             "a\uFFFDb",
		"moc.elpmaxe\u202ebob": `moc.elpmaxe\x202ebob`,
		"soft\u00adhyphen":     `soft\xadhyphen`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
