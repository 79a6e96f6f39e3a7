package passwd

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// file makes a file with each kind of hash of the password "right".
func file(t testing.TB) string {
	t.Helper()
	b := assert.Get(bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost))(t)
	keys := assert.Get(NewSCRAM("right"))(t)
	return "# accounts\n\nann:" + NewHash("right") + "\nbob:" + string(b) + ":gecos:/home/bob\r\ncem:" + keys.String() +
		"\ndan@example.org:" + NewHash("right") + "\ndan@example.org:" + keys.String() + "\n"
}

func TestPasswordIsRightForItsUserAlone(t *testing.T) {
	a, err := Parse("users", []byte(file(t)))
	assert.Must(t, err)
	if a.Count() != 4 || !a.HasSCRAM() {
		t.Errorf("got %d users, SCRAM %v", a.Count(), a.HasSCRAM())
	}
	for name, tt := range map[string]struct {
		user, password string
		ok             bool
	}{
		"argon2id":        {"ann", "right", true},
		"bcrypt":          {"bob", "right", true},
		"SCRAM keys":      {"cem", "right", true},
		"both":            {"dan@example.org", "right", true},
		"wrong":           {"ann", "wrong", false},
		"wrong, bcrypt":   {"bob", "right ", false},
		"wrong, SCRAM":    {"cem", "wrong", false},
		"empty":           {"ann", "", false},
		"unknown":         {"eve", "right", false},
		"no name":         {"", "right", false},
		"another's case":  {"Ann", "right", false},
		"endless":         {"ann", strings.Repeat("x", 1<<20), false},
		"no characters":   {"cem", "\x00\x01", false},
		"right and a NUL": {"ann", "right\x00", false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := a.Verify(tt.user, tt.password); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrMismatch) {
				t.Errorf("got %v, want right: %v", err, tt.ok)
			}
		})
	}
}

// The least of some runs each: what else runs on the machine only adds to them.
func TestUnknownUserCostsWhatAWrongPasswordCosts(t *testing.T) {
	a := assert.Get(Parse("users", []byte("ann:"+NewHash("right")+"\n")))(t)
	// The hash is made to need memory: what a look allocates shows that it was made.
	cost := func(user string) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := a.Verify(user, "wrong"); err == nil {
			t.Fatal("a wrong password was taken")
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	const least = 1 << 20
	known, unknown := cost("ann"), cost("eve")
	if known < least || unknown < known*9/10 || unknown > known*11/10 {
		t.Errorf("an unknown user takes %d bytes, a known one %d", unknown, known)
	}
}

func TestUnknownUserGetsTheSameSaltEachTime(t *testing.T) {
	text := file(t)
	a := assert.Get(Parse("users", []byte(text)))(t)
	b := assert.Get(Parse("users", []byte(text)))(t)
	eve, again, other, cem := a.SCRAM("eve"), b.SCRAM("eve"), a.SCRAM("eva"), a.SCRAM("cem")
	if string(eve.Salt) != string(again.Salt) || string(eve.Salt) == string(other.Salt) {
		t.Errorf("salts of eve %x and %x, of eva %x", eve.Salt, again.Salt, other.Salt)
	}
	if len(eve.Salt) != len(cem.Salt) || eve.Iterations != cem.Iterations {
		t.Errorf("eve's salt has %d bytes and %d rounds, cem's %d and %d", len(eve.Salt), eve.Iterations, len(cem.Salt), cem.Iterations)
	}
	none, err := Parse("users", nil)
	if err != nil || len(none.SCRAM("eve").Salt) != scramSalt || none.Verify("eve", "x") == nil {
		t.Errorf("an empty file: %v", err)
	}
}

func TestBadLinesAreNamed(t *testing.T) {
	good := NewHash("x")
	for name, tt := range map[string]struct{ line, want string }{
		"no colon":          {"ann", "want user:hash"},
		"no user":           {":" + good, "name is empty"},
		"a blank":           {"an n:" + good, "a blank"},
		"a plain password":  {"ann:secret", "no hash"},
		"crypt":             {"ann:$6$salt$hash", "no hash"},
		"argon2 cut":        {"ann:" + good[:40], "argon2id"},
		"argon2, old":       {"ann:" + strings.Replace(good, "v=19", "v=16", 1), "argon2id"},
		"argon2, unlimited": {"ann:" + strings.Replace(good, "m=19456", "m=4194304", 1), "costs more"},
		"argon2, time":      {"ann:" + strings.Replace(good, "t=2", "t=100000", 1), "costs more"},
		"argon2, nothing":   {"ann:" + strings.Replace(good, "p=1", "p=0", 1), "argon2id"},
		"bcrypt cut":        {"ann:$2b$10$abc", "$2b$cost$"},
		"bcrypt, dear":      {"ann:$2b$30$" + strings.Repeat("a", 53), "cost 30"},
		"SCRAM cut":         {"ann:SCRAM-SHA-256$4096:c2FsdA==", "SCRAM-SHA-256$"},
		"SCRAM, few rounds": {"ann:SCRAM-SHA-256$1:c2FsdA==$eA==:eA==", "SCRAM-SHA-256$"},
		"SCRAM, short keys": {"ann:SCRAM-SHA-256$4096:c2FsdA==$eA==:eA==", "SCRAM-SHA-256$"},
		"twice":             {"ann:" + good + "\nann:" + good, "password already"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("users", []byte("# first\n"+tt.line+"\n"))
			var bad *config.Error
			if !errors.As(err, &bad) || bad.Line < 2 || !strings.Contains(bad.Reason, tt.want) {
				t.Errorf("got %v, want a *Error of its line with %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), good) {
				t.Errorf("the error has a hash: %v", err)
			}
		})
	}
}

func TestChangeReplacesOneUsersLines(t *testing.T) {
	const before = "# accounts\nann:old\nbob:b\nann:old too\n#end"
	for name, tt := range map[string]struct {
		change Change
		known  bool
		want   string // with HASH for what is made
	}{
		"another password": {Change{User: "ann", Password: "x"}, true, "# accounts\nann:HASH\nbob:b\n#end\n"},
		"with SCRAM":       {Change{User: "ann", Password: "x", SCRAM: true}, true, "# accounts\nann:HASH\nann:KEYS\nbob:b\n#end\n"},
		"a new user":       {Change{User: "eve", Password: "x"}, false, "# accounts\nann:old\nbob:b\nann:old too\n#end\neve:HASH\n"},
		"removed":          {Change{User: "ann"}, true, "# accounts\nbob:b\n#end\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, known, err := tt.change.Apply([]byte(before))
			if err != nil || known != tt.known {
				t.Fatalf("got %v, known %v", err, known)
			}
			var lines []string
			for line := range strings.Lines(string(got)) {
				if i := strings.Index(line, ":$argon2id$"); i > 0 {
					line = line[:i] + ":HASH\n"
				}
				if i := strings.Index(line, ":SCRAM-SHA-256$"); i > 0 {
					line = line[:i] + ":KEYS\n"
				}
				lines = append(lines, line)
			}
			assert.Equal(t, strings.Join(lines, ""), tt.want)
		})
	}
	if _, _, err := (Change{User: "a:b", Password: "x"}).Apply(nil); err == nil {
		t.Error("a name with a colon was written")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file(f))
	f.Add("a:$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA\n")
	f.Add("a:SCRAM-SHA-256$4096:c2FsdA==$eA==:eA==\n:\n\x00:x\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse("users", []byte(text))
		if err != nil {
			return
		}
		for user, found := range a.users {
			if CheckUser(user) != nil || found.password == nil && found.scram == nil {
				t.Errorf("user %q was read", user)
			}
		}
		a.SCRAM("nobody")
	})
}
