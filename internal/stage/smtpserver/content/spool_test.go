package content

import (
	"errors"
	"io"
	"strings"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// office returns a postoffice of the test, with how many drafts were made in it.
func office(t testing.TB) (create func() (File, error), left func() int) {
	t.Helper()
	disk := assert.Get(durable.NewOS(t.TempDir()))(t)
	t.Cleanup(func() { _ = disk.Close() }) // nothing was written through it
	assert.Must(t, postoffice.Init(disk))
	po := assert.Get(postoffice.Open(postoffice.Config{FS: disk}))(t)
	create = func() (File, error) { return po.Submissions.NewDraft("held") }
	return create, func() int {
		names := assert.Get(disk.ReadDir(postoffice.Public))(t)
		return len(names)
	}
}

func TestContentIsReadAsItWasWritten(t *testing.T) {
	for _, size := range []int{0, 1, 1000, Memory - 1, Memory, Memory + 1, 3*Memory + 17} {
		for _, piece := range []int{7, 4096, Memory + 5} {
			create, left := office(t)
			c := NewSpool(create)
			want := strings.Repeat("0123456789abcde\n", size/16+1)[:size]
			for rest := want; rest != ""; {
				n := min(piece, len(rest))
				assert.Get(io.WriteString(c, rest[:n]))(t)
				rest = rest[n:]
			}
			assert.Equal(t, c.Size(), int64(size))
			for _, off := range []int{0, size / 2, size} {
				r := assert.Get(c.From(int64(off)))(t)
				got, err := io.ReadAll(r)
				if err != nil || string(got) != want[off:] {
					t.Errorf("%d bytes in pieces of %d from %d: %d bytes, %v", size, piece, off, len(got), err)
				}
				var b strings.Builder
				if err := c.CopyTo(&b, int64(off)); err != nil || b.String() != want[off:] {
					t.Errorf("%d bytes copied from %d: %d bytes, %v", size, off, b.Len(), err)
				}
			}
			assert.Equal(t, left() > 0, size > Memory, "%d bytes: presence of the file", size)
			assert.Must(t, c.Close())
			assert.Equal(t, left(), 0)
			if _, err := c.From(0); err == nil {
				t.Error("it can be read when it is closed")
			}
		}
	}
}

func TestHeaderEndsAtTheFirstEmptyLine(t *testing.T) {
	big := strings.Repeat("x", 2*Memory)
	for name, tt := range map[string]struct {
		text   string
		fields int
		length int
		empty  bool
		err    error
	}{
		"plain":                    {"a: b\nc: d\n\nbody\n\n", 2, 11, true, nil},
		"no body":                  {"a: b\n\n", 1, 6, true, nil},
		"no empty line":            {"a: b\n", 1, 5, false, nil},
		"no line end":              {"a: b", 1, 4, false, nil},
		"no header":                {"\nbody", 0, 1, true, nil},
		"nothing":                  {"", 0, 0, false, nil},
		"a CR is no line end":      {"a: b\n\r\nbody", 3, 11, false, nil},
		"in a file":                {"a: " + big + "\n\nbody", 1, 2*Memory + 5, true, nil},
		"long body":                {"a: b\n\n" + big, 1, 6, true, nil},
		"as long as may be":        {strings.Repeat("x", MaxHeader-2) + "\n\nbody", 1, MaxHeader, true, nil},
		"one byte more":            {strings.Repeat("x", MaxHeader-1) + "\n\nbody", 0, 0, false, ErrHeader},
		"as many fields as may be": {strings.Repeat("a:\n", MaxFields) + "\n", MaxFields, 3*MaxFields + 1, true, nil},
		"one field more":           {strings.Repeat("a:\n", MaxFields+1) + "\n", 0, 0, false, ErrHeader},
		"many lines of one":        {"a:\n" + strings.Repeat(" b\n", 2*MaxFields) + "\n", 1, 6*MaxFields + 4, true, nil},
		"never ending":             {strings.Repeat("x", 3*MaxHeader), 0, 0, false, ErrHeader},
	} {
		t.Run(name, func(t *testing.T) {
			create, _ := office(t)
			c := NewSpool(create)
			defer c.Close()
			assert.Get(io.WriteString(c, tt.text))(t)
			h, err := c.header()
			if !errors.Is(err, tt.err) || len(h.fields) != tt.fields || h.length != int64(tt.length) || h.empty != tt.empty {
				t.Errorf("got %d fields, %d bytes, %v, %v", len(h.fields), h.length, h.empty, err)
			}
		})
	}
}

func TestErrorOfTheFileStays(t *testing.T) {
	full := errors.New("disk full")
	c := NewSpool(func() (File, error) { return nil, full })
	assert.Get(io.WriteString(c, strings.Repeat("x", Memory)))(t)
	for range 2 {
		if _, err := io.WriteString(c, "x"); !errors.Is(err, full) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := c.header(); !errors.Is(err, full) {
		t.Errorf("head: %v", err)
	}
	if _, err := c.From(0); !errors.Is(err, full) {
		t.Errorf("reading: %v", err)
	}
	assert.NoError(t, c.Close())
}
