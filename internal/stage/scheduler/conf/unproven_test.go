package conf

import "testing"

// Without maxunproven half of the places are kept, whichever limit says how many there are.
func TestAtk3HalfOfThePlacesAreKept(t *testing.T) {
	for clause, want := range map[string]int{
		`maxta=50 maxring=100 command="a --slots=20"`:                50,
		`maxta=50 maxring=100 maxunproven=80 command="a --slots=20"`: 80,
		`maxta=50 maxring=100 maxunproven=0 command="a --slots=20"`:  0,
		`maxta=50 maxring=100 maxchannel=31 command="a --slots=20"`:  16,
		`maxta=1 maxring=100 command="a --slots=20"`:                 10,
		`maxta=50 maxring=100 command=a`:                             25,
		`maxta=0 maxring=0 command=a`:                                0,
		`maxta=10 maxring=0 command=a`:                               5,
		`maxring=1 command=a`:                                        1,
		`maxring=2 command=a`:                                        2,
		`maxring=3 command=a`:                                        2,
	} {
		conf := mustConf(t, "*/* "+clause+"\n")
		if got := conf.Match("smtp", "h").Policy().MaxUnproven; got != want {
			t.Errorf("%s: got %d, want %d", clause, got, want)
		}
	}
}
