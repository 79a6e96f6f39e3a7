package opensmtpd

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/admin/importer"
	"zmailer/internal/run/assert"
	"zmailer/test/importertest"
)

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	assert.Must(t, z.Close())
	return b.String()
}

// spool makes a spool of these files.
func spool(t *testing.T, files map[string]string) (string, *Source) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		assert.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	s, err := Open(dir)
	assert.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return dir, s
}

func evp(fields string) string {
	return "version: 3\nsmtpname: mta.example\nsender: s@x.example\nctime: 1700000000\n" + fields
}

func TestEnvelopesOfAMessageAreReadTogether(t *testing.T) {
	const message = "queue/ab/ab012345/"
	dir, s := spool(t, map[string]string{
		message + "message":                  "Subject: x\n\nbody\n",
		message + "ab01234500000001":         evp("type: mta\ndest: a@y.example\ndsn-notify: 6\ndsn-ret: HDRS\ndsn-envid: E+2B\ndsn-orcpt: o@y.example\n"),
		message + "ab01234500000002":         packed(t, evp("type: mta\ndest: b@y.example\ndsn-ret: HDRS\ndsn-envid: E+2B\n")),
		message + "ab01234500000003":         evp("type: mda\ndest: c@mta.example\nmda-exec: /usr/bin/procmail\ndsn-notify: 8\n"),
		message + "ab01234500000004":         evp("type: bounce\nbounce-type: failed\ndest: failed@y.example\n"),
		message + "ab01234500000005":         evp("type: bounce\nbounce-type: delayed\nbounce-delay: 14400\ndest: a@y.example\n"),
		message + "ab01234500000006":         evp("type: mda\ndest: c@mta.example\n"),
		message + "ab01234500000007":         "version: 3\ntype: mta\nctime: 1699999999\nsender: @\ndest: d@y.example\n",
		"queue/cd/cd000000/message":          packed(t, "Subject: packed\n\nbody\n"),
		"queue/cd/cd000000/cd00000000000001": evp("type: mta\ndest: a@y.example\n"),
		"queue/ce/ce000000/message":          "\x01\x02\x03",
		"queue/ce/ce000000/ce00000000000001": evp("type: mta\ndest: a@y.example\n"),
		"queue/cf/cf000000/message":          "Subject: x\n\n",
		"queue/cf/cf000000/cf00000000000001": "\x01\x02\x03 no text",
		"offline/1700000000.abc":             "-f|bob|alice\nSubject: x\n",
	})
	importertest.Golden(t, "testdata/made.golden", importertest.Text(t, s))
	assert.Must(t, s.Remove(importer.Ref{Name: "queue/ab/ab012345"}))
	if _, err := os.Stat(filepath.Join(dir, "queue/ab/ab012345")); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
}

// An import was killed while it removed what it had taken: the next one removes the rest, and
// takes nothing again. An empty directory of another message stays.
func TestRemainsOfATakenMessageAreRemoved(t *testing.T) {
	const message = "queue/ab/ab012345"
	files := map[string]string{
		message + "/message":          "Subject: x\n\nbody\n",
		message + "/ab01234500000001": evp("type: mta\ndest: a@y.example\n"),
		message + "/ab01234500000002": evp("type: mta\ndest: b@y.example\n"),
	}
	for removed := range 4 {
		disk := importertest.Disk(t)
		_, s := spool(t, files)
		if sum := importertest.Take(t, disk, s); sum != (importer.Sum{Taken: 1, Recipients: 2, Moved: 1}) {
			t.Fatalf("got %+v", sum)
		}
		dir, s := spool(t, files)
		for _, name := range []string{"ab01234500000001", "ab01234500000002", "message"}[:removed] {
			assert.Must(t, os.Remove(filepath.Join(dir, message, name)))
		}
		other := filepath.Join(dir, "queue/ab/ab999999")
		assert.Must(t, os.Mkdir(other, 0o700))
		assert.Equal(t, importertest.Take(t, disk, s), importer.Sum{Before: 1, Left: 1, Moved: 1}, "after %d", removed)
		if left := importertest.All(t, dir, "queue", "queue/ab", "queue/ab/ab999999"); len(left) > 0 {
			t.Errorf("after %d: left: %q", removed, left)
		}
		if _, err := os.Stat(other); err != nil {
			t.Error(err)
		}
	}
}

func TestEnvelopeThatIsCutIsRefused(t *testing.T) {
	text := evp("type: mta\ndest: a@y.example\n")
	for n := range len(text) - len("dest: a@y.example\n") {
		if e, err := parseEnvelope([]byte(text[:n])); err == nil {
			t.Fatalf("%q became %+v", text[:n], e)
		}
	}
}

// golden is a queue that an OpenSMTPD of Debian has made, see test/e2e.
func TestRealQueueIsReadWhole(t *testing.T) {
	s, err := Open(importertest.Copy(t, "testdata/spool", "queue"))
	assert.Must(t, err)
	defer s.Close()
	importertest.Golden(t, "testdata/spool.golden", importertest.Text(t, s))
}

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte(evp("type: mta\ndest: a@y.example\ndsn-notify: 6\n")))
	f.Add([]byte(evp("type: bounce\nbounce-type: failed\ndest: a@y.example\n")))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := parseEnvelope(text)
		if err != nil {
			return
		}
		var g group
		g.add(e)
		for _, p := range g.parts() {
			if len(p.Recipients) == 0 {
				t.Fatalf("%q: a part without recipients", text)
			}
		}
	})
}
