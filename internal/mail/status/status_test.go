package status

import (
	"testing"

	"zmailer/internal/run/assert"
)

func TestUnknownOutcomeIsTemporary(t *testing.T) {
	var o Outcome
	if o != Deferred || o.String() != "deferred" {
		t.Errorf("the zero value is %v", o)
	}
	for o, want := range map[Outcome]string{Deferred: "deferred", Failed: "failed", Delivered: "delivered", 77: "deferred"} {
		assert.Equal(t, o.String(), want, "%v", o)
	}
	for c, want := range map[Code]Outcome{
		{}: Deferred, OK: Delivered, BadMailbox: Failed, MailboxFull: Deferred, Expired: Deferred, {3, 0, 0}: Deferred, {7, 1, 1}: Deferred,
	} {
		assert.Equal(t, c.Outcome(), want, "%v", c)
	}
}

// RFC 3463 §2
func TestCodesAreParsed(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Code
		ok   bool
	}{
		"delivered":        {"2.1.5", Code{2, 1, 5}, true},
		"deferred":         {"4.4.7", Code{4, 4, 7}, true},
		"failed":           {"5.1.1", BadMailbox, true},
		"three digits":     {"5.999.999", Code{5, 999, 999}, true},
		"zeros":            {"4.0.0", Code{4, 0, 0}, true},
		"four digits":      {"5.1000.1", Code{}, false},
		"no such class":    {"3.1.1", Code{}, false},
		"class zero":       {"0.0.0", Code{}, false},
		"two-digit class":  {"55.1.1", Code{}, false},
		"two numbers":      {"5.1", Code{}, false},
		"four numbers":     {"5.1.1.1", Code{}, false},
		"empty subject":    {"5..1", Code{}, false},
		"empty detail":     {"5.1.", Code{}, false},
		"signed":           {"5.+1.1", Code{}, false},
		"letters":          {"5.x.1", Code{}, false},
		"something behind": {"5.1.1 no", Code{}, false},
		"blank before":     {" 5.1.1", Code{}, false},
		"nothing":          {"", Code{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := Parse(c.text)
			if got != c.want || ok != c.ok {
				t.Errorf("Parse(%q) = %v, %v; want %v, %v", c.text, got, ok, c.want, c.ok)
			}
			if ok && got.String() != c.text {
				t.Errorf("written as %q", got)
			}
			if got.IsZero() == ok {
				t.Errorf("IsZero() = %v", got.IsZero())
			}
		})
	}
}

// RFC 2034 §4: the code's class is the reply's.
func TestReplyGivesACodeOfItsOwnClass(t *testing.T) {
	for name, c := range map[string]struct {
		reply int
		text  string
		want  Code
	}{
		"enhanced":               {550, "5.1.1 no such user", BadMailbox},
		"enhanced alone":         {250, "2.1.5", Code{2, 1, 5}},
		"plain":                  {550, "no such user", Code{Class: 5}},
		"plain success":          {250, "ok", Code{Class: 2}},
		"plain deferral":         {451, "later", Code{Class: 4}},
		"another class":          {450, "5.1.1 no such user", Code{Class: 4}},
		"failure called success": {554, "2.0.0 fine", Code{Class: 5}},
		"not at the start":       {550, "user 5.1.1", Code{Class: 5}},
		"bad code":               {550, "5.1 x", Code{Class: 5}},
		"intermediate":           {354, "go ahead", Code{Class: 4}},
		"no reply":               {0, "", Code{Class: 4}},
		"out of range":           {999, "9.9.9 x", Code{Class: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, OfReply(c.reply, c.text), c.want)
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"5.1.1", "4.0.0", "2.999.999", "5.01.1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, ok := Parse(s)
		if !ok {
			return
		}
		if again, ok := Parse(c.String()); !ok || again != c {
			t.Errorf("%q is %v, read again %v, %v", s, c, again, ok)
		}
	})
}
