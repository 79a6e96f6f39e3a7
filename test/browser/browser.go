// Package browser drives Chromium in tests: it loads pages at a size, in the dark or not,
// types keys, asks the page about itself and takes pictures of it.
//
// One Chromium has one page, and one goroutine at a time may use it. It speaks Chromium's
// own protocol over its websocket; what is asked of a page is asked from outside, so that a
// page whose policy allows no script answers, too.
//
// Diagnostics: ErrMissing if there is no Chromium; all else is an error of the test.
package browser

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/websocket"
)

// ErrMissing means that Debian's chromium is not installed.
var ErrMissing = errors.New("there is no chromium in PATH")

// patience is how long the browser may take for one thing.
const patience = 60 * time.Second

// Browser is a running Chromium with one page.
type Browser struct {
	cmd     *exec.Cmd
	dir     string
	line    *websocket.Conn
	session string
	n       int
	said    []string
	loaded  bool
}

// Start starts one that keeps its files in a directory of its own.
func Start() (*Browser, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, ErrMissing
	}
	dir, err := os.MkdirTemp("", "browser-")
	if err != nil {
		return nil, err
	}
	b := &Browser{dir: dir, cmd: exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-extensions", "--remote-debugging-port=0", "--remote-allow-origins=*", "--user-data-dir="+dir, "about:blank")}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stderr, err := b.cmd.StderrPipe()
	if err == nil {
		err = b.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", path, err), os.RemoveAll(dir))
	}
	if err := b.connect(stderr); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// connect finds where the browser listens and opens its page.
func (b *Browser) connect(stderr io.Reader) error {
	var heard strings.Builder
	stop := time.AfterFunc(patience, func() { _ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL) })
	defer stop.Stop()
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		where, ok := strings.CutPrefix(lines.Text(), "DevTools listening on ")
		if !ok {
			heard.WriteString(lines.Text() + "\n")
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, stderr) }()
		line, err := websocket.Dial(where, "", "http://127.0.0.1/")
		if err != nil {
			return fmt.Errorf("speak to the browser: %w", err)
		}
		line.MaxPayloadBytes = 256 << 20
		b.line = line
		return b.open()
	}
	return fmt.Errorf("the browser has ended: %s", heard.String())
}

func (b *Browser) open() error {
	var target struct{ TargetID string }
	if err := b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return err
	}
	var attached struct{ SessionID string }
	if err := b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		return err
	}
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		if err := b.call(domain+".enable", nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// Close ends it.
func (b *Browser) Close() error {
	if b.line != nil {
		_ = b.line.Close() // it is killed anyway
	}
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
	_ = b.cmd.Wait() // killed
	return os.RemoveAll(b.dir)
}

// message is what comes from the browser: an answer or an event.
type message struct {
	ID     int
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct{ Message string }
}

// call asks the browser for something and waits for the answer.
func (b *Browser) call(method string, params map[string]any, result any) error {
	b.n++
	asked := map[string]any{"id": b.n, "method": method}
	if params != nil {
		asked["params"] = params
	}
	if b.session != "" {
		asked["sessionId"] = b.session
	}
	if err := b.line.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := websocket.JSON.Send(b.line, asked); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	for {
		m, err := b.next()
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", method, err)
		case m.ID != b.n:
			continue
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(m.Result, result)
	}
}

// next reads one message, and keeps what the page says.
func (b *Browser) next() (*message, error) {
	var m message
	if err := websocket.JSON.Receive(b.line, &m); err != nil {
		return nil, err
	}
	switch m.Method {
	case "Page.loadEventFired":
		b.loaded = true
	case "Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening":
		b.said = append(b.said, string(m.Params))
	}
	return &m, nil
}

// Cookie gives the browser a cookie for an address.
func (b *Browser) Cookie(address, name, value string) error {
	return b.call("Network.setCookie", map[string]any{"url": address, "name": name, "value": value, "sameSite": "Strict", "httpOnly": true}, nil)
}

// Forget takes all cookies from it.
func (b *Browser) Forget() error { return b.call("Network.clearBrowserCookies", nil, nil) }

// Screen says how wide pages are shown, and whether in the dark.
func (b *Browser) Screen(width, height int, dark bool) error {
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	return errors.Join(
		b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil),
		b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil))
}

// Load shows a page, and gives what the browser found wrong with it: errors, breaches of
// the page's policy, scripts that ran into something.
func (b *Browser) Load(ctx context.Context, address string) (said []string, err error) {
	b.said, b.loaded = nil, false
	var went struct{ ErrorText string }
	if err := b.call("Page.navigate", map[string]any{"url": address}, &went); err != nil {
		return nil, err
	}
	if went.ErrorText != "" {
		return nil, fmt.Errorf("load %s: %s", address, went.ErrorText)
	}
	if err := b.wait(ctx); err != nil {
		return nil, fmt.Errorf("load %s: %w", address, err)
	}
	return b.said, nil
}

// Follow does something in the page that leads to another, and waits for that.
func (b *Browser) Follow(ctx context.Context, do func() error) (said []string, err error) {
	b.said, b.loaded = nil, false
	if err := do(); err != nil {
		return nil, err
	}
	return b.said, b.wait(ctx)
}

// Click does what a click on the first element that a selector finds does.
func (b *Browser) Click(selector string) func() error {
	return func() error {
		name, err := json.Marshal(selector)
		if err != nil {
			return err
		}
		var ok bool
		return b.Ask("document.querySelector("+string(name)+").click() ?? true", &ok)
	}
}

// wait waits until the page has been loaded.
func (b *Browser) wait(ctx context.Context) error {
	if err := b.line.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	for !b.loaded {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := b.next(); err != nil {
			return err
		}
	}
	return nil
}

// Ask gives the value of an expression, as the page's own console would.
func (b *Browser) Ask(expression string, value any) error {
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Text string }
	}
	if err := b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &got); err != nil {
		return err
	}
	if got.ExceptionDetails != nil {
		return fmt.Errorf("%s: %s", expression, got.ExceptionDetails.Text)
	}
	return json.Unmarshal(got.Result.Value, value)
}

// Key types a key: Tab or Enter.
func (b *Browser) Key(name string) error {
	codes := map[string]int{"Tab": 9, "Enter": 13}
	text := map[string]string{"Enter": "\r"}[name]
	for _, kind := range []string{"keyDown", "keyUp"} {
		if err := b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": codes[name], "text": text}, nil); err != nil {
			return err
		}
	}
	return nil
}

// Shot writes a picture of the whole page into a file.
func (b *Browser) Shot(file string) error {
	var got struct{ Data string }
	if err := b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &got); err != nil {
		return err
	}
	png, err := base64.StdEncoding.DecodeString(got.Data)
	if err != nil {
		return err
	}
	return os.WriteFile(file, png, 0o644)
}
