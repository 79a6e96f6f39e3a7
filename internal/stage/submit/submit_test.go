package submit

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"zmailer/internal/run/assert"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// newPostOffice makes one that every user may reach.
func newPostOffice(t *testing.T) (string, *durable.OS) {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	disk := assert.Get(durable.NewOS(dir))(t)
	t.Cleanup(func() { disk.Close() })
	assert.Must(t, postoffice.Init(disk))
	return dir, disk
}

// list gives the names in a directory of the postoffice.
func list(t *testing.T, dir, sub string) []string {
	t.Helper()
	entries := assert.Get(os.ReadDir(filepath.Join(dir, sub)))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// only reads the one message in router/ after checking its name, mode and size (M1);
// the octets line is cut off.
func only(t *testing.T, dir string) string {
	t.Helper()
	names := list(t, dir, "router")
	if len(names) != 1 {
		t.Fatalf("router/ holds %q, want one message", names)
	}
	if left := list(t, dir, "public"); len(left) != 0 {
		t.Fatalf("public/ holds %q", left)
	}
	path := filepath.Join(dir, "router", names[0])
	info := assert.Get(os.Stat(path))(t)
	if got, want := names[0], strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10); got != want {
		t.Errorf("name %s, inode %s", got, want)
	}
	if info.Mode() != 0o700|os.ModeSticky {
		t.Errorf("mode %v, want 01700", info.Mode())
	}
	b := assert.Get(os.ReadFile(path))(t)
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	if want := fmt.Sprintf("comment octets %016d %08x", info.Size(), crc32.Checksum(rest, crc32.MakeTable(crc32.Castagnoli))); string(first) != want {
		t.Errorf("first line %q, want %q", first, want)
	}
	return string(rest)
}

func submitted(t *testing.T, c Config, in string) string {
	t.Helper()
	dir, _ := newPostOffice(t)
	c.PostOffice, c.In = dir, strings.NewReader(in)
	assert.Must(t, Run(t.Context(), c))
	return only(t, dir)
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.ExitCode()
	}
	return -1
}

// M1: the file in router/ has its inode's number for a name and the bytes that came in.
func TestMessageFileIsEnvelopeAndInput(t *testing.T) {
	for name, tt := range map[string]struct {
		c  Config
		in string
	}{
		"arguments": {Config{Recipients: []string{"a@b", "Joe <joe@x>, bond"}}, "Subject: x\n\nhi\n"},
		"everything": {Config{Recipients: []string{"a@b", "c@d"}, HasFrom: true, From: "Me <me@x>", FullName: "M. E.",
			Notify: "success,Delay", Return: "hdrs", EnvelopeID: "a+b=c d", BodyType: "8bitmime"}, "\nhi\n"},
		"null sender": {Config{Recipients: []string{"a@b"}, HasFrom: true, From: "<>"}, "\nhi\n"},
		"header": {Config{FromHeader: true},
			"From: me\nTo: a@b, \"X, Y\" <c@d>\nCC: bond (James)\nbcc: secret@x,\n\tother@x\nSubject: s\n\nBcc: stays here\n"},
		"header and arguments": {Config{FromHeader: true, Recipients: []string{"z@y"}}, "To: a@b\n\n"},
		"resent":               {Config{FromHeader: true}, "Resent-To: r@x\nResent-Bcc: b@x\nTo: a@b\nBcc: old@x\n\nhi\n"},
		"resent twice":         {Config{FromHeader: true}, "Resent-To: r@x\nResent-Cc: c@x\nResent-To: old@x\nReceived: y\nResent-Bcc: older@x\nTo: a@b\n\nhi\n"},
		"header with CRLF":     {Config{FromHeader: true}, "To: a@b\r\nBcc: s@x\r\n\r\nBcc: body@x\r\n"},
		"header without end":   {Config{FromHeader: true}, "To: a@b"},
		"header ends in text":  {Config{FromHeader: true}, "To: a@b\nno header\nTo: not@x\nBcc: stays@x\n"},
		"mbox line first":      {Config{FromHeader: true}, "From me Mon\nTo: a@b\n\nx\n"},
		"same recipient twice": {Config{FromHeader: true, Recipients: []string{"a@b", "a@b"}}, "To: A <a@b>\n\n"},
		"dot line":             {Config{Recipients: []string{"a"}}, "Subject: x\n\nhi\n.\nnot this\n"},
		"dot line kept":        {Config{Recipients: []string{"a"}, IgnoreDots: true}, "Subject: x\n\nhi\n.\nthis too\n"},
		"dot line in a header": {Config{FromHeader: true}, "To: a@b\n.\nBcc: c@d\n"},
		"empty":                {Config{Recipients: []string{"a"}}, ""},
		"not text":             {Config{Recipients: []string{"a"}}, "\x00\xff\r\rx\n\r\n\xfe no newline"},
		"not ASCII":            {Config{Recipients: []string{"jö@bücher.example"}, FullName: "Jö"}, "\nhi\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := submitted(t, tt.c, tt.in)
			if _, err := envelope.Read(strings.NewReader("comment x\n" + got)); err != nil {
				t.Errorf("it cannot be read back: %v", err)
			}
			file := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".golden")
			if *update {
				assert.Must(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want := assert.Get(os.ReadFile(file))(t)
			if got != string(want) {
				t.Errorf("got\n%q\nwant\n%q", got, want)
			}
		})
	}
}

// M1: however far a submitter came before it was killed, there is one message or none, and
// none that is not whole.
func TestKilledSubmitterLeavesOneMessageOrNone(t *testing.T) {
	body := strings.Repeat("0123456789abcde\n", 8<<10)
	for n := 0; ; n++ {
		dir, disk := newPostOffice(t)
		err := Run(t.Context(), Config{
			FS:         &troubled{FS: disk, before: killAfter(n)},
			Recipients: []string{"a@b"}, In: strings.NewReader("Subject: x\n\n" + body),
		})
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatalf("after %d operations: %v", n, err)
		}
		inRouter, inPublic := list(t, dir, "router"), list(t, dir, "public")
		if len(inRouter)+len(inPublic) > 1 {
			t.Fatalf("after %d operations: router/ %q, public/ %q", n, inRouter, inPublic)
		}
		if len(inRouter) == 1 && !strings.HasSuffix(only(t, dir), "\n\n"+body) {
			t.Fatalf("after %d operations: the message in router/ is not whole", n)
		}
		if err == nil {
			if len(inRouter) != 1 {
				t.Fatalf("accepted after %d operations, router/ %q", n, inRouter)
			}
			return
		}
	}
}

// M2: the submitter is told to try again, and nothing is left behind.
func TestStorageErrorGivesTempFailAndLeavesNothing(t *testing.T) {
	for _, op := range []string{"open", "write", "writeat", "chmod", "fsync", "rename"} {
		for _, errno := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EMFILE} {
			t.Run(op+" "+errno.Error(), func(t *testing.T) {
				dir, disk := newPostOffice(t)
				err := Run(t.Context(), Config{
					FS:         &troubled{FS: disk, before: failOn(op, errno)},
					Recipients: []string{"a@b"}, In: strings.NewReader(strings.Repeat("x", 100<<10)),
				})
				if got := exitCode(err); got != 75 {
					t.Errorf("exit code %d (%v), want 75", got, err)
				}
				if !errors.Is(err, errno) || !strings.Contains(err.Error(), "public/submit.") {
					t.Errorf("error %q names neither file nor reason", err)
				}
				if r, p := list(t, dir, "router"), list(t, dir, "public"); len(r)+len(p) != 0 {
					t.Errorf("left: router/ %q, public/ %q", r, p)
				}
			})
		}
	}
}

// M2 with sync=strict: the name may be lost with the power, so the answer is no.
func TestUnsyncedDirectoryIsNoAcceptance(t *testing.T) {
	dir, disk := newPostOffice(t)
	err := Run(t.Context(), Config{
		FS: &troubled{FS: disk, before: failOn("syncdir", unix.EIO)}, Strict: true,
		Recipients: []string{"a@b"}, In: strings.NewReader("\n"),
	})
	if got := exitCode(err); got != 75 {
		t.Errorf("exit code %d (%v), want 75", got, err)
	}
	if r, p := list(t, dir, "router"), list(t, dir, "public"); len(r)+len(p) != 0 {
		t.Errorf("left: router/ %q, public/ %q", r, p)
	}
}

func TestFaultsOfTheCallerHaveTheirExitCodes(t *testing.T) {
	for name, tt := range map[string]struct {
		c    Config
		in   io.Reader
		code int
		text string
	}{
		"no recipient":               {Config{}, strings.NewReader("To: a@b\n\n"), 64, "no recipient"},
		"no recipient in the header": {Config{FromHeader: true}, strings.NewReader("Subject: x\n\nTo: a@b\n"), 64, "To, Cc or Bcc"},
		"bad recipient":              {Config{Recipients: []string{"a@@b"}}, strings.NewReader("x\n"), 65, "a@@b"},
		"bad address in the header":  {Config{FromHeader: true}, strings.NewReader("Cc: a@@b, c@\n\n"), 65, "Cc"},
		"bad sender":                 {Config{Recipients: []string{"a"}, HasFrom: true, From: "x@"}, nil, 65, "-f"},
		"unreadable input":           {Config{Recipients: []string{"a"}}, failing{unix.EISDIR}, 66, "standard input"},
		"input's device fails":       {Config{Recipients: []string{"a"}}, failing{unix.EIO}, 74, "standard input"},
		"no postoffice":              {Config{Recipients: []string{"a"}, PostOffice: "/nonexistent"}, strings.NewReader(""), 78, "POSTOFFICE"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := newPostOffice(t)
			if tt.c.PostOffice == "" {
				tt.c.PostOffice = dir
			}
			tt.c.In = tt.in
			err := Run(t.Context(), tt.c)
			if got := exitCode(err); got != tt.code {
				t.Errorf("exit code %d (%v), want %d", got, err, tt.code)
			}
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %q does not say %q", err, tt.text)
			}
			if r, p := list(t, dir, "router"), list(t, dir, "public"); len(r)+len(p) != 0 {
				t.Errorf("left: router/ %q, public/ %q", r, p)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestEndlessHeaderIsRefused(t *testing.T) {
	dir, _ := newPostOffice(t)
	long := strings.NewReader("To: a@b\nX: " + strings.Repeat("x", envelope.MaxHeader))
	err := Run(t.Context(), Config{PostOffice: dir, FromHeader: true, In: long})
	if got := exitCode(err); got != 65 {
		t.Errorf("exit code %d (%v), want 65", got, err)
	}
}

// A17: a signal while the input has no end leaves nothing behind.
func TestInterruptedSubmitterLeavesNothing(t *testing.T) {
	dir, _ := newPostOffice(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{PostOffice: dir, Recipients: []string{"a@b"}, In: r})
	}()
	if _, err := w.Write([]byte("Subject: x\n\nhalf")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if got := exitCode(<-done); got != 75 {
		t.Errorf("exit code %d, want 75", got)
	}
	if r, p := list(t, dir, "router"), list(t, dir, "public"); len(r)+len(p) != 0 {
		t.Errorf("left: router/ %q, public/ %q", r, p)
	}
}

func TestVerboseSaysWhatIsDoneAndTheSpoolID(t *testing.T) {
	dir, _ := newPostOffice(t)
	var out, said bytes.Buffer
	err := Run(t.Context(), Config{PostOffice: dir, Recipients: []string{"a@b"}, In: strings.NewReader("\n"),
		Verbose: true, Out: &out, Err: &said})
	if err != nil {
		t.Fatal(err)
	}
	id, err := postoffice.ParseSpoolID(strings.TrimSuffix(out.String(), "\n"))
	if err != nil || list(t, dir, "router")[0] != strconv.FormatUint(id.Ino, 10) {
		t.Errorf("output %q, %v", out.String(), err)
	}
	for _, want := range []string{"recipient a@b", "writing public/submit.", "accepted as router/"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q does not say %q", said.String(), want)
		}
	}
}

// A message that is larger than MAXSIZE is refused, read no further, and leaves nothing.
func TestMessageThatIsTooLargeIsRefused(t *testing.T) {
	dir, _ := newPostOffice(t)
	endless := &counted{r: io.MultiReader(strings.NewReader("Subject: x\n\n"), zeros{})}
	err := Run(t.Context(), Config{PostOffice: dir, Recipients: []string{"a@b.example"}, In: endless, MaxSize: 1 << 20})
	refused := (*Error)(nil)
	if !errors.As(err, &refused) || refused.Code != exitDataErr {
		t.Errorf("got %v, want an *Error with code %d", err, exitDataErr)
	}
	if endless.n > 2<<20 {
		t.Errorf("it reads %d bytes", endless.n)
	}
	if got := list(t, dir, postoffice.Public); len(got) != 0 {
		t.Errorf("public/ has %q", got)
	}
	if err := Run(t.Context(), Config{PostOffice: dir, Recipients: []string{"a@b.example"}, In: strings.NewReader("Subject: x\n\nbody\n"), MaxSize: 1 << 20}); err != nil {
		t.Errorf("a small one: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = "x\n"[i%2]
	}
	return len(b), nil
}

type counted struct {
	r io.Reader
	n int
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += n
	return n, err
}
