package report

import (
	"io"
	"os"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func FuzzRequested(f *testing.F) {
	f.Add("NOTIFY=SUCCESS,FAILURE,DELAY ORCPT=rfc822;Orig+2BUser@a.example.com")
	f.Add("NOTIFY=NEVER")
	f.Fuzz(func(t *testing.T, s string) {
		w := Requested(s, func(v string) (string, error) { return v, nil })
		upper := strings.ToUpper(s)
		if !strings.Contains(upper, "NOTIFY=") && (w.Success || !w.Failure || !w.Delay) {
			t.Errorf("%q: got %+v, want the defaults", s, w)
		}
		// Silence must have been asked for.
		if !w.Success && !w.Failure && !w.Delay && !strings.Contains(upper, "NEVER") {
			t.Errorf("%q: nothing is ever reported", s)
		}
	})
}

func TestFirstReceivedFieldNamesTheHost(t *testing.T) {
	for value, want := range map[string]string{"by mx": "", "from": "", "from x": "x", "from x\tby y": "x", "from x (unclosed": "x", "from  x (a) by y": "x (a)"} {
		assert.Equal(t, receivedFrom(value), want, value)
	}
}

func TestSurveySeesWhatMayNotBeSent(t *testing.T) {
	line := strings.Repeat("x", 998)
	for text, want := range map[string]shape{
		"": {}, "a\nb": {}, line + "\n" + line: {}, line + "x": {odd: true}, "\x00": {odd: true}, "a\r\n": {odd: true},
		"\xff": {eight: true}, strings.Repeat("\n", 40<<10) + line + "y\n\xff": {eight: true, odd: true},
	} {
		if got, err := survey(strings.NewReader(text)); err != nil || got != want {
			t.Errorf("%.20q: got %+v %v, want %+v", text, got, err, want)
		}
	}
	if _, err := survey(io.MultiReader(strings.NewReader("x"), badReader{})); err == nil {
		t.Error("an error of the disk is not told")
	}
}

type badReader struct{}

func (badReader) Read([]byte) (int, error) { return 0, os.ErrInvalid }
