package act

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// Operation is one entry of the log of operations.
type Operation struct {
	ID       postoffice.OperationID `json:"order"`
	Time     time.Time              `json:"time"`
	Who      string                 `json:"who"`
	Verb     string                 `json:"verb"`
	Selector string                 `json:"selector"`
	Reason   string                 `json:"reason,omitempty"`
	Until    string                 `json:"until,omitempty"`
	Flags    string                 `json:"flags,omitempty"` // silent, report, failed, told
	Messages int                    `json:"messages"`
	Undone   string                 `json:"undone,omitempty"` // when, by whom
	// Suspensions are the lines of those that it has ended.
	Suspensions []string `json:"suspensions,omitempty"`
}

// fields returns the lines of the head of a file, with their words.
func (o *Operation) fields() (words []string, values []*string) {
	return []string{"who", "verb", "selector", "reason", "until", "flags"}, []*string{&o.Who, &o.Verb, &o.Selector, &o.Reason, &o.Until, &o.Flags}
}

// bytes returns the head of the file: a line for each field, and an empty one.
func (o *Operation) bytes() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "time %s\n", o.Time.Format(time.RFC3339Nano))
	words, values := o.fields()
	for i, v := range values {
		if *v != "" {
			fmt.Fprintf(&b, "%s %s\n", words[i], human.Clean(view.OneLine(*v)))
		}
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func (o *Operation) set(word, value string) {
	if word == "time" {
		if t, err := time.Parse(time.RFC3339, value); err == nil {
			o.Time = t
		}
		return
	}
	words, values := o.fields()
	if i := slices.Index(words, word); i >= 0 {
		*values[i] = value
	}
}

// Undoable reports whether the verb of an operation can be undone.
func (o *Operation) Undoable() bool { return o.UndoDoes() != "" }

// UndoDoes returns what undoing an operation does; "": it cannot be undone.
func (o *Operation) UndoDoes() string {
	for _, v := range append(suspensionVerbs(), VerbOf(o.Verb)) {
		if v != nil && v.Name == o.Verb {
			return v.Undo
		}
	}
	return ""
}

// OfMessages reports whether the operation is about messages: others are about what is
// suspended.
func (o *Operation) OfMessages() bool {
	return !slices.ContainsFunc(suspensionVerbs(), func(v *Verb) bool { return v.Name == o.Verb })
}

// ReadOperation reads the file of an operation, and calls fn, unless it is nil, with each
// spool ID in it. postoffice.ErrGone: there is none.
func ReadOperation(po *postoffice.PostOffice, id postoffice.OperationID, fn func(id string) error) (*Operation, error) {
	f, err := po.Operations.Open(id)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	o := &Operation{ID: id, Time: id.Time(), Verb: id.Verb()}
	r := bufio.NewReader(f)
	body := false
	for {
		line, err := r.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return o, fmt.Errorf("read order %s: %w", id, err)
		}
		text, whole := strings.CutSuffix(line, "\n")
		word, value, _ := strings.Cut(text, " ")
		switch {
		case !whole || err != nil: // torn, or the end
			return o, nil
		case !body && text == "":
			body = true
		case !body:
			o.set(word, value)
		case word == "undone":
			o.Undone = value
		case word == suspensionWord:
			o.Suspensions = append(o.Suspensions, value)
		default:
			if _, err := postoffice.ParseSpoolID(word); err != nil {
				continue
			}
			o.Messages++
			if fn != nil {
				if err := fn(word); err != nil {
					return o, err
				}
			}
		}
	}
}

// Operations calls fn with each operation of the log, the oldest first, or with newest the
// newest first. What cannot be read is in the error.
func Operations(po *postoffice.PostOffice, newest bool, fn func(*Operation) error) error {
	list, err := po.Operations.List()
	if newest {
		slices.Reverse(list)
	}
	errs := []error{err}
	for _, id := range list {
		o, err := ReadOperation(po, id, nil)
		switch {
		case errors.Is(err, postoffice.ErrGone):
		case err != nil:
			errs = append(errs, err)
		default:
			if err := fn(o); err != nil {
				return err
			}
		}
	}
	return errors.Join(errs...)
}

// LastOperation returns the last one that was not undone; nil if there is none.
func LastOperation(po *postoffice.PostOffice) (last *Operation, err error) {
	enough := errors.New("enough")
	err = Operations(po, true, func(o *Operation) error {
		if last != nil && o.ID.Time().Before(last.Time.Add(-time.Minute)) {
			return enough // names have whole seconds or less; the file is more precise
		}
		if o.Undone == "" && (last == nil || o.Time.After(last.Time)) {
			last = o
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return last, err
}
