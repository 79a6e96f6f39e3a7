package exim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/admin/importer"
	"zmailer/internal/run/assert"
	"zmailer/test/importertest"
)

const id = "1rABCD-000001-Xy"

// headFile is ID-H with these options, tree and recipients.
func headFile(options, tree, recipients string) string {
	return id + "-H\nbob 1000 1000\n<s@x.example>\n1700000000 0\n" + options + tree + recipients +
		"\n018  Subject: a header\n012* Bcc: secret\n023T To: you@y.example,\n me\n"
}

func TestHeadIsReadAsEximDoes(t *testing.T) {
	const orcpt = "rfc822;o@y.example"
	text := headFile("-received_time_usec .250000\n--helo_name there\n-aclm 0 7\nab\ncd\nx\n-dsn_envid E+2B\n-dsn_ret 2\n-spool_file_wireformat\n",
		"YN done@y.example\nNN child@Z.example\n",
		"6\nplain@y.example\ndone@Y.example\nwith@y.example "+orcpt+" 18,24  0,-1#3\nonce@y.example err@y.example 13,2#1\nold@y.example 3\nspaces here@y.example  0,4  0,-1#3\n")
	h, err := parseHead(id, []byte(text))
	assert.Must(t, err)
	p := h.part()
	var got []string
	for _, r := range p.Recipients {
		got = append(got, r.Address+" "+r.DSN)
	}
	want := []string{"plain@y.example ", "with@y.example NOTIFY=FAILURE,DELAY ORCPT=" + orcpt, "once@y.example ", "old@y.example ", "spaces here@y.example NOTIFY=SUCCESS"}
	assert.Same(t, got, want, "recipients")
	if p.Sender != "s@x.example" || p.EnvID != "E+2B" || p.Ret != "HDRS" || !h.wire || h.arrival.UnixMicro() != 1_700_000_000_250_000 {
		t.Errorf("got %+v of %+v", p, h)
	}
	if want := "Subject: a header\nTo: you@y.example,\n me\n"; string(h.header) != want {
		t.Errorf("header %q, want %q", h.header, want)
	}
	if n := h.notes(); len(n) != 1 || !strings.HasSuffix(n[0], ": 1") {
		t.Errorf("notes %q", n)
	}
}

func TestTreesOfAnyShapeAreReadToTheirEnd(t *testing.T) {
	for _, tree := range []string{"XX\n", "NN a@x\n", "YN a@x\nNN b@x\n", "NY a@x\nNN b@x\n", "YY a@x\nNY b@x\nNN c@x\nNN d@x\n"} {
		h, err := parseHead(id, []byte(headFile("", tree, "1\nr@x\n")))
		if err != nil || len(h.recipients) != 1 || len(h.done) != strings.Count(tree, "@") {
			t.Errorf("%q: %v, %+v", tree, err, h)
		}
	}
}

func TestHeadThatIsCutIsRefused(t *testing.T) {
	text := headFile("-frozen 1700000001\n-aclc name 3\nabc\n", "YN a@x\nNN b@x\n", "2\nr@x\nq@x\n")
	first := strings.Index(text, "\n\n") + 2
	for n := range text {
		// Exim, too, cannot tell where a header ends that was cut between two fields.
		if n == first || strings.HasSuffix(text[:n], "a header\n") || strings.HasSuffix(text[:n], "secret\n") {
			continue
		}
		if _, err := parseHead(id, []byte(text[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes are read: %q", n, len(text), text[:n])
		}
	}
}

// spool makes a spool with one message, and what stands in ID-J.
func spool(t *testing.T, head, data, journal string) (string, *Source) {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.MkdirAll(filepath.Join(dir, "input", "0"), 0o755))
	for name, text := range map[string]string{"-H": head, "-D": data, "-J": journal} {
		if text == "" {
			continue
		}
		assert.Must(t, os.WriteFile(filepath.Join(dir, "input", "0", id+name), []byte(text), 0o640))
	}
	s, err := Open(dir)
	assert.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return dir, s
}

func TestJournalTellsWhoHasIt(t *testing.T) {
	_, s := spool(t, headFile("-frozen 1700000100\n", "XX\n", "2\na@x.example\nb@x.example\n"), id+"-D\nbody\n", "A@x.example\nb@X.EXAMPLE\n")
	l, err := s.Open(importer.Ref{Name: "input/0/" + id})
	assert.Must(t, err)
	defer l.Close()
	assert.Equal(t, fmt.Sprintf("%+v", l.Parts), "[{Sender:s@x.example EnvID: Ret: Recipients:[{Address:a@x.example DSN:}] Held:it is frozen since 2023-11-14T22:15:00Z}]")
}

func TestBodyInWireFormatGetsOurLineEnds(t *testing.T) {
	const body = "a\r\n\r\n.\r\nlone \r here\nend\r"
	_, s := spool(t, headFile("-spool_file_wireformat\n", "XX\n", "1\na@x\n"), id+"-D\n"+body, "")
	l, err := s.Open(importer.Ref{Name: "input/0/" + id})
	assert.Must(t, err)
	defer l.Close()
	var b bytes.Buffer
	if err := l.Write(&b); err != nil || !strings.HasSuffix(b.String(), "\n\na\n\n.\nlone \r here\nend\r") {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

// TestMain serves as an Exim that delivers: it locks a file until it is killed.
func TestMain(m *testing.M) {
	if name := os.Getenv("LOCK_FILE"); name != "" {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err == nil {
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: int64(len(id) + 3)})
		}
		fmt.Println(err)
		_, _ = io.ReadAll(os.Stdin)
		return
	}
	os.Exit(m.Run())
}

func TestMessageThatEximHasLockedIsLeft(t *testing.T) {
	dir, s := spool(t, headFile("", "XX\n", "1\na@x\n"), id+"-D\nbody\n", "")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LOCK_FILE="+filepath.Join(dir, "input/0", id+"-D"))
	in, err := cmd.StdinPipe()
	assert.Must(t, err)
	out, err := cmd.StdoutPipe()
	assert.Must(t, err)
	assert.Must(t, cmd.Start())
	defer func() { in.Close(); _ = cmd.Wait() }()
	said := make([]byte, 100)
	if n, err := out.Read(said); err != nil || string(said[:n]) != "<nil>\n" {
		t.Fatalf("%q, %v", said[:n], err)
	}
	if _, err := s.Open(importer.Ref{Name: "input/0/" + id}); !errors.Is(err, importer.ErrLeft) {
		t.Errorf("got %v, want %v", err, importer.ErrLeft)
	}
}

func TestHalfReceivedMessageIsLeft(t *testing.T) {
	_, s := spool(t, "", id+"-D\nbody\n", "")
	refs, err := s.List(t.Context())
	if err != nil || len(refs) != 1 {
		t.Fatalf("%v, %v", refs, err)
	}
	if _, err := s.Open(refs[0]); !errors.Is(err, importer.ErrLeft) {
		t.Errorf("got %v, want %v", err, importer.ErrLeft)
	}
}

func TestRemovedMessageIsGone(t *testing.T) {
	dir, s := spool(t, headFile("", "XX\n", "1\na@x\n"), id+"-D\nbody\n", "a@x\n")
	assert.Must(t, s.Remove(importer.Ref{Name: "input/0/" + id}))
	if left := importertest.Files(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// An import was killed while it removed what it had taken: the next one removes the rest, and
// takes nothing again.
func TestRemainsOfATakenMessageAreRemoved(t *testing.T) {
	for removed := range 4 {
		disk := importertest.Disk(t)
		refill := func() (string, *Source) {
			dir, s := spool(t, headFile("", "XX\n", "2\na@x\nb@x\n"), id+"-D\nbody\n", "a@x\n")
			assert.Must(t, os.MkdirAll(filepath.Join(dir, "msglog", "0"), 0o755))
			assert.Must(t, os.WriteFile(filepath.Join(dir, "msglog", "0", id), nil, 0o640))
			return dir, s
		}
		dir, s := refill()
		if sum := importertest.Take(t, disk, s); sum.Taken != 1 || sum.Moved != 1 {
			t.Fatalf("got %+v", sum)
		}
		if left := importertest.Files(t, dir); len(left) > 0 {
			t.Fatalf("left: %q", left)
		}
		dir, s = refill()
		for _, name := range []string{"input/0/" + id + "-H", "input/0/" + id + "-J", "msglog/0/" + id}[:removed] {
			assert.Must(t, os.Remove(filepath.Join(dir, name)))
		}
		assert.Equal(t, importertest.Take(t, disk, s), importer.Sum{Before: 1, Moved: 1}, "after %d", removed)
		if left := importertest.Files(t, dir); len(left) > 0 {
			t.Errorf("after %d: left: %q", removed, left)
		}
	}
}

// What no import took is none of an import's remains.
func TestDataOfAnUnknownMessageStays(t *testing.T) {
	dir, s := spool(t, "", id+"-D\nbody\n", "")
	assert.Equal(t, importertest.Take(t, importertest.Disk(t), s), importer.Sum{Left: 1})
	if left := importertest.Files(t, dir); len(left) != 1 {
		t.Errorf("left: %q", left)
	}
}

// golden is a spool that an Exim of Debian has made, see test/e2e.
func TestRealSpoolIsReadWhole(t *testing.T) {
	s, err := Open(importertest.Copy(t, "testdata/spool", "input"))
	assert.Must(t, err)
	defer s.Close()
	importertest.Golden(t, "testdata/spool.golden", importertest.Text(t, s))
}

func FuzzHead(f *testing.F) {
	f.Add([]byte(headFile("-frozen 1\n-aclc a 3\nabc\n", "YN a@x\nNN b@x\n", "2\nr@x o 1,2  0,-1#3\nq@x\n")))
	real, _ := filepath.Glob("testdata/spool/input/*-H")
	for _, name := range real {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(bytes.ReplaceAll(b, []byte(strings.TrimSuffix(filepath.Base(name), "-H")), []byte(id)))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := parseHead(id, text)
		if err != nil {
			return
		}
		h.part()
		h.notes()
	})
}

func FuzzRecipient(f *testing.F) {
	f.Add("a@b rfc822;x 8,2  0,-1#3")
	f.Add("a@b 1,2,3")
	f.Add("a@b1")
	f.Fuzz(func(t *testing.T, line string) {
		if r, err := parseRecipient(line); err == nil && !strings.HasPrefix(line, r.address) {
			t.Fatalf("%q became %q", line, r.address)
		}
	})
}
