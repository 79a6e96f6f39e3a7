package policy

import (
	"errors"
	"fmt"

	"go.starlark.net/starlark"
)

// Memory of one call. Every operation that may make something large, or may look through
// something large, pays for it before; small ones are bounded by the steps.
const (
	maxValue  = 1 << 20  // of one value with all that is in it, bytes about
	maxMemory = 64 << 20 // of all values that a call makes or looks through
	maxNested = 50       // lists in lists
	maxBits   = 8192     // of a number
)

// meter is what a call has left.
type meter struct{ left int64 }

const meterKey = "meter"

func meterOf(t *starlark.Thread) *meter {
	m, _ := t.Local(meterKey).(*meter)
	if m == nil {
		m = &meter{maxMemory}
	}
	return m
}

// pay takes n bytes.
func (m *meter) pay(n int64) error {
	if n < 0 || n > m.left {
		return fmt.Errorf("too much memory: a call may use %d MB in all", maxMemory>>20)
	}
	m.left -= n
	return nil
}

// use pays for looking through values.
func (m *meter) use(list ...starlark.Value) error {
	for _, v := range list {
		w, err := weigh(v)
		if err == nil {
			err = m.pay(w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var (
	errLarge  = fmt.Errorf("too large: a value may have %d kB with all that is in it", maxValue>>10)
	errNested = fmt.Errorf("nested too deep: more than %d lists in one another", maxNested)
	errBits   = errors.New("number too large")
)

// weigh is about how many bytes a value has if all that is in it is written out: what
// stands in it twice counts twice.
func weigh(v starlark.Value) (int64, error) {
	s := scale{}
	s.add(v, 0)
	return s.sum, s.err
}

type scale struct {
	sum int64
	err error
}

func (s *scale) more(n int64) {
	if s.sum += n; s.sum > maxValue && s.err == nil {
		s.err = errLarge
	}
}

func (s *scale) add(v starlark.Value, depth int) {
	if depth > maxNested && s.err == nil {
		s.err = errNested
	}
	s.more(16)
	if s.err != nil {
		return
	}
	switch v := v.(type) {
	case starlark.String:
		s.more(int64(len(v)))
	case starlark.Bytes:
		s.more(int64(len(v)))
	case starlark.Int:
		if _, small := v.Int64(); !small {
			s.more(int64(v.BigInt().BitLen() / 8))
		}
	case starlark.Tuple:
		for i := 0; i < len(v) && s.err == nil; i++ {
			s.add(v[i], depth+1)
		}
	case *starlark.List:
		for i := 0; i < v.Len() && s.err == nil; i++ {
			s.add(v.Index(i), depth+1)
		}
	case *starlark.Dict:
		s.dict(v, depth)
	case starlark.Iterable:
		s.iterable(v, depth)
	}
}

func (s *scale) dict(d *starlark.Dict, depth int) {
	if d.Len() > maxValue/32 {
		s.more(maxValue + 1)
		return
	}
	for _, item := range d.Items() {
		if s.err != nil {
			return
		}
		s.add(item[0], depth+1)
		s.add(item[1], depth+1)
	}
}

func (s *scale) iterable(v starlark.Iterable, depth int) {
	set, ok := v.(*starlark.Set)
	if !ok {
		// A range, or the letters of a string. What does not know its length is not
		// offered to programs.
		n := starlark.Len(v)
		if n < 0 || n > maxValue/16 {
			n = maxValue/16 + 1
		}
		s.more(16 * int64(n))
		return
	}
	it := set.Iterate()
	defer it.Done()
	var e starlark.Value
	for s.err == nil && it.Next(&e) {
		s.add(e, depth+1)
	}
}

// shallow is a value's own size, without what is in it.
func shallow(v starlark.Value) int64 {
	switch v := v.(type) {
	case starlark.String:
		return 16 + int64(len(v))
	case starlark.Bytes:
		return 16 + int64(len(v))
	}
	if n := starlark.Len(v); n > 0 {
		return 16 + 16*int64(n)
	}
	return 16
}

// fits refuses a result that is too large, and pays for it.
func (m *meter) fits(n int64) error {
	if n < 0 || n > maxValue {
		return errLarge
	}
	return m.pay(n)
}
