package logread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// The letters are those that bytes.ToLower changes in ASCII, and no others.
func FuzzLower(f *testing.F) {
	f.Add([]byte("@AZ[`az{\x7f\x80\xc3\x89\xffABCDEFGHIJKLMNOPQRSTUVWXYZ"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := lower([]byte("x"), b)
		for i, c := range b {
			want := c
			if 'A' <= c && c <= 'Z' {
				want += 'a' - 'A'
			}
			if got[0] != 'x' || got[i+1] != want {
				t.Fatalf("byte %d of %q: got %q", i, b, got)
			}
		}
	})
}

// Lines come once, whole and in their order, wherever a chunk of the file ends.
func TestScannedLinesComeOnceAndInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var text, want bytes.Buffer
	for i := 0; text.Len() < 5*chunkSize; i++ {
		line := fmt.Sprintf("%d %s", i, strings.Repeat("x", r.IntN(3000)))
		if i%7 == 0 {
			line += " Needle id=S1A" + fmt.Sprint(i)
			fmt.Fprintln(&want, line)
		}
		fmt.Fprintln(&text, line)
	}
	path := filepath.Join(t.TempDir(), "log")
	assert.Must(t, os.WriteFile(path, text.Bytes(), 0o600))
	var got bytes.Buffer
	assert.Must(t, ScanFiles(context.Background(), []string{path}, 0, Containing("nEEdle"), func(line []byte) error {
		fmt.Fprintf(&got, "%s\n", line)
		return nil
	}))
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes, want %d", got.Len(), want.Len())
	}
	var ids []string
	assert.Must(t, ScanFiles(context.Background(), []string{path}, 0, About([]string{"S1A7", "S1A70"}), func(line []byte) error {
		ids = append(ids, string(line[bytes.LastIndexByte(line, '=')+1:]))
		return nil
	}))
	assert.Equal(t, strings.Join(ids, " "), "S1A7 S1A70")
	stop := errors.New("enough")
	err := ScanFiles(context.Background(), []string{path}, 0, Containing("needle"), func([]byte) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}
