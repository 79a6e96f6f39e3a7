package mailq

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
)

// FuzzParseRequest: any line is a request or none, and a request is written as one line
// that reads the same.
func FuzzParseRequest(f *testing.F) {
	for k := Auth; k <= JSONEvents; k++ {
		f.Add([]byte(k.String() + " a b"))
		f.Add([]byte(k.String()))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := ParseRequest(line)
		if err != nil {
			if !errors.Is(err, ErrRequest) {
				t.Fatal(err)
			}
			return
		}
		b := AppendRequest(nil, r)
		if bytes.Count(b, []byte{'\n'}) != 1 {
			t.Fatalf("not one line: %q", b)
		}
		if again, err := ParseRequest(b[:len(b)-1]); err != nil || again.Kind != r.Kind {
			t.Fatalf("got %+v, %v; want %+v", again, err, r)
		}
		if None.May(r.Kind) && r.Kind != Auth && r.Kind != Quit {
			t.Fatalf("%+v without a login", r)
		}
	})
}

// FuzzParseAuthFile: whatever the file has, no client gets in with a password that is not
// in it.
func FuzzParseAuthFile(f *testing.F) {
	f.Add([]byte(authText), "joe")
	f.Add([]byte("a:b:ALL:![::1] [IPv6.::]/0"), "a")
	f.Fuzz(func(t *testing.T, text []byte, user string) {
		a := ParseAuthFile(text)
		const challenge = "220 MAILQ-V2-CHALLENGE: 1"
		if a.Login(user, Authenticator(challenge, string(text)+"not this"), challenge, netip.MustParseAddr("192.0.2.1")) != None {
			t.Fatal("somebody got in")
		}
	})
}

// FuzzAppendEntry: whatever an entry has, it is one line of ten fields.
func FuzzAppendEntry(f *testing.F) {
	f.Add("D/1-7", "a@b", "retry in 1m", "->> 450 later\n<<- x\ty")
	f.Add(".", "", "\r", ".\n")
	f.Fuzz(func(t *testing.T, file, sender, state, answer string) {
		b := AppendEntry(nil, &Entry{File: file, Sender: sender, State: state, Answer: answer})
		if bytes.Count(b, []byte{'\n'}) != 1 || bytes.Count(b, []byte{'\t'}) != 9 || string(b) == ".\n" {
			t.Fatalf("not one line of ten fields: %q", b)
		}
	})
}
