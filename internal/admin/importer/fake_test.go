package importer

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"zmailer/internal/mail/envelope"
)

// fake is another system's queue: names and what stands under them.
type fake struct {
	names    []string
	messages map[string]*Message
	errs     map[string]error
	removed  []string
}

// newFake has n messages; every third is held, every fourth has two parts.
func newFake(n int) *fake {
	f := &fake{messages: map[string]*Message{}, errs: map[string]error{}}
	for i := range n {
		name := fmt.Sprintf("deferred/M%02d", i)
		l := &Message{Key: fmt.Sprintf("M%02d", i), Arrival: time.Unix(1_700_000_000+int64(i), 0),
			Write: func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "Subject: M%02d\n\nbody\n", i)
				return err
			}}
		l.Parts = []Part{{Sender: "s@old.example", EnvID: fmt.Sprintf("E%d", i), Ret: "HDRS",
			Recipients: []envelope.Recipient{{Address: fmt.Sprintf("r%d@far.example", i), DSN: "NOTIFY=DELAY"}}}}
		if i%3 == 2 {
			l.Parts[0].Held = "on hold"
		}
		if i%4 == 3 {
			l.Parts = append(l.Parts, Part{Recipients: []envelope.Recipient{{Address: fmt.Sprintf("q%d@far.example", i)}}})
		}
		f.names = append(f.names, name)
		f.messages[name] = l
	}
	return f
}

func (f *fake) List(context.Context) ([]Ref, error) {
	var list []Ref
	for _, n := range f.names {
		list = append(list, Ref{Name: n})
	}
	return list, nil
}

func (f *fake) Open(ref Ref) (*Message, error) {
	if err := f.errs[ref.Name]; err != nil {
		return nil, err
	}
	l := *f.messages[ref.Name]
	l.Parts = slices.Clone(l.Parts)
	return &l, nil
}

func (f *fake) Remove(ref Ref) error {
	f.names = slices.DeleteFunc(f.names, func(n string) bool { return n == ref.Name })
	f.removed = append(f.removed, strings.TrimPrefix(ref.Name, "deferred/"))
	return nil
}

func (f *fake) Programs() []string { return nil }
func (f *fake) Close() error       { return nil }
