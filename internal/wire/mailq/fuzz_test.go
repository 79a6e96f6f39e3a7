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
	for _, k := range Kinds() {
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

// FuzzParseAuthFile: whatever stands in it, nobody gets in with a password that does
// not stand there.
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

// FuzzParseEntry: what a server says is read without harm, and what is read is written
// as one line.
func FuzzParseEntry(f *testing.F) {
	f.Add("D/1-7\t0\t<a@b>\t120\t1\t2\t3\t4\tretry in 1m\t->> 450 later\r<<- x")
	f.Add(".\t\t\t")
	f.Fuzz(func(t *testing.T, line string) {
		ParseThreads2(line)
		e, ok := ParseEntry(line)
		if !ok {
			return
		}
		b := AppendEntry(nil, &e)
		if bytes.Count(b, []byte{'\n'}) != 1 || b[0] == '.' && b[1] == '\n' {
			t.Fatalf("not one line: %q", b)
		}
	})
}
