package metrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// serve serves a Set on a loopback port and gives its address.
func serve(t *testing.T, s *Set) string {
	t.Helper()
	var text bytes.Buffer
	stop := s.Serve("", nil, slog.New(slog.NewTextHandler(&text, nil)))
	t.Cleanup(stop)
	_, rest, ok := strings.Cut(text.String(), "msg=metrics-served address=")
	if !ok {
		t.Fatal(text.String())
	}
	return strings.TrimSpace(rest)
}

func TestAnswersToHTTP(t *testing.T) {
	addr := serve(t, New("router", "127.0.0.1:0"))
	client := &http.Client{Timeout: 20 * time.Second}
	for name, tt := range map[string]struct {
		method, path string
		want         int
	}{
		"metrics":         {"GET", "/metrics", 200},
		"with a question": {"GET", "/metrics?name[]=x", 200},
		"head":            {"HEAD", "/metrics", 200},
		"health":          {"GET", "/health", 200},
		"another page":    {"GET", "/", 404},
		"a form":          {"POST", "/metrics", 405},
	} {
		t.Run(name, func(t *testing.T) {
			req := assert.Get(http.NewRequestWithContext(t.Context(), tt.method, "http://"+addr+tt.path, nil))(t)
			resp := assert.Get(client.Do(req))(t)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != tt.want {
				t.Fatalf("%s %v: %s", resp.Status, err, body)
			}
			if (tt.method == "HEAD") != (len(body) == 0) {
				t.Errorf("%d bytes", len(body))
			}
			if tt.want == 200 && tt.method == "GET" && tt.path != "/health" {
				if got := resp.Header.Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
					t.Error(got)
				}
				parse(t, body)
			}
		})
	}
}

func TestWhatIsNoHTTPIsToldSoAndEnded(t *testing.T) {
	addr := serve(t, New("router", "127.0.0.1:0"))
	for name, text := range map[string]string{
		"nothing":          "",
		"a greeting":       "EHLO x\r\n\r\n",
		"no end":           "GET /metrics HTTP/1.1\r\nHost: x\r\n",
		"an endless line":  "GET /" + strings.Repeat("a", 2*questionMax),
		"an endless head":  "GET /metrics HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", questionMax),
		"bytes":            "\x16\x03\x01\x02\x00\r\n\r\n",
		"too many words":   "GET /metrics HTTP/1.1 now\r\n\r\n",
		"a later protocol": "PRI * HTTP/2.0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := assert.Get(net.Dial("tcp", addr))(t)
			defer c.Close()
			assert.Must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
			_, _ = io.WriteString(c, text) // it may be closed before all is there
			_ = c.(*net.TCPConn).CloseWrite()
			answer, _ := io.ReadAll(c)
			if len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
				t.Errorf("%q", answer)
			}
		})
	}
}

// One who opens connections and says nothing does not keep the daemon from ending, nor
// others from reading for longer than the time limit.
func TestSilentReadersAreCutAtTheEnd(t *testing.T) {
	s := New("router", "127.0.0.1:0")
	var text bytes.Buffer
	stop := s.Serve("", nil, slog.New(slog.NewTextHandler(&text, nil)))
	_, addr, _ := strings.Cut(strings.TrimSpace(text.String()), "address=")
	for range 2 * readers {
		c := assert.Get(net.Dial("tcp", addr))(t)
		defer c.Close()
	}
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	select {
	case <-done:
	case <-time.After(readTimeout / 2):
		t.Error("it waits for them")
	}
}

func TestSocketHasAnOwnerAndGoesAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	s := New("router", "unix")
	var asked os.FileMode
	stop := s.Serve(dir, func(path string, mode os.FileMode) (*net.UnixListener, error) {
		asked = mode
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			l.SetUnlinkOnClose(false)
		}
		return l, err
	}, slog.New(slog.DiscardHandler))
	path := filepath.Join(dir, ".metrics.router")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	resp := assert.Get(client.Get("http://router/metrics"))(t)
	resp.Body.Close()
	if resp.StatusCode != 200 || asked != 0o660 {
		t.Errorf("%s, mode %o", resp.Status, asked)
	}
	stop()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestWhatCannotBeServedIsSaidOnce(t *testing.T) {
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	var text bytes.Buffer
	New("router", l.Addr().String()).Serve("", nil, slog.New(slog.NewTextHandler(&text, nil)))()
	if strings.Count(text.String(), "\n") != 1 || !strings.Contains(text.String(), "msg=metrics-not-served") {
		t.Error(text.String())
	}
}

func FuzzQuestion(f *testing.F) {
	f.Add([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("GET http://x/metrics?a HTTP/1.0\n\n"))
	f.Add([]byte("\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		method, target, ok := question(bytes.NewReader(b))
		if ok && (method == "" || strings.ContainsAny(method+target, " \r\n")) {
			t.Errorf("%q: %q %q", b, method, target)
		}
	})
}
