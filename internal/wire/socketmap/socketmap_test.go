package socketmap

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestAnswersAreTakenWholeOrNotAtAll(t *testing.T) {
	tests := map[string]struct {
		sent string
		want Reply
		err  error // nil: it is an answer
	}{
		"found":                     {"6:OK a,b,", Reply{OK, "a,b"}, nil},
		"found, nothing behind":     {"3:OK ,", Reply{OK, ""}, nil},
		"not found":                 {"9:NOTFOUND ,", Reply{NotFound, ""}, nil},
		"not found without a blank": {"8:NOTFOUND,", Reply{NotFound, ""}, nil},
		"told failure":              {"9:TEMP down,", Reply{Temp, "down"}, nil},
		"time limit of the server":  {"8:TIMEOUT ,", Reply{Timeout, ""}, nil},
		"told for ever":             {"6:PERM x,", Reply{Perm, "x"}, nil},
		"nothing":                   {"", Reply{}, io.ErrUnexpectedEOF},
		"killed in the length":      {"1", Reply{}, io.ErrUnexpectedEOF},
		"killed in the text":        {"9:NOTFO", Reply{}, io.ErrUnexpectedEOF},
		"killed before the comma":   {"9:NOTFOUND ", Reply{}, io.ErrUnexpectedEOF},
		"no comma":                  {"8:NOTFOUND ,", Reply{}, ErrProtocol},
		"another protocol":          {"220 mx ESMTP\r\n", Reply{}, ErrProtocol},
		"unknown word":              {"6:MAYBE ,", Reply{}, ErrProtocol},
		"lower case":                {"9:notfound ,", Reply{}, ErrProtocol},
		"no length":                 {":,", Reply{}, ErrProtocol},
		"zero before the length":    {"09:NOTFOUND ,", Reply{}, ErrProtocol},
		"huge length":               {"99999999999999999999:", Reply{}, ErrProtocol},
		"two answers":               {"9:NOTFOUND ,4:OK x,", Reply{}, ErrProtocol},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var asked bytes.Buffer
			got, err := Ask(bufio.NewReader(strings.NewReader(tt.sent)), &asked, "aliases", "bond")
			if !errors.Is(err, tt.err) || err == nil && got != tt.want {
				t.Errorf("got %+v, %v, want %+v, %v", got, err, tt.want, tt.err)
			}
			assert.Equal(t, asked.String(), "12:aliases bond,", "asked")
		})
	}
}

func TestServerAnswersWhatItsClientAsks(t *testing.T) {
	client, server := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(server, server, func(name, key string) Reply {
			if key == "long" {
				return Reply{OK, strings.Repeat("x", MaxLength)}
			}
			return Reply{OK, name + "/" + key}
		})
	}()
	in := bufio.NewReader(client)
	for key, want := range map[string]Reply{
		"bond":    {OK, "aliases/bond"},
		"a b\n,:": {OK, "aliases/a b\n,:"},
		"":        {OK, "aliases/"},
		"long":    {Temp, "the value has 1048576 bytes; an answer takes 1048576"},
	} {
		if got, err := Ask(in, client, "aliases", key); got != want || err != nil {
			t.Errorf("%q: got %.50v, %v, want %.50v", key, got, err, want)
		}
	}
	assert.Must(t, Write(client, "noblank"))
	if text, err := Read(in); !strings.HasPrefix(text, "PERM ") || err != nil {
		t.Errorf("request without a blank: got %q, %v", text, err)
	}
	client.Close()
	if err := <-ended; err != nil {
		t.Errorf("the client has ended: got %v, want no error", err)
	}
}

func FuzzReadOfWhatWasWritten(f *testing.F) {
	f.Add("OK x", []byte("4:OK x,"))
	f.Add("", []byte("0:,1:"))
	f.Fuzz(func(t *testing.T, text string, raw []byte) {
		var b bytes.Buffer
		assert.Must(t, Write(&b, text))
		if got, err := Read(bufio.NewReader(&b)); err != nil || got != text {
			t.Fatalf("got %q, %v, want %q", got, err, text)
		}
		got, err := Read(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		// There is one way to write a netstring.
		var again bytes.Buffer
		if err := Write(&again, got); err != nil || !bytes.HasPrefix(raw, again.Bytes()) {
			t.Fatalf("%q was read from %q", got, raw)
		}
	})
}
