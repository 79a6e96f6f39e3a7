package sendmail

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/rig"
)

// documented returns the flags of the table in docs/submit.md as they are written there.
func documented(t *testing.T) []string {
	t.Helper()
	page := assert.Get(os.ReadFile("../../docs/submit.md"))(t)
	_, table, ok := strings.Cut(string(page), "| flag | what it does here | who uses it |\n")
	if !ok {
		t.Fatal("docs/submit.md has no table of flags")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var flags []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			t.Fatalf("not a row of three cells: %q", line)
		}
		for _, span := range regexp.MustCompile("`[^`]+`").FindAllString(cells[1], -1) {
			flags = append(flags, strings.Trim(span, "`"))
		}
	}
	return flags
}

// Loc4: every flag in the table of docs/submit.md is taken by the program, after a recipient
// as well as before one, and does not turn into a recipient.
func TestLoc4EveryDocumentedFlagIsTaken(t *testing.T) {
	values := strings.NewReplacer("ADDRESS", "me@x.example", "FILE", "file", "NAME", "Me", "LABEL", "label", "MODE", "m", "WHEN", "success,delay",
		"OPTION=VALUE", "QueueLA=5", "VALUE", "QueueLA=5", "PROTOCOL", "local", "-P N", "-P 1", "USER", "user", "HOST", "far.example", "SENDER", "joe", "ID", "S1A2")
	dir := rig.Dir(t)
	// Of zmctl only the arguments are of interest: -bd is not to start anything.
	zmctl := filepath.Join(dir, "zmctl")
	assert.Must(t, os.WriteFile(zmctl, []byte("#!/bin/sh\necho \"zmctl $*\"\n"), 0o755))
	own := ours(t)
	script, err := os.ReadFile(own.path)
	assert.Must(t, err)
	program := filepath.Join(dir, "submit")
	b, err := os.ReadFile(filepath.Join(bin, "submit"))
	assert.Must(t, err)
	assert.Must(t, os.WriteFile(program, b, 0o755))
	wrapper := filepath.Join(dir, "sendmail")
	assert.Must(t, os.WriteFile(wrapper, []byte(strings.Replace(string(script), filepath.Join(bin, "sendmail"), program, 1)), 0o755))
	asked := map[string]string{
		"-bd": "zmctl start", "-bl": "zmctl start", "-bD": "zmctl run", "-bp": "zmctl queue", "-bt": "zmctl route -- me@x.example",
		"-bv": "zmctl route -- me@x.example", "-q": "zmctl retry --yes --all", "-qIS1A2": "zmctl retry -- S1A2",
		"-qRfar.example": "zmctl etrn -- far.example", "-qSjoe": "zmctl retry --yes --from *joe*",
	}
	submits := regexp.MustCompile(`^(-[^bqI]|-bm|--id)`)
	for _, flag := range documented(t) {
		t.Run(flag, func(t *testing.T) {
			args := strings.Fields(values.Replace(flag))
			if args[0] == "-XV" || args[0] == "-XV-=" {
				args = append(args, "-f", "list@x.example")
			}
			for _, all := range [][]string{append([]string{"joe@x.example"}, args...), append(args, "joe@x.example")} {
				if !submits.MatchString(flag) {
					all = args
				}
				cmd := exec.Command(wrapper, all...)
				cmd.Stdin = strings.NewReader("To: joe@x.example\nSubject: x\n\nhi\n")
				var said strings.Builder
				cmd.Stderr, cmd.Stdout = &said, &said
				if flag == "-v" {
					// It would stay until somebody has routed the message.
					verbose(t, cmd, own)
					continue
				}
				if err := cmd.Run(); err != nil {
					t.Fatalf("%q: %v: %s", all, err, said.String())
				}
				if want := asked[args[0]]; want != "" && !strings.HasPrefix(said.String(), want) {
					t.Errorf("%q: got %q, want %q", all, said.String(), want)
				}
				got := own.take(t)
				if !submits.MatchString(flag) {
					assert.Equal(t, len(got), 0, all)
					continue
				}
				if len(got) != 1 || len(got[0].rcpts) != 1 || got[0].rcpts[0] != "joe@x.example" {
					t.Errorf("%q: submitted %+v; said %s", all, got, said.String())
				}
				if flag != "--id" && said.Len() > 0 {
					t.Errorf("%q: said %q", all, said.String())
				}
			}
		})
	}
}

// verbose runs -v, takes the message away once it is accepted, and waits for the end.
func verbose(t *testing.T, cmd *exec.Cmd, m *mta) {
	t.Helper()
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	assert.Must(t, err)
	assert.Must(t, cmd.Start())
	// The spool ID comes when the message is accepted.
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Error(err)
	}
	assert.Equal(t, len(m.take(t)), 1)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Loc4: the table has every flag of Postfix's sendmail(1).
func TestLoc4TableHasPostfixFlags(t *testing.T) {
	have := map[string]bool{}
	for _, flag := range documented(t) {
		have[strings.Fields(flag)[0]] = true
	}
	for _, flag := range strings.Fields("-Am -Ac -B -bd -bh -bH -bi -bl -bm -bp -bs -bv -C -F -f -G -h -I -i -L -m -N -n -oA/FILE -O -o7 -o8 -oi -om -r -R -q -q30m -qIID -qRHOST -qSSENDER -t -U -V -XV -XV-= -v -X") {
		if !have[flag] {
			t.Errorf("no %s", flag)
		}
	}
}
