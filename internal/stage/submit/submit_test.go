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

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// newPostOffice makes one that every user may reach. Operations on its disk fail as a test
// wants.
func newPostOffice(t *testing.T) (string, *faultfs.FS) {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	disk := assert.Get(durable.NewOS(dir))(t)
	t.Cleanup(func() { disk.Close() })
	faulty := faultfs.New(disk)
	assert.Must(t, postoffice.Init(faulty))
	return dir, faulty
}

// list returns the names in a directory of the postoffice.
func list(t *testing.T, dir, sub string) (names []string) {
	t.Helper()
	for _, e := range assert.Get(os.ReadDir(filepath.Join(dir, sub)))(t) {
		names = append(names, e.Name())
	}
	return names
}

// nothing checks that no file of a submitter is left.
func nothing(t *testing.T, dir string) {
	t.Helper()
	if r, p := list(t, dir, "router"), list(t, dir, "public"); len(r)+len(p) != 0 {
		t.Errorf("left: router/ %q, public/ %q", r, p)
	}
}

// stored returns the messages in router/, without their octets lines.
func stored(t *testing.T, dir string) (texts []string) {
	t.Helper()
	for _, name := range list(t, dir, "router") {
		_, text, _ := strings.Cut(string(assert.Get(os.ReadFile(filepath.Join(dir, "router", name)))(t)), "\n")
		texts = append(texts, text)
	}
	return texts
}

// only reads the one message in router/ after checking its name, mode and size (M1);
// the octets line is cut off.
func only(t *testing.T, dir string) string {
	t.Helper()
	names := list(t, dir, "router")
	if len(names) != 1 || len(list(t, dir, "public")) > 0 {
		t.Fatalf("router/ holds %q, public/ %q, want one message", names, list(t, dir, "public"))
	}
	path := filepath.Join(dir, "router", names[0])
	info := assert.Get(os.Stat(path))(t)
	assert.Equal(t, names[0], strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10))
	assert.Equal(t, info.Mode(), 0o700|os.ModeSticky)
	first, rest, _ := bytes.Cut(assert.Get(os.ReadFile(path))(t), []byte("\n"))
	assert.Equal(t, string(first), fmt.Sprintf("comment octets %016d %08x", info.Size(), crc32.Checksum(rest, crc32.MakeTable(crc32.Castagnoli))))
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
			assert.Equal(t, got, string(want))
		})
	}
}

var errKilled = errors.New("killed")

// M1: however far a submitter came before it was killed, there is one message or none, and
// none that is not whole.
func TestKilledSubmitterLeavesOneMessageOrNone(t *testing.T) {
	body := strings.Repeat("0123456789abcde\n", 8<<10)
	for n := 0; ; n++ {
		dir, disk := newPostOffice(t)
		left := n
		kill := func(string) error {
			if left--; left < 0 {
				return errKilled
			}
			return nil
		}
		disk.On(faultfs.Any, "*", faultfs.Always, kill)
		disk.On(faultfs.Any, "*/*", faultfs.Always, kill)
		err := Run(t.Context(), Config{FS: disk, Recipients: []string{"a@b"}, In: strings.NewReader("Subject: x\n\n" + body)})
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
			assert.Equal(t, len(inRouter), 1)
			return
		}
	}
}

// M2: the submitter has to try again, and nothing is left behind; with sync=strict also if
// the name may be lost with the power.
func TestStorageErrorGivesTempFailAndLeavesNothing(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.Open, faultfs.Write, faultfs.WriteAt, faultfs.Chmod, faultfs.Sync, faultfs.Rename, faultfs.SyncDir} {
		for _, errno := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EMFILE} {
			dir, disk := newPostOffice(t)
			glob := "*/*"
			if op == faultfs.SyncDir {
				glob = "*"
			}
			disk.Fail(op, glob, errno, faultfs.Always)
			err := Run(t.Context(), Config{FS: disk, Strict: op == faultfs.SyncDir, Recipients: []string{"a@b"}, In: strings.NewReader(strings.Repeat("x", 100<<10))})
			assert.Equal(t, exitCode(err), 75, "%s %v: exit code of %v", op, errno, err)
			if !errors.Is(err, errno) {
				t.Errorf("%s %v: got %v", op, errno, err)
			}
			nothing(t, dir)
		}
	}
}

func TestFaultsOfTheCallerHaveTheirExitCodes(t *testing.T) {
	for name, tt := range map[string]struct {
		c    Config
		in   io.Reader
		code int
	}{
		"no recipient":               {Config{}, strings.NewReader("To: a@b\n\n"), 64},
		"no recipient in the header": {Config{FromHeader: true}, strings.NewReader("Subject: x\n\nTo: a@b\n"), 64},
		"bad recipient":              {Config{Recipients: []string{"a@@b"}}, strings.NewReader("x\n"), 65},
		"bad address in the header":  {Config{FromHeader: true}, strings.NewReader("Cc: a@@b, c@\n\n"), 65},
		"bad sender":                 {Config{Recipients: []string{"a"}, HasFrom: true, From: "x@"}, nil, 65},
		"unreadable input":           {Config{Recipients: []string{"a"}}, failing{unix.EISDIR}, 66},
		"input's device fails":       {Config{Recipients: []string{"a"}}, failing{unix.EIO}, 74},
		"no postoffice":              {Config{Recipients: []string{"a"}, PostOffice: "/nonexistent"}, strings.NewReader(""), 78},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := newPostOffice(t)
			if tt.c.PostOffice == "" {
				tt.c.PostOffice = dir
			}
			tt.c.In = tt.in
			err := Run(t.Context(), tt.c)
			assert.Equal(t, exitCode(err), tt.code, "exit code of %v", err)
			nothing(t, dir)
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestEndlessHeaderIsRefused(t *testing.T) {
	dir, _ := newPostOffice(t)
	long := strings.NewReader("To: a@b\nX: " + strings.Repeat("x", envelope.MaxHeader))
	err := Run(t.Context(), Config{PostOffice: dir, FromHeader: true, In: long})
	assert.Equal(t, exitCode(err), 65, "exit code of %v", err)
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
	assert.Get(w.Write([]byte("Subject: x\n\nhalf")))(t)
	cancel()
	assert.Equal(t, exitCode(<-done), 75)
	nothing(t, dir)
}

func TestVerboseSaysWhatIsDoneAndTheSpoolID(t *testing.T) {
	dir, _ := newPostOffice(t)
	var out, said bytes.Buffer
	err := Run(t.Context(), Config{PostOffice: dir, Recipients: []string{"a@b"}, In: strings.NewReader("\n"),
		Verbose: true, Out: &out, Err: &said})
	assert.Must(t, err)
	id, err := postoffice.ParseSpoolID(strings.TrimSuffix(out.String(), "\n"))
	if err != nil || list(t, dir, "router")[0] != strconv.FormatUint(id.Ino, 10) {
		t.Errorf("output %q, %v", out.String(), err)
	}
	assert.Contains(t, said.String(), "router/")
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
