package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// idOne and idTwo are spool IDs of the log below.
const idOne, idTwo = "S10126922A28Cbl9hAkaq", "S10126931A28CblaokQ4r"

const mixedLog = `time=2026-11-22T10:00:00.100Z level=INFO msg=accepted program=smtpserver id=` + idOne + ` from=bob@demo.example rcpts=1
time=2026-11-22T10:00:00.200Z level=INFO msg=routed program=router id=` + idOne + ` name=queue/10126922-1
panic: something broke
goroutine 7 [running]:
{"time":"2026-11-22T10:00:01Z","level":"WARN","msg":"deferred","program":"scheduler","id":"` + idOne + `","rcpt":"ann@far.example","host":"mx.far.example","reply":"451 later","attempt":1}
{"time":"2026-11-22T10:05:01Z","level":"INFO","msg":"failed","program":"scheduler","id":"` + idOne + `","rcpt":"ann@far.example","host":"mx.far.example","reply":"550 no"}
time=2026-11-22T10:05:02Z level=INFO msg=report program=scheduler id=` + idOne + ` rcpt=bob@demo.example report=` + idTwo + `
time=2026-11-22T10:05:03Z level=INFO msg=delivered program=scheduler id=` + idTwo + ` rcpt=bob@demo.example
time=2026-11-22T10:05:04Z level=ERROR msg=disk program=scheduler reason="no space left on device"
`

func logFile(t *testing.T) string {
	t.Helper()
	t.Setenv("ZCONFIG", "")
	t.Setenv("POSTOFFICE", filepath.Join(t.TempDir(), "po"))
	name := filepath.Join(t.TempDir(), "log")
	assert.Must(t, os.WriteFile(name, []byte(mixedLog), 0o600))
	return name
}

// eventsIn returns the events of the lines that are printed, "-" for a line of others.
func eventsIn(out string) string {
	var list []string
	for line := range strings.Lines(out) {
		word := "-"
		if _, rest, ok := strings.Cut(line, "msg="); ok {
			word, _, _ = strings.Cut(rest, " ")
		} else if _, rest, ok := strings.Cut(line, `"msg":"`); ok {
			word, _, _ = strings.Cut(rest, `"`)
		}
		list = append(list, word)
	}
	return strings.Join(list, " ")
}

func TestLogShowsTheLinesThatAreAskedFor(t *testing.T) {
	name := logFile(t)
	tests := map[string]struct{ args, want string }{
		"all, as they stand":          {"", "accepted routed - - deferred failed report delivered disk"},
		"a message":                   {idOne, "accepted routed deferred failed report"},
		"a message and its report":    {idTwo, "report delivered"},
		"two messages":                {"--id " + idOne + " " + idTwo, "accepted routed deferred failed report delivered"},
		"an event":                    {"--event failed", "failed"},
		"events":                      {"-e failed,deliv* -e deferred", "deferred failed delivered"},
		"a daemon":                    {"--daemon router", "routed"},
		"daemons":                     {"-d router,smtpserver", "accepted routed"},
		"a level, and crashes":        {"--level warn", "- - deferred disk"},
		"since":                       {"--since 2026-11-22T10:05:02Z", "report delivered disk"},
		"until":                       {"--until 2026-11-22T10:00:01Z -d scheduler", "deferred"},
		"a key":                       {"--match rcpt=ann@*", "deferred failed"},
		"two keys":                    {"-m rcpt=ann@* -m reply=451*", "deferred"},
		"the last":                    {"--lines 2", "delivered disk"},
		"the last of an event":        {"-n 1 --event deferred,failed", "failed"},
		"flags behind the argument":   {idOne + " --event routed", "routed"},
		"everything at the same time": {idOne + " -d scheduler --since 2026-11-22 --level info -m host=* --event *ed -n 1", "failed"},
	}
	for what, tt := range tests {
		t.Run(what, func(t *testing.T) {
			cmd := append([]string{"log", "--file", name}, strings.Fields(tt.args)...)
			out, code, err := invokeAll(t, cmd...)
			if code != 0 || eventsIn(out) != tt.want {
				t.Errorf("got exit code %d, %v, %s, want %s", code, err, eventsIn(out), tt.want)
			}
			out, code, err = invokeAll(t, append(cmd, "--json")...)
			if code != 0 || eventsIn(out) != tt.want {
				t.Errorf("JSON: got exit code %d, %v, %s, want %s", code, err, eventsIn(out), tt.want)
			}
			for line := range strings.Lines(out) {
				var v map[string]any
				if err := json.Unmarshal([]byte(line), &v); err != nil {
					t.Errorf("%v: %s", err, line)
				}
			}
		})
	}
	if out, _, _ := invoke(t, "log", "--file", name); out != mixedLog {
		t.Errorf("in a pipe lines are not as they stand: %s", out)
	}
}

// invokeAll is invoke with flags behind arguments, as config.Main takes them.
func invokeAll(t *testing.T, args ...string) (string, int, error) {
	t.Helper()
	var flags, rest []string
	for i := 1; i < len(args); i++ {
		switch {
		case args[i] == "--json":
			flags = append(flags, args[i])
		case strings.HasPrefix(args[i], "-"):
			flags = append(flags, args[i], args[i+1])
			i++
		default:
			rest = append(rest, args[i])
		}
	}
	return invoke(t, append(append([]string{args[0]}, flags...), rest...)...)
}

func TestLogExitCodes(t *testing.T) {
	name := logFile(t)
	for args, want := range map[string]int{
		"--event nothing":      1,
		"--level loud":         config.ExitUsage,
		"--since soon":         config.ExitUsage,
		"--match host":         config.ExitUsage,
		"--lines -1":           config.ExitUsage,
		"nonsense":             config.ExitUsage,
		"--level error":        0,
		"--file " + name + "x": 1,
	} {
		exits(t, want, append([]string{"log", "--file", name}, strings.Fields(args)...)...)
	}
	exits(t, 1, "log")
}

// A message's lines are found in the files that were rotated away, too, and in the log of
// the postoffice without a flag.
func TestLogOfAMessageReachesBehindARotation(t *testing.T) {
	o := office.New(t)
	o.Write(t, postoffice.LogFile+".1", mixedLog)
	o.Write(t, postoffice.LogFile, "time=2026-11-23T10:05:03Z level=INFO msg=delivered program=scheduler id="+idOne+"\n")
	for args, want := range map[string]string{
		"":    "delivered",
		idOne: "accepted routed deferred failed report delivered",
		"--since 2026-11-22T10:05:01Z --id " + idOne: "failed report delivered",
	} {
		if out, code, err := invoke(t, append([]string{"log"}, strings.Fields(args)...)...); code != 0 || eventsIn(out) != want {
			t.Errorf("%s: got %d, %v, %s, want %s", args, code, err, eventsIn(out), want)
		}
	}
	if out, code, err := invoke(t, "check", "--problems"); strings.Contains(out, "log") {
		t.Errorf("check takes the log for something foreign: %d, %v\n%s", code, err, out)
	}
}

// Followed, lines come as they are written, through a rotation, until Ctrl-C.
func TestLogIsFollowed(t *testing.T) {
	name := logFile(t)
	self, err := os.Executable()
	assert.Must(t, err)
	cmd := exec.Command(self, "log", "--file", name, "--follow", "--event", "delivered,disk", "--lines", "1")
	cmd.Env = append(os.Environ(), "BE_ZMCTL=1")
	r, w, err := os.Pipe()
	assert.Must(t, err)
	defer r.Close()
	cmd.Stdout = w
	assert.Must(t, cmd.Start())
	w.Close()
	defer cmd.Process.Kill()
	assert.Must(t, r.SetReadDeadline(time.Now().Add(20*time.Second)))
	lines := bufio.NewScanner(r)
	want := func(part string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), part) {
			t.Fatalf("got %q, %v, want %q", lines.Text(), lines.Err(), part)
		}
	}
	want("msg=disk")
	add := func(id string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		assert.Must(t, err)
		defer f.Close()
		for _, event := range []string{"accepted", "delivered"} {
			if _, err := f.WriteString("time=2026-11-22T11:00:00Z level=INFO msg=" + event + " program=scheduler id=" + id + "\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	add("first")
	want("msg=delivered program=scheduler id=first")
	assert.Must(t, os.Rename(name, name+".1"))
	add("second")
	want("msg=delivered program=scheduler id=second")
	assert.Must(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Errorf("at the end: %v", err)
	}
}
