package conf

import (
	"strings"
	"testing"
)

func TestExpiryOfEachThreadIsTold(t *testing.T) {
	conf, err := Parse("scheduler.conf", []byte(`smtp/slow.example
	expiry=5d command="a"
smtp/hard.example
	expiry=5d expiry2=1h command="a"
hold/*
	expiry=0s command="a"
smtp/*
	expiry=3d command="a"
`), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	in := "smtp slow.example\nsmtp hard.example\nsmtp x.example\nhold x\nnone x\nbad\n"
	if err := conf.PrintExpiry(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	want := "smtp slow.example 120h0m0s\nsmtp hard.example 1h0m0s\nsmtp x.example 72h0m0s\nhold x 0s\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
