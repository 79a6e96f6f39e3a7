package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// The recorded postoffice is in testdata/spool-7688860; record.sh there makes it.
const (
	recordedDir    = "/tmp/spool-7688860"
	recordedListen = "127.0.0.1:7687"
	recordedSink   = "127.76.88.60" // port 7688; in specifications, whose checksum covers it
)

// upgradeSink returns a host for the recorded mail, at an address that is as long as the
// recorded one and that no other test uses, and its address without the port.
func upgradeSink(t *testing.T) (sink *peer.Sink, ip string) {
	t.Helper()
	for range 100 {
		ip = fmt.Sprintf("127.%d.%d.%d", 10+rand.IntN(90), 10+rand.IntN(90), 10+rand.IntN(90))
		sink = &peer.Sink{Listen: ip + ":7688"}
		if sink.Start() == nil {
			t.Cleanup(sink.Close)
			return sink, ip
		}
	}
	t.Fatalf("no address of loopback is free at port 7688")
	return nil, ""
}

// moveSink gives a recorded specification another address for the host, of the same length, and
// its z line the checksum of that.
func moveSink(content []byte, ip string) []byte {
	content = bytes.ReplaceAll(content, []byte(recordedSink), []byte(ip))
	return zLine.ReplaceAllFunc(content, func(line []byte) []byte {
		size, _ := strconv.Atoi(string(zLine.FindSubmatch(line)[1]))
		return fmt.Appendf(nil, "z %d %08x\n", size, crc32.Checksum(content[:size], crc32.MakeTable(crc32.Castagnoli)))
	})
}

var zLine = regexp.MustCompile(`(?m)^z (\d+) [0-9a-f]{8}\n`)

// A postoffice and a configuration of commit 7688860 are used as they are: mail that was on its
// way is delivered once, and what was held, frozen, set aside or removed still is, until an
// operator releases it.
func TestSpoolOfEarlierVersionIsDelivered(t *testing.T) {
	sink, ip := upgradeSink(t)
	for how, before := range map[string]func(t *testing.T, s *suite.Suite){
		"started at once": func(*testing.T, *suite.Suite) {},
		"repaired before the start": func(t *testing.T, s *suite.Suite) {
			if said, code := call(t, s, "zmctl", "check", "--repair"); code > 1 {
				t.Fatalf("zmctl check --repair: exit code %d\n%s", code, said)
			}
		},
	} {
		t.Run(how, func(t *testing.T) {
			past := len(sink.Messages())
			far := func() []string {
				var list []string
				for _, m := range sink.Messages()[past:] {
					list = append(list, subject(m.Data)+" "+strings.Join(m.Recipients, " "))
				}
				slices.Sort(list)
				return list
			}
			arrived := func(want ...string) {
				t.Helper()
				slices.Sort(want)
				await(t, &suite.Suite{Dir: t.TempDir()}, strings.Join(want, ", "), func() (bool, error) {
					return len(far()) >= len(want), nil
				})
				if got := far(); !slices.Equal(got, want) {
					t.Errorf("the host got %q, want %q", got, want)
				}
			}
			s := unpack(t, ip)
			write(t, filepath.Join(s.Dir, "conf", "team"), "alice\n")
			before(t, s)
			begin(t, s)
			arrived("queue far@sink.example", "router router@sink.example", "claimed claimed@sink.example")
			_, _ = call(t, s, "zmctl", "resubmit", "all") // a router may have tried old mail at once
			subjects(t, s, "alice", "deferred", "router")
			for pattern, want := range map[string]int{
				"deferred/[0-9]*": 1, // its list does not exist
				"freezer/[0-9]*":  1, "postman/*_loop": 1, "removed/*.queue": 1, "removed/*.spec": 1, "queue/[0-9]*": 1, "transport/[0-9]*": 1, "orders/*-hold-*": 1, "orders/*-remove-*": 1, "orders/*-freeze-*": 1,
			} {
				await(t, s, pattern, func() (bool, error) { return len(glob(t, s, pattern)) == want, nil })
			}
			if _, err := os.Lstat(path(s, ".nursery")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf(".nursery: %v; the scheduler removes it when it starts", err)
			}
			balance(t, s)
			zmctl(t, s, "release", "--all", "--yes")
			zmctl(t, s, "thaw", "--all", "--yes")
			zmctl(t, s, "undo", filepath.Base(glob(t, s, "orders/*-remove-*")[0]))
			arrived("queue far@sink.example", "router router@sink.example", "claimed claimed@sink.example",
				"held held@sink.example", "frozen frozen@sink.example", "removed removed@sink.example")
			subjects(t, s, "alice", "deferred", "router")
			stop(t, s)
			balance(t, s)
		})
	}
}

// unpack restores the recorded postoffice, as tar does: each file gets another inode number. The
// host at ip takes the place of the recorded one.
func unpack(t *testing.T, ip string) *suite.Suite {
	t.Helper()
	addr, err := peer.FreeAddr()
	assert.Must(t, err)
	s := &suite.Suite{Bin: bin, Dir: openDir(t), SMTPAddr: addr}
	type stamp struct {
		name string
		at   time.Time
	}
	var dirs []stamp
	recorded(t, func(h *tar.Header, content []byte) {
		name := filepath.Join(s.Dir, h.Name)
		mode := h.FileInfo().Mode()
		if mode.IsDir() {
			err = os.MkdirAll(name, 0o700)
			dirs = append(dirs, stamp{name, h.ModTime})
		} else {
			if strings.HasPrefix(h.Name, "conf/") {
				content = []byte(strings.NewReplacer(recordedDir, s.Dir, recordedListen, addr).Replace(string(content)))
			}
			content = moveSink(content, ip)
			err = os.WriteFile(name, content, 0o600)
		}
		assert.Must(t, errors.Join(err, os.Chmod(name, mode), os.Chtimes(name, h.ModTime, h.ModTime)))
	})
	for _, d := range dirs {
		assert.Must(t, os.Chtimes(d.name, d.at, d.at))
	}
	assert.Must(t, errors.Join(os.Mkdir(filepath.Join(s.Dir, "mail"), 0o777), os.Chmod(filepath.Join(s.Dir, "mail"), 0o777)))
	return s
}

// recorded calls fn for each file of the archive.
func recorded(t *testing.T, fn func(h *tar.Header, content []byte)) {
	t.Helper()
	f, err := os.Open("testdata/spool-7688860/spool.tar.gz")
	assert.Must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	assert.Must(t, err)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		content, rerr := io.ReadAll(r)
		assert.Must(t, errors.Join(err, rerr))
		fn(h, content)
	}
}

// subjects waits until a user has mail with these subjects, and no other.
func subjects(t *testing.T, s *suite.Suite, user string, want ...string) {
	t.Helper()
	var got []string
	for _, m := range awaitMail(t, s, user, len(want)) {
		got = append(got, subject(m))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s has %q, want %q", user, got, want)
	}
}

func subject(message []byte) string {
	_, rest, _ := strings.Cut(string(message), "Subject: ")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// glob lists what matches a pattern in the postoffice.
func glob(t *testing.T, s *suite.Suite, pattern string) []string {
	t.Helper()
	list := assert.Get(filepath.Glob(path(s, pattern)))(t)
	return list
}
